"""The image's last stage and the set-up script, run by a shell in which
every command only says how it was called.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from python_backends.engine.cpu.library import Kind, kinds_for

ROOT = Path(__file__).resolve().parents[2]
# of a kernel's first launch: a compiler, C's headers, Python.h
NEEDED_ON_CUDA = {"gcc", "libc6-dev", "libpython3.11-dev"}
HASHED = re.compile(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+")
SHELL = shutil.which("sh") or "/bin/sh"


def packages_of_the_last_stage(device: str) -> set[str]:
    """What its first RUN installs."""
    stage = (ROOT / "build/image/Dockerfile").read_text().split("\nFROM ")[-1]
    assert "ARG DEVICE=cpu\n" in stage[: stage.index("RUN")], "an ARG of another stage is empty in this one"
    match = re.search(r"^RUN ((?:.*\\\n)*.*)$", stage, re.MULTILINE)
    assert match is not None
    commands = set(re.findall(r"(?:^|&&|\|\|)\s*([a-z][\w-]+)", match[1])) - {"case"}
    said = "".join(f'{each}() {{ echo "{each} $*"; }}\n' for each in commands)
    script = (said + match[1]).replace("apt-get", "apt_get")  # no function has a hyphen in its name
    out = subprocess.run(
        [SHELL, "-c", script], env={"PATH": "", "DEVICE": device}, capture_output=True, text=True, check=True
    )
    installed = next(line for line in out.stdout.splitlines() if " install " in line)
    return {word for word in installed.split() if not word.startswith("-")} - {"apt_get", "install"}


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_the_image_for_cuda_has_what_a_kernel_needs_at_its_first_launch(device: str) -> None:
    assert packages_of_the_last_stage(device) == packages_of_the_last_stage("cpu") | NEEDED_ON_CUDA


def test_the_image_for_a_cpu_has_no_compiler() -> None:
    assert packages_of_the_last_stage("cpu") == {"python3.11", "libpython3.11"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "build/image").glob("*Dockerfile")), ids=lambda path: path.name
)
def test_each_image_can_be_told_by_its_label(path: Path) -> None:
    """And each that is left of a build: stages that begin with another of ours inherit it."""
    _, *stages = re.split(r"^FROM ", path.read_text(), flags=re.MULTILINE)
    begun = [stage.splitlines() for stage in stages]
    ours = {"$IMAGE", *(lines[0].partition(" AS ")[2] for lines in begun)}
    labels = {lines[1] for lines in begun if lines[0].partition(" ")[0] not in ours}
    assert labels == {"LABEL org.opencontainers.image.title=Gapless"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout whose .venv suits, and in which pip only says what it was asked."""
    (tmp_path / "build").mkdir()
    shutil.copy(ROOT / "build/set-up", tmp_path / "build")
    for lock in ROOT.glob("requirements*.lock"):
        shutil.copy(lock, tmp_path)
    binaries = tmp_path / ".venv" / "bin"
    binaries.mkdir(parents=True)
    python = binaries / "python"
    python.write_text(
        "#!/bin/bash\n"
        'case "$*" in\n'
        f'  *sysconfig.get_paths*) echo "{tmp_path}/include" ;;\n'
        "  *version_info*) echo 3.11 ;;\n"
        '  *pip*smollm2*) echo "pip $*"; exit "${NO_MODEL:-0}" ;;\n'
        '  *" torch=="*) echo "pip $*"; exit "${NO_TORCH:-0}" ;;\n'
        '  *pip*) echo "pip $*" ;;\n'
        "esac\n"
    )
    python.chmod(0o755)
    return tmp_path


