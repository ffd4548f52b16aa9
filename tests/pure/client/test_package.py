"""`pip install .` brings the package `gapless`, with the server inside it, and no other name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from python_backends.settings import ROOT
from tests.support.wheel import built, copied

USE = """
import sys
sys.path.insert(0, sys.argv[1])
import gapless
from gapless import AsyncClient, Client, Piece, RefusedError, user
from gapless.bench.inputs import TASKS

assert gapless.__file__.startswith(sys.argv[1]), gapless.__file__
assert len(TASKS.read_text().splitlines()) > 100
assert not {"client", "commands", "front", "python_backends", "torch"} & set(sys.modules)
with Client("127.0.0.1:1") as client:
    assert not client.is_ready()
print("works")
"""
KEPT = {".py", ".jsonl", ".typed", ".json"}  # of the client
SERVER = ("client", "commands", "front", "model_repository", "models/bundled", "python_backends")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("wheel"))


def files_below(folder: Path) -> set[str]:
    """Those that git keeps, by their paths from there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
    return {name for name in names.split("\0") if name and (folder / name).is_file()}


def test_the_package_has_the_client_the_server_and_their_data_and_nothing_else(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel).namelist()
    files = {name.removeprefix("gapless/") for name in packed if not name.startswith("gapless-0")}
    client = {name for name in files_below(ROOT / "client") if Path(name).suffix in KEPT}
    server = {f"server/{folder}/{name}" for folder in SERVER for name in files_below(ROOT / folder)}
    assert files == client | server
    assert wheel.name.endswith("-py3-none-any.whl")


LAYERS = (
    "from python_backends.engine.cpu.library import Kind, compiled; print(*map(compiled, Kind), sep='\\n')"
)


def test_where_there_is_a_compiler_it_has_layers_for_each_processor_which_are_used(tmp_path: Path) -> None:
    """A quick compiler: its libraries are empty."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec g++ -shared -x c++ /dev/null -o "$2"\n'
    )
    compiler.chmod(0o755)
    (tmp_path / "wheel").mkdir()
    wheel = built(tmp_path / "wheel", str(compiler))
    assert wheel.name.endswith("-py3-none-linux_x86_64.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    server = tmp_path / "site/gapless/server"
    environment = {**os.environ, "PYTHONPATH": str(server), "HOME": str(tmp_path), "CXX": "no-such-compiler"}
    command = [sys.executable, "-c", LAYERS]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    found = sorted((server / "python_backends/engine/cpu").glob("*.so"))
    assert sorted(map(Path, done.stdout.split())) == found
    assert [path.name.split("-")[1] for path in found] == ["amx", "avx2", "avx512", "avx512_bf16"]


def test_what_is_built_again_has_no_file_that_is_gone(tmp_path: Path) -> None:
    source, build = copied(tmp_path), tmp_path / "build"
    gone = [source / "front/gone.py", source / "client/gone.py"]
    for path in gone:
        path.touch()
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(build)]
    environment = {**os.environ, "CXX": "no-such-compiler"}
    for is_there in (True, False):
        subprocess.run(command, cwd=source, env=environment, check=True, capture_output=True)
        for name in ("gapless/server/front/gone.py", "gapless/gone.py"):
            assert (build / name).exists() == is_there
        for path in gone:
            path.unlink(missing_ok=True)
    assert (build / "gapless/server/front/app.py").exists()


def test_its_version_has_the_commit_so_pip_takes_newer_code(tmp_path: Path) -> None:
    source = copied(tmp_path)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def version() -> str:
        return run(sys.executable, "setup.py", "--version")

    number = version()
    assert re.fullmatch(r"\d+\.\d+\.\d+", number)
    run("git", "init", "-q")
    run("git", "add", "setup.py")
    run(*git, "commit", "-qm", "first")
    made = f"{number}+g{run('git', 'rev-parse', '--short', 'HEAD')}"
    assert version() == made
    (source / "setup.py").write_text((source / "setup.py").read_text() + "# changed\n")
    assert version() == f"{made}.dirty"
    (source / "PKG-INFO").write_text(f"Name: gapless\nVersion: {made}\n")
    assert version() == made, "as its source archive"


def test_what_serving_needs_is_pinned_and_wanted_only_where_it_serves(wheel: Path) -> None:
    packed = zipfile.ZipFile(wheel)
    (name,) = (name for name in packed.namelist() if name.endswith("/METADATA"))
    wanted = Parser().parsestr(packed.read(name).decode()).get_all("Requires-Dist", [])
    lines = {line for line in wanted if "platform_machine" in line}
    locked = re.findall(r"^\S+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert len(locked) > 50
    assert all('"x86_64"' in line and '"aarch64"' in line for line in lines)
    assert {line.partition(";")[0] for line in lines} >= set(locked)
    assert {line.partition("==")[0] for line in lines} >= {"torch", "nvidia-pytriton"}
    others = {line for line in wanted if line not in lines and "extra ==" not in line}
    assert others == {"tritonclient[grpc]>=2.50", "grpcio", "numpy"}


def test_the_client_works_where_nothing_of_this_repository_is(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-I", "-c", USE, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "works\n", "")
