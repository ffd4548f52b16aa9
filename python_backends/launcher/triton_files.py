"""Finds the files of tritonserver and its Python backend: in /opt/tritonserver in a container of Triton's,
else in the wheel `nvidia-pytriton`; and gives them names in the run directory.

tritonserver works in the run directory and knows files there by relative names. Triton hands its paths to a
shell, which would split or run what is in them, and repeats them in errors that clients get; lists of
directories in the environment are split at ":" and ";". A relative name has none of these, and tells nothing
of the host.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
from collections.abc import Collection
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from python_backends.launcher.stubs import PROGRAM
from python_backends.settings import ROOT

CONTAINER_SERVER = Path("/opt/tritonserver")
MODELS, LIBRARIES = Path("models"), Path("libraries")  # names in the run directory
CODE = "python_backends"  # there, too: the stubs import modules from the directory in which they work


@dataclass(frozen=True, slots=True)
class TritonFiles:
    binary: Path
    backends: Path  # a directory that has a directory for each backend
    libraries: tuple[Path, ...]  # directories


def locate(run_directory: Path, model_repository: Path, packages: Collection[str] = ()) -> TritonFiles:
    """Returns the files. Makes links in the run directory to the model repository, to our code, to the
    `packages` of others that the settings name and to the files of the wheel. Raises OSError.
    """
    _link(run_directory / MODELS, model_repository)
    _link(run_directory / CODE, ROOT / CODE)
    for package in packages:
        found = find_spec(package)
        assert found is not None, "the launcher has imported it"
        for place in found.submodule_search_locations or [str(found.origin)]:
            _link(run_directory / Path(place).name, Path(place))
    if CONTAINER_SERVER.exists():
        return TritonFiles(
            CONTAINER_SERVER / "bin/tritonserver", CONTAINER_SERVER / "backends", (CONTAINER_SERVER / "lib",)
        )
    site = Path(sysconfig.get_path("purelib"))
    wheel = site / "pytriton/tritonserver"
    _assemble_backend(wheel, run_directory / "backends/python")
    directories = (Path(sysconfig.get_config_var("LIBDIR")), site / "nvidia_pytriton.libs")
    libraries = tuple(LIBRARIES / str(number) for number in range(len(directories)))
    for name, directory in zip(libraries, directories, strict=True):
        _link(run_directory / name, directory)
    return TritonFiles(wheel / "bin/tritonserver", Path("backends"), libraries)


def lacking() -> str:
    """What is missing here for Triton and its Python backend; "": nothing."""
    if CONTAINER_SERVER.exists():
        return ""
    wheel = Path(sysconfig.get_path("purelib"), "pytriton/tritonserver")
    if not (wheel / "bin/tritonserver").exists():
        return "the package nvidia-pytriton, which has tritonserver, is not installed"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (wheel / "python_backend_stubs" / version).exists():
        return f"nvidia-pytriton has no program for Python {version}: take 3.11 or 3.12"
    library = Path(sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME"))
    if library.suffix == ".a" or not library.exists():
        return (
            "this Python has no shared library, which Triton's Python backend links:"
            f" apt-get install libpython{version} brings Debian's"
        )
    return ""


def _assemble_backend(wheel: Path, directory: Path) -> None:
    """Makes a directory of the Python backend with links to the wheel, and with the stub of *this* Python."""
    directory.mkdir(parents=True, exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = wheel / "python_backend_stubs" / version / PROGRAM
    for source in [*(wheel / "backends/python").iterdir(), stub]:
        target = directory / source.name
        if source.is_dir():
            shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
        else:
            _link(target, source)


def _link(name: Path, target: Path) -> None:
    name.parent.mkdir(parents=True, exist_ok=True)
    if not name.is_symlink():
        name.symlink_to(target)
