"""What the toy engine answers, as text: the questions of the server's tests, and what is expected of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from python_backends.nouns.request import Sampling
from tests.support.server.toy_model import VOCAB_SIZE
from tests.support.toy_answers import toy_answer

PROMPT = "def read(self, size=-1):"
FORTY = {"max_tokens": 40, "min_tokens": 40}


class Expected:
    """The toy engine's answers as text, worked out here."""

    def __init__(self, model: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self._eos = self._tokenizer.token_to_id("<|end|>")

    def tokens(self, prompt: str, **sampling: Any) -> list[int]:
        chosen = Sampling(**{"max_tokens": 256, "stop_ids": (self._eos,), **sampling})
        return toy_answer(np.array(self.ids(prompt), np.int32), chosen, VOCAB_SIZE)

    def decode(self, tokens: list[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)

    def ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, prompt: str, **sampling: Any) -> str:
        return self.decode(self.tokens(prompt, **sampling))

    def before(self, stop_word: str, prompt: str, **sampling: Any) -> str:
        return self.text(prompt, **sampling).split(stop_word)[0]
