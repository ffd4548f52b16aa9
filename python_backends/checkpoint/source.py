"""Where a checkpoint lies, whatever its format: the same questions to a directory and to a single file.

Called by everything that reads a checkpoint; `opening.open_source` makes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tokenizers import Tokenizer

if TYPE_CHECKING:
    import torch


class CheckpointError(ValueError):
    """The checkpoint can't be served. The message, of one line, names the file and the problem."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor as it lies in its file."""

    shape: tuple[int, ...]
    dtype: str  # as safetensors names it: "BF16", "F32", "F8_E4M3" …; of GGUF, its own: "Q4_1" …
    file: Path
    begin: int | None = None  # of its bytes in the file; None: not known without reading it
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix of few bits: of neighbours in a row w = s·q + m, which in float32 is what `read` gives, to the
    last bit.
    """

    codes: torch.Tensor  # q [out, in]: from 0 to 15 of uint8, in groups of 32 with minima; or int8, of 16
    scales: torch.Tensor  # s [out, groups], float32
    minima: torch.Tensor | None  # m likewise; None: 0


class Source(Protocol):
    """Each property reads its files when it is first asked for, and raises CheckpointError."""

    path: Path  # the directory or the file
    lends_memory: bool  # what `read` gives may be mapped from its file, or be the source's own

    @property
    def config(self) -> dict[str, Any]:
        """config.json, with what it says of the text where a model takes images as well; {}: none."""
        ...

    @property
    def generation(self) -> dict[str, Any]:
        """generation_config.json; {}: none."""
        ...

    @property
    def texts(self) -> dict[str, Any]:
        """tokenizer_config.json over special_tokens_map.json."""
        ...

    @property
    def chat_template(self) -> tuple[str | None, Path | None]:
        """And the file where it was found; (None, None): there is none."""
        ...

    def tokenizer(self) -> Tokenizer:
        """A new one, which the caller may change."""
        ...

    @property
    def tensors(self) -> Mapping[str, Stored]:
        """By the names of transformers' modules; empty: there are no weights."""
        ...

    def read(
        self, name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        """A tensor of `tensors`, in the type in which it is stored; of GGUF in float32, or a matrix in
        `dtype`, without a copy in float32 of all of it. Brings torch along.
        """
        ...

    def rows(self, name: str, dtype: torch.dtype | None = None) -> Iterator[torch.Tensor]:
        """Those of an embedding or a head as `read` gives them, some at a time, so that not all of them need
        memory at once. The caller may give a piece's memory back.
        """
        ...

    def groups(self, name: str, /) -> Groups | None:
        """A matrix that is stored in few bits: in 4 by groups of 32, or in others, given as bytes for 16.
        None: it is not stored so.
        """
        ...

    def digest(self) -> str:
        """A short name of the content, whatever its path: 16 hexadecimal digits over configuration, tokenizer
        and samples of the weights. Never raises for files that can't be understood.
        """
        ...
