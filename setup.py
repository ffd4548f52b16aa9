"""What pyproject.toml can't say: the wheel has the server in a folder of the client's package, where none of
its names meets those of other packages; and its dependencies are the pinned ones of requirements.lock.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

CLIENT = ["tritonclient[grpc]>=2.50", "grpcio", "numpy"]
BROUGHT = ("client", "commands", "front", "model_repository", "models/bundled", "python_backends")
# what tritonserver runs on; elsewhere the client is all that is installed
SERVES = (
    'sys_platform == "linux" and (platform_machine == "x86_64" or platform_machine == "aarch64")'
    ' and python_version < "3.13"'
)


class BuildWithServer(build_py):
    """Brings the server, which `client/__main__.py` finds, as `gapless/server`."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for name in BROUGHT:
            target = Path(self.build_lib, "gapless", "server", name)
            shutil.copytree(name, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)


def pinned() -> list[str]:
    torch = re.findall(r"^torch=(\S+)$", Path("build/set-up").read_text(), re.MULTILINE)
    lines = re.findall(r"^\w\S*==\S+$", Path("requirements.lock").read_text(), re.MULTILINE)
    return [f"{line}; {SERVES}" for line in [f"torch=={torch[0]}", *lines]]


setup(cmdclass={"build_py": BuildWithServer}, install_requires=[*CLIENT, *pinned()])
