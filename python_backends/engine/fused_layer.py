"""The library with our own operation for OpenVINO's graph (`fused_layer.cpp`): compiled once for each version of what it is made from.

Owns `run/compiled/`. The headers come with OpenVINO's package; without a compiler, or on another processor, the engine serves with
OpenVINO's operations alone. `python -m python_backends.engine.fused_layer` compiles whatever processor is here: an image is made so.
Called by the OpenVINO engine at its start.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import openvino as ov

from python_backends.config import ROOT

log = logging.getLogger("gapless.instance")

SOURCE = Path(__file__).with_suffix(".cpp")
OPENVINO = Path(ov.__file__).parent
NEEDED = {"amx_tile", "amx_bf16", "avx512_bf16", "avx512f", "avx512bw", "avx512dq", "avx512vl"}  # of the processor
FLAGS = ("-std=c++17", "-O3", "-march=x86-64-v4", "-mamx-tile", "-mamx-bf16", "-mavx512bf16", "-fPIC", "-shared")


@cache
def library() -> Path | None:
    """None, and the reason in the log, where it can't be had."""
    missing = NEEDED - _processor_flags()
    if missing:
        log.info("no fused layers: the processor has no %s", ", ".join(sorted(missing)))
        return None
    try:
        return compiled()
    except subprocess.CalledProcessError as error:
        log.warning("no fused layers: %s\n%s", error, "\n".join(error.stderr.strip().splitlines()[-10:]))
    except OSError as error:
        log.warning("no fused layers: %s", error)
    return None


def compiled() -> Path:
    """Made now if it wasn't yet. Raises OSError without a compiler or a place for it, CalledProcessError where it doesn't compile."""
    path = ROOT / "run" / "compiled" / f"fused-layer-{_digest()}.so"
    if path.exists():
        return path
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise FileNotFoundError("a C++ compiler would make them: apt-get install g++")
    log.info("compiling %s, once", SOURCE.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    headers = [f"-I{OPENVINO / 'include'}", f"-I{OPENVINO / 'include' / 'tbb'}"]
    libraries = [str(next((OPENVINO / "libs").glob(name))) for name in ("libopenvino.so.*", "libtbb.so.*")]
    with TemporaryDirectory(dir=path.parent) as directory:  # who starts at the same time finds all of it or nothing
        made = Path(directory, path.name)
        command = [compiler, *FLAGS, *headers, str(SOURCE), *libraries, "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.replace(path)
    return path


def _digest() -> str:
    made_from = [SOURCE.read_text(), *FLAGS, ov.get_version(), str(OPENVINO)]
    return hashlib.sha256("\n".join(made_from).encode()).hexdigest()[:16]


def _processor_flags() -> set[str]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


if __name__ == "__main__":
    print(compiled())
