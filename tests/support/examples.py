"""How many examples a property test tries: few and the same in every run;
`GAPLESS_EXAMPLES=20000` for a night, others each time.
"""

from __future__ import annotations

import os

from hypothesis import settings

WANTED = os.environ.get("GAPLESS_EXAMPLES", "")

examples = settings(max_examples=int(WANTED or 40), deadline=None, derandomize=not WANTED)
