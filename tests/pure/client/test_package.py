"""`pip install .` brings the client as the package `gapless`, and nothing else under any other name."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
USE = """
import sys
sys.path.insert(0, sys.argv[1])
import gapless
from gapless import AsyncClient, Client, Piece, RefusedError, user
from gapless.bench.inputs import TASKS

assert gapless.__file__.startswith(sys.argv[1]), gapless.__file__
assert len(TASKS.read_text().splitlines()) > 100
assert "client" not in sys.modules and "python_backends" not in sys.modules
with Client("127.0.0.1:1") as client:
    assert not client.is_ready()
print("works")
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `pip install .` builds it, without the network: setuptools is in the environment."""
    source, built = tmp_path_factory.mktemp("source") / "gapless", tmp_path_factory.mktemp("built")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "models", "docs", "run")
    shutil.copytree(ROOT, source, ignore=ignored)
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(built), str(source)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (source / "build/lib").exists(), "build/ has other things"
    (made,) = built.glob("*.whl")
    return made


def test_the_package_has_the_client_and_its_data_and_nothing_else(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel).namelist()
    files = {name.removeprefix("gapless/") for name in packed if not name.startswith("gapless-0")}
    kept = {".py", ".jsonl", ".typed", ".json"}
    here = {path.relative_to(ROOT / "client") for path in (ROOT / "client").rglob("*") if path.suffix in kept}
    assert files == {str(path) for path in here}


def test_it_works_where_nothing_of_this_repository_is(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-I", "-c", USE, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "works\n", "")
