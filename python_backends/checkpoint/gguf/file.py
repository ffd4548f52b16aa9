"""A GGUF file as a source. Called by `opening`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from python_backends.checkpoint.digests import digest_of
from python_backends.checkpoint.gguf import tensors
from python_backends.checkpoint.gguf.architectures import Architecture
from python_backends.checkpoint.gguf.configuration import architecture_of, config_of
from python_backends.checkpoint.gguf.ends import end_ids
from python_backends.checkpoint.gguf.groups import groups_of
from python_backends.checkpoint.gguf.header import Header, read_header
from python_backends.checkpoint.gguf.metadata import Metadata
from python_backends.checkpoint.gguf.tokenizer import named_tokens, tokenizer_of
from python_backends.checkpoint.source import CheckpointError, Groups, Stored
from python_backends.checkpoint.templates import FOR_TOOLS, joined

if TYPE_CHECKING:
    import torch

TEMPLATE = "tokenizer.chat_template"


def gguf_files(directory: Path) -> list[Path]:
    """Those that may be a model: not the part of one that sees images."""
    return sorted(path for path in directory.glob("*.gguf") if not path.name.startswith("mmproj"))


class GgufSource:
    """See `Source`. `path`: the file, or a directory that has one."""

    lends_memory = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return config_of(self._metadata, self._header, self._factors)

    @cached_property
    def generation(self) -> dict[str, Any]:
        ends = end_ids(self._metadata)
        return {"eos_token_id": ends} if ends else {}

    @cached_property
    def texts(self) -> dict[str, Any]:
        return named_tokens(self._metadata)

    @cached_property
    def chat_template(self) -> tuple[str | None, Path | None]:
        template = self._metadata.text(TEMPLATE, "")
        for_tools = self._metadata.text(f"{TEMPLATE}.{FOR_TOOLS}", "")
        return (joined(template, for_tools), self._file) if template.strip() else (None, None)

    def tokenizer(self) -> Tokenizer:
        try:
            return tokenizer_of(self._metadata)
        except CheckpointError:
            raise
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"{self._file}: its tokenizer can't be used: {error}") from error

    @cached_property
    def tensors(self) -> Mapping[str, Stored]:
        found = {name: self._stored(name) for name in self._header.tensors}
        tensors.check_places(found, self._header)
        return {name: self._shown(own, found[own]) for name, own in self._names.items()}

    def read(
        self, name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        changed = tensors.as_transformers_has_it(self._architecture, self._num_heads)
        own = self._names[name]
        with self._reading(own):
            return changed(own, tensors.values_of(self._stored(own), own, dtype)).to(device)

    def rows(self, name: str, dtype: torch.dtype | None = None) -> Iterator[torch.Tensor]:
        """transformers has an embedding and a head as the file has them."""
        own = self._names[name]
        with self._reading(own):
            for some in tensors.rows_of(self._stored(own), own):
                yield some.to(dtype or some.dtype)

    def groups(self, name: str) -> Groups | None:
        changed = tensors.as_transformers_has_it(self._architecture, self._num_heads)
        own = self._names[name]
        with self._reading(own):
            found = groups_of(self._stored(own))
        if found is None or tensors.is_turned(self._architecture, own, found.codes.shape):
            return None
        minima = None if found.minima is None else changed(own, found.minima)
        return Groups(changed(own, found.codes), changed(own, found.scales), minima)

    def digest(self) -> str:
        try:
            file, length = self._file, self._header.num_bytes
        except CheckpointError:
            return digest_of([], [self.path] if self.path.is_file() else [])
        with file.open("rb") as opened:
            header = hashlib.sha256(opened.read(length)).hexdigest()
        return hashlib.sha256(f"{header} {digest_of([], [file])}".encode()).hexdigest()[:16]

    @cached_property
    def _file(self) -> Path:
        if not self.path.is_dir():
            return self.path
        files = gguf_files(self.path)
        if len(files) != 1:
            names = ", ".join(path.name for path in files)
            raise CheckpointError(f"{self.path}: has {len(files)} GGUF files, name one of them: {names:.300}")
        return files[0]

    @cached_property
    def _header(self) -> Header:
        return read_header(self._file)

    @cached_property
    def _metadata(self) -> Metadata:
        return Metadata(self._header.metadata, self._file)

    @cached_property
    def _architecture(self) -> Architecture:
        return architecture_of(self._metadata)

    @cached_property
    def _names(self) -> dict[str, str]:
        return tensors.names_of(self._architecture, self._header)

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{self._file}: tensor {name} can't be read: {error}") from error

    def _stored(self, name: str) -> Stored:
        return tensors.stored(self._file, name, self._header.tensors[name])

    def _shown(self, name: str, stored: Stored) -> Stored:
        turned = tensors.is_turned(self._architecture, name, stored.shape)
        return replace(stored, shape=stored.shape[::-1]) if turned else stored

    def _num_heads(self, module: str) -> int:
        config = self.config
        return int(config["num_attention_heads" if module == "attn_q" else "num_key_value_heads"])

    def _factors(self, name: str) -> Sequence[float] | None:
        if name not in self._header.tensors:
            return None
        return [float(value) for value in tensors.values_of(self._stored(name), name).ravel()]
