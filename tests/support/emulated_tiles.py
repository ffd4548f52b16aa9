"""Compiles the layers for a processor with tiles (AMX) so that they run on one without: each tile
instruction is a function of `emulated_tiles.h`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from unittest.mock import patch

from python_backends.engine.cpu import library
from python_backends.engine.cpu.library import Kind

HEADER = Path(__file__).with_name("emulated_tiles.h")


def compiled_with_emulated_tiles(directory: Path) -> Path:
    """The library, in `directory`. Raises as `library.compiled`."""
    compiler = directory / "g++"
    real = shlex.quote(os.environ.get("CXX", "g++"))
    compiler.write_text(f'#!/bin/sh\nexec {real} -include {shlex.quote(str(HEADER))} "$@"\n')
    compiler.chmod(0o755)
    with patch.dict(os.environ, CXX=str(compiler)), patch.object(library, "WRITTEN", directory):
        return library.compiled(Kind.AMX)
