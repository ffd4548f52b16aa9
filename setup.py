"""What pyproject.toml can't say: the wheel has the server in a folder of the client's package, where none of
its names meets those of other packages; its version has the commit; its dependencies are the pinned ones of
requirements.lock; and where there is g++ it has the layers in C++, compiled for every processor that they
know, and is for x86-64.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

CLIENT = ["tritonclient[grpc]>=2.50", "grpcio", "numpy"]
BROUGHT = ("client", "commands", "front", "model_repository", "models/bundled", "python_backends")
# what tritonserver runs on; elsewhere the client is all that is installed
SERVES = (
    'sys_platform == "linux" and (platform_machine == "x86_64" or platform_machine == "aarch64")'
    ' and python_version < "3.13"'
)


@cache
def layers() -> tuple[Path, ...]:
    """The compiled ones, which lie in run/compiled then; none where they can't be compiled."""
    is_here = (sys.platform, platform.machine()) == ("linux", "x86_64")
    if not is_here or shutil.which(os.environ.get("CXX", "g++")) is None:
        return ()
    command = [sys.executable, "-m", "python_backends.engine.cpu.library"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:  # an older compiler; the engine asks for less at its first start
        print(f"the wheel gets no compiled layers: {done.stderr}", file=sys.stderr)
        return ()
    return tuple(map(Path, done.stdout.splitlines()))


class BuildWithServer(build_py):
    """Brings the server, which `client/__main__.py` finds, as `gapless/server`."""

    def run(self) -> None:
        package = Path(self.build_lib, "gapless")
        shutil.rmtree(package, ignore_errors=True)  # of an earlier build
        super().run()
        if self.editable_mode:
            return
        server = package / "server"
        for name in BROUGHT:
            shutil.copytree(name, server / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in layers():
            shutil.copy(path, server / "python_backends/engine/cpu")


class WheelWithLayers(bdist_wheel):
    """With layers it is for this platform alone, and for every Python 3 as without."""

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return (*tag[:2], "linux_x86_64") if layers() else tag


def version() -> str:
    """With the commit: pip keeps what is installed where the version is the same."""
    if (archive := Path("PKG-INFO")).exists():  # a source archive has the version that it was made with
        return re.findall(r"^Version: (\S+)$", archive.read_text(), re.MULTILINE)[0]
    number = str(tomllib.loads(Path("pyproject.toml").read_text())["tool"]["gapless"]["version"])
    if not Path(".git").exists() or shutil.which("git") is None:
        return number
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=.dirty"]
    commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return f"{number}+g{commit}" if commit else number


def pinned() -> list[str]:
    torch = re.findall(r"^torch=(\S+)$", Path("build/set-up").read_text(), re.MULTILINE)
    lines = re.findall(r"^\w\S*==\S+", Path("requirements.lock").read_text(), re.MULTILINE)
    return [f"{line}; {SERVES}" for line in [f"torch=={torch[0]}", *lines]]


setup(
    version=version(),
    cmdclass={"build_py": BuildWithServer, "bdist_wheel": WheelWithLayers},
    install_requires=[*CLIENT, *pinned()],
)
