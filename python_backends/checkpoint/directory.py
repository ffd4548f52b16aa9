"""A checkpoint in a directory, as Hugging Face lays it out: JSON files, tokenizer.json, and safetensors or
PyTorch's own files, whole or in shards.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import Regex, Tokenizer
from tokenizers.pre_tokenizers import Split
from tokenizers.processors import Sequence, TemplateProcessing

from python_backends.checkpoint import weight_files
from python_backends.checkpoint.added_tokens import complete, content
from python_backends.checkpoint.digests import digest_of
from python_backends.checkpoint.gguf.splits import LLAMA3, TEKKEN
from python_backends.checkpoint.quantisation import read_layout
from python_backends.checkpoint.quantised_tensors import QuantisedTensors
from python_backends.checkpoint.rows import in_pieces
from python_backends.checkpoint.source import CheckpointError, Stored
from python_backends.checkpoint.tables import read_table, text_part
from python_backends.checkpoint.templates import find_template

if TYPE_CHECKING:
    import torch

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
INST, INST_ID = "[INST]", 3  # as Tekken's vocabularies have it


def what_it_is(path: Path) -> str:
    """Of a directory without a model: ": …" with what to do, where that is known."""
    if (path / "adapter_config.json").is_file():
        return ": this is a LoRA adapter; serve its model, and put it into a directory in adapters.directory"
    if (path / "snapshots").is_dir():
        return ": this is a model's place in the hub's cache; serve a directory in its snapshots"
    return ""


class DirectorySource:
    """See `Source`."""

    lends_memory = True

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
        """With the tokens that only its configuration knows, and without what one text of a batch gets and
        loses, which a tokenizer keeps when it is saved.
        """
        path = self.path / TOKENIZER
        if not path.is_file():
            raise CheckpointError(f"{path} is missing: a checkpoint needs a fast tokenizer (tokenizer.json)")
        try:
            tokenizer = Tokenizer.from_buffer(path.read_bytes())  # takes any path
        except Exception as error:  # the library raises nothing more specific
            raise CheckpointError(f"{path}: {error}") from error
        tokenizer.no_padding()
        tokenizer.no_truncation()
        _cut_as_trained(tokenizer)
        complete(tokenizer, self.texts, read_table(self.path / "added_tokens.json"))
        _begin_with_bos(tokenizer, self.texts)
        return tokenizer

    @property
    def tensors(self) -> Mapping[str, Stored]:
        return self._stored if self._quantised is None else self._quantised.tensors

    def read(
        self, name: str, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        def read(stored: str) -> torch.Tensor:
            return weight_files.read(stored, self._stored[stored], device)

        return read(name) if self._quantised is None else self._quantised.read(name, read)

    def rows(self, name: str, dtype: torch.dtype | None = None) -> Iterator[torch.Tensor]:
        return in_pieces(self.read(name, dtype=dtype))

    def groups(self, _name: str) -> None:
        return None

    @cached_property
    def _stored(self) -> Mapping[str, Stored]:
        return weight_files.tensors_of(self.path)

    @cached_property
    def _quantised(self) -> QuantisedTensors | None:
        """None, too, of a scheme that is not known: who computes with the weights refuses it."""
        try:
            layout = read_layout(self.path / CONFIG, self.config)
        except CheckpointError:
            return None
        return None if layout is None else QuantisedTensors(layout, self._stored)

    def digest(self) -> str:
        texts = [self.path / name for name in (CONFIG, TOKENIZER)]
        files = sorted(path for path in self.path.iterdir() if path.is_file()) if self.path.is_dir() else []
        weights = [path for path in files if path.suffix == ".safetensors"]
        return digest_of(texts, weights or [path for path in files if path.suffix == ".bin"])


def _cut_as_trained(tokenizer: Tokenizer) -> None:
    """transformers has written Llama 3's words with Tekken's vocabulary, of Mistral Small 3.1 and models made
    from it; Mistral trained them with Tekken's.
    """
    steps = tokenizer.pre_tokenizer and json.loads(tokenizer.pre_tokenizer.__getstate__())
    first = ((steps or {}).get("pretokenizers") or [{}])[0]
    if first.get("pattern") == {"Regex": LLAMA3} and tokenizer.token_to_id(INST) == INST_ID:
        tokenizer.pre_tokenizer[0] = Split(Regex(TEKKEN), "isolated")


def _begin_with_bos(tokenizer: Tokenizer, texts: Mapping[str, Any]) -> None:
    """As `add_bos_token` says, where tokenizer.json puts nothing around a prompt: DeepSeek's. transformers 4
    did so for Llama's tokenizers, and llama.cpp does; transformers 5 ignores the field.
    """
    bos = content(texts.get("bos_token"))
    bos_id, own = tokenizer.token_to_id(bos), tokenizer.post_processor
    if texts.get("add_bos_token") is not True or bos_id is None or tokenizer.num_special_tokens_to_add(False):
        return
    frame = TemplateProcessing([bos, "$A"], special_tokens=[(bos, bos_id)])
    tokenizer.post_processor = frame if own is None else Sequence([own, frame])
