"""The library of layers for a CPU (`layers.cpp`): compiled once for each version of what it is made from.

Owns `run/compiled/`. A wheel may bring libraries, compiled where it was built. Without a compiler, or on
another processor, other operators serve. `python -m python_backends.engine.cpu.library` compiles for every
processor that it knows: for an image on x86-64, or a wheel. Called by the torch engine at its start.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import stat
import subprocess
from collections.abc import Collection
from enum import StrEnum
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from python_backends.linux.processor import processor_flags
from python_backends.settings import WRITTEN

log = logging.getLogger("gapless.instance")

FOLDER = Path(__file__).parent
SOURCE = FOLDER / "layers.cpp"  # and the headers that it includes
BROUGHT = FOLDER  # where a wheel has them
WRITTEN_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class Kind(StrEnum):
    """What a processor multiplies with; the best first. Without a product of bfloat16 (AVX512, AVX2), its
    numbers become float32 in registers.
    """

    AMX = "amx"
    AVX512_BF16 = "avx512_bf16"
    AVX512 = "avx512"
    AVX2 = "avx2"


_AVX512 = {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# of the processor, as Linux calls it
NEEDED = {
    Kind.AMX: _AVX512 | {"avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8"},
    Kind.AVX512_BF16: _AVX512 | {"avx512_bf16", "avx512_vnni"},
    Kind.AVX512: _AVX512,
    Kind.AVX2: {"avx2", "fma", "f16c"},
}
COMMON = ("-std=c++17", "-O3", "-fPIC", "-shared", "-pthread")
FLAGS = {
    Kind.AMX: (
        *(*COMMON, "-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
        *("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
    ),
    Kind.AVX512_BF16: (*COMMON, "-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni"),
    Kind.AVX512: (*COMMON, "-march=x86-64-v4"),
    Kind.AVX2: (*COMMON, "-mavx2", "-mfma", "-mf16c"),
}


def lacking(flags: Collection[str]) -> str:
    """What a processor with `flags` lacks for any of them; "": nothing."""
    return ", ".join(sorted(NEEDED[Kind.AVX2] - set(flags)))


def kinds_here() -> list[Kind]:
    """What this processor has and Linux lets this process use."""
    flags = processor_flags()
    return [kind for kind in Kind if NEEDED[kind] <= flags and (kind != Kind.AMX or _tiles_are_allowed())]


@cache
def library() -> Path | None:
    """None, and the reason in the log, where it can't be had."""
    kinds = kinds_here()
    if not kinds:
        log.info("no layers of ours: the processor has no %s", lacking(processor_flags()))
        return None
    for kind in kinds:  # an older compiler may know another one only, and without one another may lie there
        try:
            made = compiled(kind)
            log.info("layers in C++ compute, by %s", kind)
            return made
        except subprocess.CalledProcessError as error:
            log.warning(
                "no layers of ours of %s: %s\n%s",
                kind,
                error,
                "\n".join(error.stderr.strip().splitlines()[-10:]),
            )
        except FileNotFoundError as error:
            log.warning("no layers of ours of %s: %s", kind, error)
        except OSError as error:
            log.warning("no layers of ours: %s", error)
            return None
    return None


def compiled(kind: Kind) -> Path:
    """That of the wheel, or compiled now if it was not yet, in a folder that no other user may write.

    Raises OSError without a compiler or a place for it, PermissionError where others could put a library of
    theirs into that place, CalledProcessError where it does not compile.
    """
    if (brought := BROUGHT / _name(kind)).exists():  # who may write there may change all of our code
        if not (obstacle := _obstacle(brought)):
            return brought
        log.info("%s is not used: %s", brought, obstacle)
    path = _path(kind)
    _make_private(path.parent)
    if path.exists():
        _refuse_what_others_write(path)
        if not (obstacle := _obstacle(path)):
            return path
        log.warning("%s is compiled again: %s", path, obstacle)
    _compile(kind, path)
    if obstacle := _obstacle(path):
        raise OSError(f"{path}, which was just compiled: {obstacle}")
    return path