def set_up(checkout: Path, *parts: str, **environment: str) -> str:
    """What it says. Of the system's commands it has all but compilers."""
    tools = checkout / "tools"
    tools.mkdir(exist_ok=True)
    for name in ("bash", "dirname", "cat", "sha256sum", "cut", "uname", "rm"):
        link = tools / name
        if not link.exists():
            link.symlink_to(str(shutil.which(name)))
    path = f"{checkout / 'compilers'}{os.pathsep}{tools}"
    out = subprocess.run(
        [checkout / "build/set-up", *parts],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return out.stdout + out.stderr


def test_set_up_for_cuda_names_what_brings_a_compiler_and_headers(checkout: Path) -> None:
    said = set_up(checkout, DEVICE="cuda")
    assert "sudo apt-get install -y gcc libc6-dev libpython3.11-dev" in said
    assert "set-up: done" in said


def test_set_up_says_nothing_of_a_compiler_where_it_is_there_or_not_needed(checkout: Path) -> None:
    assert "libpython3.11-dev" not in set_up(checkout, DEVICE="cpu")
    (checkout / "include").mkdir()
    (checkout / "include" / "Python.h").touch()
    (checkout / "compilers").mkdir()
    (checkout / "compilers" / "gcc").symlink_to("/bin/true")
    assert "libpython3.11-dev" not in set_up(checkout, DEVICE="cuda")


def test_set_up_installs_the_parts_that_are_named(checkout: Path) -> None:
    said = set_up(checkout, "dev", "kernels")
    assert [
        lock in said
        for lock in ("-r requirements.lock", "-r requirements-dev.lock", "-r requirements-kernels.lock")
    ] == [True] * 3
    assert set_up(checkout, "dev", "kernels") == ""


@pytest.mark.parametrize("fails", [False, True])
def test_uv_installs_and_pip_does_what_it_could_not(checkout: Path, fails: bool) -> None:
    uv = checkout / ".venv" / "bin" / "uv"
    uv.write_text(f'#!/bin/bash\necho "uv $*"\nexit {int(fails)}\n')
    uv.chmod(0o755)
    said = set_up(checkout).splitlines()
    by_uv, by_pip = (
        [line for line in said if line.startswith(f"{name} ") and " -r " in line] for name in ("uv", "pip")
    )
    assert all("--require-hashes" in line for line in [*by_uv, *by_pip])
    names = {"requirements-smollm2.lock", "requirements.lock"}
    assert {line.split()[-1] for line in by_uv} == names
    assert {line.split()[-1] for line in by_pip} == {"requirements-uv.lock"} | (names if fails else set())


def test_torch_for_cuda_that_did_not_come_is_installed_the_next_time(checkout: Path) -> None:
    """That for CPUs is gone by then."""
    set_up(checkout, DEVICE="cpu")
    with pytest.raises(subprocess.CalledProcessError):
        set_up(checkout, DEVICE="cuda", NO_TORCH="1")
    assert "torch==" in set_up(checkout, DEVICE="cpu")


def test_set_up_goes_on_without_the_model_and_tries_again_where_it_is_named(checkout: Path) -> None:
    said = set_up(checkout, NO_MODEL="1")
    assert "can't be had here: the small model is served by default" in said
    assert "set-up: done" in said
    assert set_up(checkout) == "", "once is enough"
    assert "--require-hashes" in (again := set_up(checkout, "smollm2"))
    assert "-r requirements.lock" not in again
    assert "small model" not in again


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ("Linux x86_64", "set-up: done"),
        ("Linux aarch64", "on ARM64 this was never run"),
        ("Linux riscv64", "needs Linux on x86-64 or ARM64; this is Linux riscv64"),
        ("Darwin arm64", "needs Linux on x86-64 or ARM64; this is Darwin arm64"),
    ],
)
def test_set_up_works_where_there_are_wheels(checkout: Path, machine: str, said: str) -> None:
    uname = checkout / "tools" / "uname"
    uname.parent.mkdir()
    uname.write_text(f"#!/bin/sh\necho {machine}\n")
    uname.chmod(0o755)
    try:
        out = set_up(checkout)
    except subprocess.CalledProcessError as error:
        out = error.stderr
        assert "Linux x86_64" not in machine
        assert "aarch64" not in machine
    assert said in out


def test_an_image_for_arm64_has_no_layers() -> None:
    assert kinds_for("x86_64") == list(Kind)
    assert kinds_for("aarch64") == []


def test_each_pinned_package_has_the_hashes_of_its_files() -> None:
    pinned = [
        line
        for path in ROOT.glob("requirements*.lock")
        for line in path.read_text().splitlines()
        if not line.startswith("#")
    ]
    assert len(pinned) > 150
    assert [line for line in pinned if not HASHED.fullmatch(line)] == []
    assert "--require-hashes -r" in (ROOT / "build/set-up").read_text()


def test_the_image_of_tensorrt_llm_gets_our_llguidance() -> None:
    """TensorRT-LLM pins one that is too old for guides, which the tokenizer imports."""
    written = (ROOT / "build/image/tensorrt-llm.Dockerfile").read_text()
    pattern = re.search(r"grep -E '(.*?)' requirements\.lock", written)
    assert pattern is not None
    lock = (ROOT / "requirements.lock").read_text().splitlines()
    added = [line.partition("==")[0] for line in lock if re.match(pattern[1], line)]
    assert "llguidance" in added
    assert len(added) == pattern[1].count("|") + 1, "each of them is in the lock"


def test_continuous_integration_runs_the_kernels() -> None:
    assert "build/set-up dev kernels" in (ROOT / ".ci/run").read_text()
    assert re.search(r"^triton==\d", (ROOT / "requirements-kernels.lock").read_text(), re.MULTILINE)
