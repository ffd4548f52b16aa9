"""Finds the files of tritonserver and its Python backend: in /opt/tritonserver in a container of Triton's,
else in the wheel `nvidia-pytriton`. Tested in tests/pure/test_triton_command.py.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from python_backends.launcher.stubs import PROGRAM

CONTAINER_SERVER = Path("/opt/tritonserver")


@dataclass(frozen=True, slots=True)
class TritonFiles:
    binary: Path
    backends: Path  # a directory that has a directory for each backend
    libraries: tuple[Path, ...]  # directories


def locate(run_directory: Path) -> TritonFiles:
    """Returns the files. Those of the wheel are linked together in the run directory."""
    if CONTAINER_SERVER.exists():
        return TritonFiles(
            CONTAINER_SERVER / "bin/tritonserver", CONTAINER_SERVER / "backends", (CONTAINER_SERVER / "lib",)
        )
    site = Path(sysconfig.get_path("purelib"))
    wheel = site / "pytriton/tritonserver"
    backends = run_directory / "backends"
    _assemble_backend(wheel, backends / "python")
    return TritonFiles(
        wheel / "bin/tritonserver",
        backends,
        (Path(sysconfig.get_config_var("LIBDIR")), site / "nvidia_pytriton.libs"),
    )


def _assemble_backend(wheel: Path, directory: Path) -> None:
    """Makes a directory of the Python backend with links to the wheel, and with the stub of *this* Python."""
    directory.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / version / PROGRAM
    for source in [*(wheel / "backends/python").iterdir(), stub]:
        target = directory / source.name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        elif not target.exists():
            target.symlink_to(source)
