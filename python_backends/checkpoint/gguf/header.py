"""The header of a GGUF file: its metadata and where its tensors lie. Files of strangers: they may hold
anything.

Not by the package gguf, whose reader takes seconds for a vocabulary and trusts every length.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import Any

from python_backends.checkpoint.source import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST_DIMENSIONS = 4
ALIGNMENT = 32  # where the file does not say
STRING, ARRAY = 8, 9
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor as the header names it."""

    shape: tuple[int, ...]  # the rows first, as torch has it
    kind: int  # of ggml's types
    begin: int  # in the file


@dataclass(frozen=True, slots=True)
class Header:
    metadata: dict[str, Any]  # numbers, texts, and lists of them
    tensors: dict[str, Entry]
    num_bytes: int  # of the header itself
    alignment: int = ALIGNMENT  # of tensors in the file


def aligned(at: int, alignment: int) -> int:
    """The next place in a file, from `at` on, where a tensor may begin."""
    return -(-at // alignment) * alignment


def read_header(path: Path) -> Header:
    """Raises CheckpointError, which names the file and what is wrong in it."""
    try:
        if not S_ISREG(path.stat().st_mode):  # a pipe would be waited for without end
            raise CheckpointError("is no regular file")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return _Reader(content).header()
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except (OSError, ValueError) as error:  # an empty file can't be mapped
        raise CheckpointError(f"{path}: can't be read: {error}") from error


class _Reader:
    """Reads from the beginning on. Its CheckpointErrors do not name the file."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self._at, self._where = content, 0, "its first bytes"

    def header(self) -> Header:
        if self._take(len(MAGIC)) != MAGIC:
            raise CheckpointError("is not a GGUF file")
        version = self._number("I")
        if version not in VERSIONS:
            raise CheckpointError(
                "is in big-endian order; only little-endian files are read"
                if version and version % (1 << 16) == 0
                else f"is of version {version} of GGUF; {' and '.join(map(str, VERSIONS))} are read"
            )
        num_tensors, num_fields = self._number("Q"), self._number("Q")
        metadata: dict[str, Any] = {}
        for _ in range(num_fields):
            self._where = f"its metadata (after {next(reversed(metadata), 'the beginning')})"
            key = self._text()
            self._where = f"{key!r:.100} of its metadata"
            if key in metadata:
                raise CheckpointError(f"{self._where} is there twice")
            metadata[key] = self._value(self._number("I"))
        return self._with_tensors(metadata, num_tensors)

    def _with_tensors(self, metadata: dict[str, Any], num_tensors: int) -> Header:
        tensors: dict[str, Entry] = {}
        for _ in range(num_tensors):
            self._where = "its list of tensors"
            name = self._text()
            self._where = f"tensor {name!r:.100}"
            if name in tensors:
                raise CheckpointError(f"{self._where} is there twice")
            tensors[name] = Entry(self._shape(), self._number("I"), self._number("Q"))
        alignment = metadata.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise CheckpointError(f"general.alignment = {alignment!r}: must be a power of two")
        begin = aligned(self._at, alignment)
        moved = {name: Entry(each.shape, each.kind, begin + each.begin) for name, each in tensors.items()}
        return Header(metadata, moved, self._at, alignment)

    def _shape(self) -> tuple[int, ...]:
        count = self._number("I")
        if not 1 <= count <= MOST_DIMENSIONS:
            raise CheckpointError(f"{self._where} has {count} dimensions; 1 to {MOST_DIMENSIONS} are read")
        return tuple(reversed(struct.unpack(f"<{count}Q", self._take(8 * count))))

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._text()
        if kind == ARRAY:
            return self._values(self._number("I"), self._number("Q"))
        return self._number(self._letter(kind))

    def _values(self, kind: int, count: int) -> list[Any]:
        if kind != STRING:
            letter = self._letter(kind)
            return list(struct.unpack(f"<{count}{letter}", self._take(count * struct.calcsize(letter))))
        self._check(8 * count)
        return self._texts(count)

    def _letter(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise CheckpointError(f"{self._where} has a value of the unknown type {kind}")
        return NUMBERS[kind]

    def _number(self, letter: str) -> Any:
        return struct.unpack(f"<{letter}", self._take(struct.calcsize(f"<{letter}")))[0]

    def _text(self) -> str:
        return self._texts(1)[0]

    def _texts(self, count: int) -> list[str]:
        """One call for all: a vocabulary has some hundred thousand."""
        content, at, end, texts = self._content, self._at, len(self._content), []
        try:
            for _ in range(count):
                begin = at + 8
                at = begin + int.from_bytes(content[at:begin], "little")
                if at > end:
                    raise CheckpointError(f"ends in {self._where}: it is cut off or broken")
                texts.append(content[begin:at].decode())
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self._where} is not in UTF-8") from error
        self._at = at
        return texts

    def _take(self, size: int) -> bytes:
        self._check(size)
        begin, self._at = self._at, self._at + size
        return self._content[begin : self._at]

    def _check(self, size: int) -> None:
        if size > len(self._content) - self._at:
            raise CheckpointError(f"ends in {self._where}: it is cut off or broken")
