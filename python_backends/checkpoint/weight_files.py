"""Which files of a directory hold its weights, which tensors lie in them, and reading one.

As transformers does, a whole file goes before an index, and safetensors before PyTorch's own files. A tensor
that lies in two shards is the one in the last of them. Owns nothing. Called by `directory`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

import numpy as np
from safetensors import safe_open

from python_backends.checkpoint.source import CheckpointError, Stored
from python_backends.checkpoint.tables import read_table

if TYPE_CHECKING:
    import torch

FORMATS = ("model.safetensors", "pytorch_model.bin")  # the first that there is
HEADER_BYTES = 8  # the length of the header that follows them
PICKLED = {  # PyTorch's names of types, as safetensors has them
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int8": "I8",
    "uint8": "U8",
}
TYPES = {  # safetensors' names of types, as PyTorch has them
    **{name: plain for plain, name in PICKLED.items()},
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (16, 32, 64)},
}


def tensors_of(directory: Path) -> Mapping[str, Stored]:
    """Empty if there are no weights. Raises CheckpointError by the name of the file that is missing or can't
    be read.
    """
    found: dict[str, Stored] = {}
    for path in _files(directory):
        try:
            _check_regular(path)
            found |= _pickled(path) if path.suffix == ".bin" else _tensors(path)
        except Exception as error:  # whatever the readers raise
            raise unreadable(path, error) from error
    return found


def read(name: str, stored: Stored, device: torch.device | str) -> torch.Tensor:
    try:
        found = _unpickled(stored.file)[name] if stored.begin is None else _mapped(stored, stored.begin)
        return found.to(device)
    except MemoryError:
        raise
    except Exception as error:
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            raise
        raise unreadable(stored.file, error) from error


def unreadable(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, FileNotFoundError):
        return CheckpointError(f"{path}: it is missing: the index of the weights names it")
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return CheckpointError(f"{path} can't be loaded: {reason:.300}")


def _files(directory: Path) -> list[Path]:
    for name in FORMATS:
        if (directory / name).is_file():
            return [directory / name]
        index = directory / f"{name}.index.json"
        if index.is_file():
            return _indexed(index, read_table(index).get("weight_map"))
    return []


def _indexed(index: Path, files: object) -> list[Path]:
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise CheckpointError(f"{index}: weight_map must be an object: the file of each tensor by its name")
    for name in files.values():
        if name in ("", ".") or Path(name).is_absolute() or ".." in Path(name).parts:
            raise CheckpointError(f"{index}: weight_map names {name!r:.100}: must be a file of the directory")
    return sorted({index.parent / name for name in files.values()})


def _check_regular(path: Path) -> None:
    """A pipe would be waited for without end. Raises OSError, ValueError."""
    if not S_ISREG(path.stat().st_mode):
        raise ValueError("it is no regular file")


def _tensors(path: Path) -> dict[str, Stored]:
    with safe_open(path, framework="np") as file:  # checks the whole header
        shapes = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        stored = {name: (tuple(each.get_shape()), each.get_dtype()) for name, each in shapes.items()}
    with path.open("rb") as opened:
        length = int.from_bytes(opened.read(HEADER_BYTES), "little")
        header = json.loads(opened.read(length))
    found = {}
    for name, (shape, dtype) in stored.items():
        begin, end = header[name]["data_offsets"]
        found[name] = Stored(shape, dtype, path, HEADER_BYTES + length + begin, end - begin)
    return found


def _mapped(stored: Stored, begin: int) -> torch.Tensor:
    """Mapped from the file, whose header is not read again: of a mixture it may be a megabyte long. Raises
    OSError, ValueError.
    """
    import torch

    if stored.dtype not in TYPES:
        raise ValueError(f"numbers of type {stored.dtype} are not read; {', '.join(TYPES)} are")
    kind = getattr(torch, TYPES[stored.dtype])
    if not stored.num_bytes:
        return torch.empty(stored.shape, dtype=kind)
    numbers = torch.from_numpy(np.memmap(stored.file, np.uint8, "c", begin, (stored.num_bytes,)))
    lies_well = begin % kind.itemsize == 0
    return (numbers if lies_well else numbers.clone()).view(kind).view(stored.shape)


def _pickled(path: Path) -> dict[str, Stored]:
    return {
        name: Stored(tuple(tensor.shape), PICKLED.get(str(tensor.dtype).removeprefix("torch."), "?"), path)
        for name, tensor in _unpickled(path).items()
    }


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    """No code of the file runs."""
    return _kept(path, path.stat().st_mtime_ns) if zipfile.is_zipfile(path) else _loaded(path, False)


@lru_cache(maxsize=2)  # tensors of a layer may lie in two shards
def _kept(path: Path, _changed_ns: int) -> dict[str, torch.Tensor]:
    """Mapped from the file, so to keep it takes no memory."""
    return _loaded(path, True)


def _loaded(path: Path, is_mapped: bool) -> dict[str, torch.Tensor]:
    import torch

    found = torch.load(path, "cpu", weights_only=True, mmap=is_mapped)
    if not isinstance(found, dict) or not all(
        isinstance(name, str) and isinstance(each, torch.Tensor) for name, each in found.items()
    ):
        raise TypeError("it must hold tensors by their names")
    return found
