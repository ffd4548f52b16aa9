"""Writes the packages that a GPU machine without network lacks to .gpu-wheels, small enough to be copied
there. Run it on a machine with a network.

    python3 build/gpu_wheels.py          # then, on the GPU machine, with the folder next to the checkout:
    build/gpu-run --json gpu.json

The folder has wheels of the small packages; NVIDIA's Triton Inference Server from the wheel nvidia-pytriton,
reduced to server, Python backend, the stub of one Python and the libraries that these need; numpy 1 for that
stub only (`stubs/`); and the shared library of that Python (`lib/`), which not every Python has, if this
machine has it. The versions are those of requirements.lock.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("gguf", "llguidance", "msgspec", "sortedcontainers", "pyzmq", "setproctitle", "psutil")
STUB_PACKAGES = ("numpy",)
TRITON = "nvidia-pytriton"
PLATFORMS = (
    "manylinux_2_31_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux1_x86_64",
)
TRITON_PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (35, 34, 31))
MOST_BYTES = 64 << 20  # of the wheels and this checkout together: the limit of a copy to the GPU machine
SERVER = "pytriton/tritonserver"
LIBRARIES = "nvidia_pytriton.libs/"


def download(
    names: tuple[str, ...], folder: Path, python: str, platforms: tuple[str, ...] = PLATFORMS
) -> None:
    pins = dict(re.findall(r"^(\S+)==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    command = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "-q",
        "--no-deps",
        "--only-binary=:all:",
    ]
    command += ["--python-version", python, "--implementation", "cp", "-d", str(folder)]
    for platform in platforms:
        command += ["--platform", platform]
    subprocess.run([*command, *(f"{name}=={pins[name]}" for name in names)], check=True)


def fetch_slim(names: tuple[str, ...], folder: Path, python: str, platforms: tuple[str, ...]) -> None:
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        print(f"fetching {', '.join(names)}", flush=True)
        download(names, Path(scratch), python, platforms)
        for wheel in Path(scratch).glob("*.whl"):
            slim(wheel, folder / wheel.name, python)


def is_wanted(name: str, python: str) -> bool:
    """Whether a file of Triton's wheel is needed to serve Python models with one Python, on the CPU."""
    if name.startswith(f"{SERVER}/python_backend_stubs/"):
        return f"/{python}/" in name
    if name.startswith(LIBRARIES):
        return "libpython" not in name
    if name.startswith("numpy/"):
        return "/tests/" not in name and not name.startswith("numpy/f2py/")
    return name.startswith((f"{SERVER}/bin/", f"{SERVER}/backends/", "numpy.libs/")) or ".dist-info/" in name


def slim(wheel: Path, target: Path, python: str) -> None:
    """Writes a wheel with only the wanted files of `wheel`, without their symbols, and with a new RECORD."""
    with (
        zipfile.ZipFile(wheel) as source,
        zipfile.ZipFile(target, "w", zipfile.ZIP_LZMA) as made,
    ):
        record = next(name for name in source.namelist() if name.endswith(".dist-info/RECORD"))
        lines = []
        for info in source.infolist():
            if info.filename == record or info.is_dir() or not is_wanted(info.filename, python):
                continue
            content = stripped(source.read(info))
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{info.filename},sha256={digest},{len(content)}")
            made.writestr(info, content, zipfile.ZIP_LZMA)
        made.writestr(record, "\n".join([*lines, f"{record},,"]) + "\n")


def stripped(content: bytes) -> bytes:
    """Returns a program or library without its symbols, if this machine has `strip`. Keeps other files."""
    if not content.startswith(b"\x7fELF") or not shutil.which("strip"):
        return content
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        subprocess.run(["strip", "--strip-unneeded", file.name], check=True)
        return Path(file.name).read_bytes()


def take_library(folder: Path, python: str) -> str:
    """Copies this machine's shared library of that Python, stripped. Returns a message about the result."""
    name = f"libpython{python}.so.1.0"
    try:
        code = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
        found = subprocess.run(
            [f"python{python}", "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        content = stripped((Path(found) / name).read_bytes())
    except (OSError, subprocess.CalledProcessError) as error:
        return (
            f"left out {name}: {error}; without it, a Python that has no shared library can't run the stubs"
        )
    folder.mkdir()
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_LZMA) as made:
        made.writestr(name, content)
    return f"added {name} to the folder"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default="3.12", help="of the GPU machine")
    parser.add_argument("--folder", type=Path, default=ROOT / ".gpu-wheels")
    asked = parser.parse_args()
    shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True)
    download(PACKAGES, asked.folder, asked.python)
    fetch_slim(STUB_PACKAGES, asked.folder / "stubs", asked.python, PLATFORMS)
    fetch_slim((TRITON,), asked.folder, asked.python, TRITON_PLATFORMS)
    print(take_library(asked.folder / "lib", asked.python))
    return report(asked.folder)


def report(folder: Path) -> int:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        print(f"{path.stat().st_size / 2**20:6.1f} MiB {path.relative_to(folder)}")
    tree = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    size = sum(path.stat().st_size for path in files)
    whole = size + sum((ROOT / name).stat().st_size for name in tree if name and (ROOT / name).is_file())
    print(
        f"{size / 2**20:6.1f} MiB in {folder}; {whole / 2**20:.1f} MiB with this checkout, of at most"
        f" {MOST_BYTES / 2**20:.0f}"
    )
    return int(whole > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
