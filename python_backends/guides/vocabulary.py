"""The tokens of a model as llguidance needs them: the bytes that each one adds to an answer.

Made once a process, when the first guide comes (128,000 tokens: half a second).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

from python_backends.guides.errors import GuideError

MOST_ENCODED = 2048  # texts whose tokens are kept
LONGEST_KEPT = 128  # characters


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The ids are places in `tokens`; those of the model's logits, no more."""

    tokens: Sequence[bytes]  # of a special token its name
    special_ids: Sequence[int]  # tokens that add no text
    end_ids: Sequence[int]  # any of them ends an answer
    encode: Callable[[str], list[int]]

    def compiled(self) -> LLTokenizer:
        """Raises GuideError where no answer of this model can end."""
        ends = [token for token in self.end_ids if token < len(self.tokens)]
        if not ends:
            raise GuideError("this model has no token that ends an answer, so no answer can follow a guide")
        return LLTokenizer(TokenizerWrapper(_Plain(self, ends[0])), len(self.tokens), ends)


class _Plain:
    """What TokenizerWrapper reads. Masks ask for the tokens of texts that a guide leaves no choice about: the
    same ones in each answer.
    """

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary, end_id: int) -> None:
        self.tokens, self.special_token_ids = vocabulary.tokens, vocabulary.special_ids
        self.eos_token_id, self._encode = end_id, vocabulary.encode
        self._encode_short = lru_cache(MOST_ENCODED)(vocabulary.encode)

    def __call__(self, text: str | bytes) -> list[int]:
        encode = self._encode_short if len(text) <= LONGEST_KEPT else self._encode
        return encode(text if isinstance(text, str) else text.decode())
