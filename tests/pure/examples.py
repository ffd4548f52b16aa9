"""How many examples a property test tries: few in every run, so that a file takes seconds; `GAPLESS_EXAMPLES=20000` for a night."""

from __future__ import annotations

import os

from hypothesis import settings

examples = settings(max_examples=int(os.environ.get("GAPLESS_EXAMPLES", "40")), deadline=None)
