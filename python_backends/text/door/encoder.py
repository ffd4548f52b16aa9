"""Prompts to token ids. A special token counts only where the chat template means it, never in what users
write.

The tokenizer here is a copy that passes special tokens by and finds them under the secret spelling of
`SpecialTokens` instead. Everything is encoded as one string, so that ordinary content gets exactly the ids
that transformers gives it. Called by the door.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, Tokenizer

from python_backends.nouns.request import Ids, RefusedError
from python_backends.text.checkpoint import CheckpointError
from python_backends.text.door.special_tokens import SpecialTokens

# for each token that a prompt may have: most prompts with more bytes than that have too many tokens
DIRECT_BYTES = 6
PIECE_BYTES = 4  # the same, of each piece of a longer prompt
FEWEST_BYTES = 4096  # are encoded at once, however few tokens are allowed


class PromptEncoder:
    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        """Raises CheckpointError if the tokenizer would not tell our
        spelling of special tokens from users'.
        """
        _check_normalizer(tokenizer, special)
        self._special = special
        self._tokenizer = _copy(tokenizer, special)
        self._true_ids, self._forbidden = self._tables()
        self._before, self._behind = self._frame()

    def encode(self, texts: Iterable[str]) -> list[Ids | RefusedError]:
        """The ids of each text, without those that open or close a prompt."""
        return [self.ids(self.encoding(text)) for text in texts]

    def encoding(self, text: str) -> Encoding:
        """What `ids` reads; also knows which characters each token represents. It
        is 20 times as large as the ids: don't keep it.
        """
        return self._tokenizer.encode(text, add_special_tokens=False)

    def has_far_more_tokens(self, text: str, most: int) -> bool:
        """Whether `text` certainly has more tokens than `most`. A text that is long for its limit is encoded
        in pieces until this is known; a cut may add tokens, so twice as many are asked for. The cost depends
        on `most`, not on the length of the text.
        """
        data = text.encode()
        if len(data) <= max(FEWEST_BYTES, DIRECT_BYTES * most):
            return False
        size, count = max(FEWEST_BYTES, PIECE_BYTES * most), 0
        for begin in range(0, len(data), size):
            count += len(self.encoding(data[begin : begin + size].decode(errors="ignore")))
            if count > 2 * most:
                return True
        return False

    def ids(self, encoding: Encoding) -> Ids | RefusedError:
        """Some vocabularies (Unigram) hold special tokens as words, and find them
        where the search for added tokens passed by.
        """
        raw = np.array(encoding.ids, np.int32)
        if self._forbidden[raw].any():
            token = self._tokenizer.id_to_token(int(raw[self._forbidden[raw]][0]))
            return RefusedError(
                f"{token!r} in the prompt: this model's tokenizer can't take it as plain text"
            )
        return self._true_ids[raw]

    def framed(self, ids: Ids) -> Ids:
        """With the ids that the tokenizer puts around a plain prompt
        (BOS); a chat template writes its own.
        """
        return np.concatenate([self._before, ids, self._behind])

    def _tables(self) -> tuple[Ids, NDArray[np.bool_]]:
        """By id of the copy: the model's id, and whether it must not come from plain text."""
        size = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        true_ids, forbidden = np.arange(size, dtype=np.int32), np.zeros(size, np.bool_)
        unknown = _unknown(self._tokenizer)
        for text in self._special.tokens:
            true_id = self._tokenizer.token_to_id(text)
            true_ids[self._tokenizer.token_to_id(self._special.meant(text))] = true_id
            forbidden[true_id] = (
                text != unknown
            )  # a character that the vocabulary lacks becomes "unknown"; this is no special token of a user
        return true_ids, forbidden

    def _frame(self) -> tuple[Ids, Ids]:
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare) if bare else len(full)
        return np.array(full[:at], np.int32), np.array(full[at + len(bare) :], np.int32)


def _check_normalizer(tokenizer: Tokenizer, special: SpecialTokens) -> None:
    """Most added tokens are found before the text is normalized, so that their spelling cannot be changed."""
    for text, token in special.tokens.items():
        if not (token.normalized and tokenizer.normalizer):
            continue
        if special.meant("") not in tokenizer.normalizer.normalize_str(special.meant(text)):
            raise CheckpointError(
                f"tokenizer.json: its normalizer changes private-use characters, and finds {text!r} only"
                " after that"
            )


def _unknown(tokenizer: Tokenizer) -> str | None:
    """The token for what the vocabulary lacks."""
    model = json.loads(tokenizer.model.__getstate__())  # its JSON; the library shows a Unigram's no other way
    unknown_id = model.get("unk_id")
    return tokenizer.id_to_token(unknown_id) if unknown_id is not None else model.get("unk_token")


def _copy(tokenizer: Tokenizer, special: SpecialTokens) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    # those that only the configuration calls special become so
    copy.add_special_tokens(list(special.tokens.values()))
    copy.encode_special_tokens = True  # the library's name for: encode their text, don't look for them
    copy.add_tokens([_renamed(token, special.meant(text)) for text, token in special.tokens.items()])
    return copy


def _renamed(token: AddedToken, text: str) -> AddedToken:
    """Found by the same rules under another name; not special to the
    library, which passes special ones by.
    """
    return AddedToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