def has_tiles(path: Path) -> bool:
    """Whether what was compiled multiplies bfloat16 by AMX."""
    return path.name.startswith(f"layers-{Kind.AMX}-")


def multiplies_bytes(path: Path) -> bool:
    """Whether it multiplies weights of int8 by rows rounded to int8 in a model of bfloat16."""
    return path.name.startswith((f"layers-{Kind.AMX}-", f"layers-{Kind.AVX512_BF16}-"))


def is_kept() -> bool:
    """Whether one of them lies there for this processor."""
    return any((BROUGHT / _name(kind)).exists() or _path(kind).exists() for kind in kinds_here())


def _path(kind: Kind) -> Path:
    return WRITTEN / "run" / "compiled" / _name(kind)


def _name(kind: Kind) -> str:
    """Of what it is made from, not of what compiled it."""
    return f"layers-{kind}-{_digest(kind)}.so"


def _compile(kind: Kind, path: Path) -> None:
    """Another start at the same time finds all of it or nothing, and so does one after a power cut."""
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise FileNotFoundError("a C++ compiler would make them: apt-get install g++")
    log.info("compiling %s for %s, once", SOURCE.name, kind)
    with TemporaryDirectory(dir=path.parent) as directory:
        made = Path(directory, path.name)
        command = [compiler, *FLAGS[kind], f"-I{FOLDER}", str(SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        made.chmod(0o755)  # whatever the umask
        _seal(made)
        made.replace(path)


def _seal(path: Path) -> None:
    """Adds a digest of its content, which a loader does not look at; all of it is on the disk then."""
    with path.open("r+b") as file:
        digest = hashlib.sha256(file.read()).digest()
        file.write(digest)
        file.flush()
        os.fsync(file.fileno())


def _obstacle(path: Path) -> str:
    """Why it can't be loaded, such as a library of another host that is older here; "" where it can. To load
    a file that is cut may end the process, so its digest is looked at first.
    """
    content = path.read_bytes()
    length = hashlib.sha256().digest_size
    if hashlib.sha256(content[:-length]).digest() != content[-length:]:
        return "its content is not what was compiled"
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error)
    return ""


def _make_private(folder: Path) -> None:
    """So that only its owner writes there: what lies in it is run."""
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o755, exist_ok=True)
    found = folder.stat()
    if found.st_uid == os.getuid() and found.st_mode & WRITTEN_BY_OTHERS:
        folder.chmod(0o755)
    _refuse_what_others_write(folder)


def _refuse_what_others_write(path: Path) -> None:
    found = path.stat(follow_symlinks=False)
    if found.st_uid not in trusted_owners() or found.st_mode & WRITTEN_BY_OTHERS:
        raise PermissionError(
            f"{path} belongs to another user, or other users may write it: remove it, or take their right to"
            " write"
        )


def trusted_owners() -> set[int]:
    """This user, and root, which made it for an image."""
    return {0, os.getuid()}


def _digest(kind: Kind) -> str:
    sources = [SOURCE.read_bytes(), *(path.read_bytes() for path in sorted(FOLDER.glob("*.h")))]
    made_from = b"\n".join([*sources, *map(str.encode, FLAGS[kind])])
    return hashlib.sha256(made_from).hexdigest()[:16]


def _tiles_are_allowed() -> bool:
    """Asks for them, as every process has to before its first:
    arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA).
    """
    refused: int = ctypes.CDLL(None).syscall(158, 0x1023, 18)
    return refused == 0


def kinds_for(machine: str) -> list[Kind]:
    """What an image for such machines has; on ARM64 nothing."""
    return list(Kind) if machine == "x86_64" else []


if __name__ == "__main__":
    _make_private(_path(Kind.AVX2).parent)  # the image has it, empty or not
    print(*map(compiled, kinds_for(platform.machine())), sep="\n")
