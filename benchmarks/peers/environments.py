"""The environments of the peers that can't be installed in the project's own: made on first use, with pinned
versions, in `benchmarks/.environments`.

GAPLESS_BENCHMARK_ENVIRONMENTS names another folder. `peers` calls `ready`, which prints its steps and
raises CalledProcessError or OSError if a step fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import ROOT
from benchmarks.common.work import KV_POOL_GIB, num_cores

LOCKS = Path(__file__).resolve().parent / "locks"
FOLDER = Path(os.environ.get("GAPLESS_BENCHMARK_ENVIRONMENTS") or ROOT / "benchmarks/.environments").resolve()
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
LLAMA_CPP = "llama-cpp-python==0.3.36"  # its source package includes the sources of llama.cpp
LLAMA_PROGRAMS = ("llama-server", "llama-quantize")
TCMALLOC = "libtcmalloc_minimal.so.4"
LIBRARY_FOLDERS = (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"), Path("/usr/lib"))
CMAKE = (
    *(
        "-DCMAKE_BUILD_TYPE=Release",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DLLAMA_BUILD_TESTS=OFF",
        "-DLLAMA_BUILD_EXAMPLES=OFF",
    ),
    *("-DLLAMA_OPENSSL=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)


@dataclass(frozen=True, slots=True)
class Environment:
    python: Path = Path(sys.executable)
    variables: dict[str, str] = field(default_factory=dict)


def ready(name: str) -> Environment:
    """Returns the environment of such a list of packages; the project's own if there is no such list."""
    lock = LOCKS / f"{name}.lock"
    if not lock.exists():
        return Environment()
    folder = FOLDER / name
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / f"{name}.making").open("w") as lock_file:
        fcntl.flock(lock_file, fcntl.LOCK_EX)  # so that two runs do not make it at the same time
        make_if_needed(name, lock, folder)
    return Environment(folder / "bin" / "python", variables(name, folder))


def make_if_needed(name: str, lock: Path, folder: Path) -> None:
    built = " ".join((LLAMA_CPP, *LLAMA_PROGRAMS)).encode() * (name == "llama_cpp")
    digest = hashlib.sha256(packages_of(lock).encode() + built).hexdigest()
    made = folder / "made"
    if not made.exists() or made.read_text() != digest:
        make(name, lock, folder)
        made.write_text(digest)


def make(name: str, lock: Path, folder: Path) -> None:
    print(f"{name}: making its environment in {folder}, once", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    python = folder / "bin" / "python"
    run(getattr(sys, "_base_executable", sys.executable), "-m", "venv", folder)
    for torch in (line for line in packages_of(lock).splitlines() if line.startswith("torch==")):
        run(
            python,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--retries",
            "1",
            "--extra-index-url",
            CPU_BUILDS,
            torch,
        )
    run(python, "-m", "pip", "install", "--no-deps", "-r", lock)
    if name == "llama_cpp":
        build_llama_cpp(python, folder)


def packages_of(lock: Path) -> str:
    """Returns the lines of a list, with those of the list that its first line adds to."""
    text = lock.read_text()
    other, _, own = text.removeprefix("-r ").partition("\n") if text.startswith("-r ") else ("", "", text)
    return (packages_of(lock.with_name(other)) if other else "") + own


def build_llama_cpp(python: Path, folder: Path) -> None:
    source, build = folder / "source", folder / "build"
    run(
        python,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--no-binary",
        "llama-cpp-python",
        "-d",
        source,
        LLAMA_CPP,
    )
    with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    run("cmake", "-S", next(source.glob("*/vendor/llama.cpp")), "-B", build, *CMAKE)
    run("cmake", "--build", build, "--target", *LLAMA_PROGRAMS, "-j", num_cores())
    for name in LLAMA_PROGRAMS:
        shutil.copy(build / "bin" / name, folder / "bin")
    shutil.rmtree(build)
    shutil.rmtree(source)


def variables(name: str, folder: Path) -> dict[str, str]:
    """Returns the environment variables of a peer's process."""
    if not name.startswith("vllm"):
        return {}
    cores = sorted(os.sched_getaffinity(0))
    return {
        "LD_PRELOAD": str(intel_openmp(folder)),
        "VLLM_CPU_KVCACHE_SPACE": str(KV_POOL_GIB),
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor"),
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
    }


def vllm_variants(name: str) -> dict[str, dict[str, str]]:
    """Returns the ways to run vLLM that are tried, with the variables that differ. Makes the environment of
    that name.

    Its image preloads tcmalloc, which does not ask for large pages; glibc's allocator does. Its engine runs
    in the client's process or in its own. (VLLM_CPU_SGL_KERNEL was removed in vLLM 0.32, which uses these
    kernels by default if there is AMX.)
    """
    ready(name)
    openmp, tcmalloc = intel_openmp(FOLDER / name), find_tcmalloc()
    allocators = {"glibc": str(openmp)} | ({"tcmalloc": f"{tcmalloc}:{openmp}"} if tcmalloc else {})
    return {
        f"{allocator}, {count}": {"LD_PRELOAD": preloaded, "VLLM_ENABLE_V1_MULTIPROCESSING": flag}
        for allocator, preloaded in allocators.items()
        for count, flag in (("in the client's process", "0"), ("in processes of its own", "1"))
    }


def intel_openmp(folder: Path) -> Path:
    """Raises FileNotFoundError."""
    found = next((folder / "lib").rglob("libiomp5.so"), None)
    if found is None:
        raise FileNotFoundError(f"no libiomp5.so in {folder}")
    return found


def find_tcmalloc() -> Path | None:
    """Returns the library that vLLM's image preloads (Debian's package libtcmalloc-minimal4), or None if it
    is not installed.
    """
    return next((folder / TCMALLOC for folder in LIBRARY_FOLDERS if (folder / TCMALLOC).exists()), None)


def run(*command: object) -> None:
    words = [str(word) for word in command]
    print("$ " + " ".join(words), flush=True)
    subprocess.run(words, check=True)
