"""Writes into requirements*.lock the hashes of the files that each pinned version may be installed from: its
wheels for Linux on x86-64 and ARM64 with Python 3.11 and 3.12, or where it has none, its source.

    .venv/bin/python -m build.locks        after a version was changed; needs uv (`pip install uv`)
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

ROOT = Path(__file__).resolve().parents[1]
LINE = re.compile(r"^([\w.-]+)==(\S+).*$", re.MULTILINE)
LONGEST_MINOR = 60  # of glibc's versions 2.5, 2.6 …
PROJECT = """\
[project]
name = "pinned"
version = "0"
requires-python = ">=3.11.2,<3.13"
dependencies = {pins}
[tool.uv]
override-dependencies = {pins}
environments = ["sys_platform == 'linux'"]
"""


def tags() -> Iterator[Tag]:
    """Of all wheels that may be installed."""
    old = ("manylinux1", "manylinux2010", "manylinux2014", "linux")
    names = [*old, *(f"manylinux_2_{minor}" for minor in range(5, LONGEST_MINOR))]
    platforms = [f"{name}_{machine}" for name in names for machine in ("x86_64", "aarch64")]
    for version in ((3, 11), (3, 12)):
        yield from cpython_tags(version, platforms=platforms)
        yield from compatible_tags(version, f"cp3{version[1]}", platforms)


def locked(text: str) -> dict[str, list[str]]:
    """The hashes of each package that the text of a lock pins, by its name."""
    pins = [f"{name}=={version}" for name, version in LINE.findall(text)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "pyproject.toml").write_text(PROJECT.format(pins=pins))
        subprocess.run(["uv", "lock", "--quiet", "--project", folder], check=True)
        packages = tomllib.loads(Path(folder, "uv.lock").read_text())["package"]
    allowed, pinned = frozenset(tags()), {canonicalize_name(name) for name, _ in LINE.findall(text)}
    return {each["name"]: hashes(each, allowed) for each in packages if each["name"] in pinned}


def hashes(package: dict[str, Any], allowed: frozenset[Tag]) -> list[str]:
    """Of one package in uv.lock."""
    wheels = [
        each["hash"]
        for each in package.get("wheels", [])
        if parse_wheel_filename(each["url"].rpartition("/")[2])[3] & allowed
    ]
    return sorted(wheels) or [package["sdist"]["hash"]]


def hashed(text: str) -> str:
    """The text of a lock with the hashes of today."""
    found = locked(text)
    return LINE.sub(
        lambda match: " --hash=".join([f"{match[1]}=={match[2]}", *found[canonicalize_name(match[1])]]), text
    )


def main() -> int:
    for path in sorted(ROOT.glob("requirements*.lock")):
        path.write_text(hashed(path.read_text()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
