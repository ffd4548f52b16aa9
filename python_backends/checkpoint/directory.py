"""A checkpoint in a directory, as Hugging Face lays it out: JSON files, tokenizer.json, and safetensors or
PyTorch's own files, whole or in shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Tokenizer

from python_backends.checkpoint import weight_files
from python_backends.checkpoint.added_tokens import complete
from python_backends.checkpoint.digests import digest_of
from python_backends.checkpoint.source import CheckpointError, Stored
from python_backends.checkpoint.tables import read_table, text_part
from python_backends.checkpoint.templates import find_template

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"


class DirectorySource:
    """See `Source`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def config(self) -> dict[str, Any]:
        return text_part(read_table(self.path / CONFIG))

    @cached_property
    def generation(self) -> dict[str, Any]:
        return read_table(self.path / "generation_config.json")

    @cached_property
    def texts(self) -> dict[str, Any]:
        names = ("special_tokens_map.json", "tokenizer_config.json")
        return {key: value for name in names for key, value in read_table(self.path / name).items()}

    @cached_property
    def chat_template(self) -> tuple[str | None, Path | None]:
        return find_template(self.path, self.texts)

    def tokenizer(self) -> Tokenizer:
        """With the tokens that only its configuration knows."""
        path = self.path / TOKENIZER
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: a checkpoint needs a fast tokenizer (tokenizer.json)")
        try:
            tokenizer = Tokenizer.from_buffer(path.read_bytes())  # takes any path
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"{path}: {error}") from error
        complete(tokenizer, self.texts, read_table(self.path / "added_tokens.json"))
        return tokenizer

    @cached_property
    def tensors(self) -> Mapping[str, Stored]:
        return weight_files.tensors_of(self.path)

    def read(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        return weight_files.read(name, self.tensors[name], device)

    def digest(self) -> str:
        texts = [self.path / name for name in (CONFIG, TOKENIZER)]
        weights = self.path.glob("*.safetensors")
        return digest_of(texts, sorted(weights) or sorted(self.path.glob("*.bin")))
