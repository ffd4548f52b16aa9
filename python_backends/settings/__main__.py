"""Writes gapless.toml from the declarations: `make settings`."""

from __future__ import annotations

from python_backends.settings.all_settings import ROOT
from python_backends.settings.writing import gapless_toml

(ROOT / "gapless.toml").write_text(gapless_toml())
