"""Turns prompts into token ids. The special tokens of the chat template become special tokens; the same text
in a user's content stays text.

The tokenizer here is a copy that ignores the normal spelling of special tokens and finds their secret
spelling (`SpecialTokens`) instead. The prompt is encoded as one string, so that ordinary content gets exactly
the ids that transformers gives it. Called by the door.
"""

from __future__ import annotations

import json

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Encoding, Tokenizer

from python_backends.checkpoint.source import CheckpointError
from python_backends.nouns.request import Ids, RefusedError
from python_backends.text.checkpoint import num_ids
from python_backends.text.door.special_tokens import SpecialTokens

# A prompt with at most this many bytes for each token of its limit is encoded at once: most longer ones have
# too many tokens.
DIRECT_BYTES = 6
PIECE_BYTES = 4  # a longer prompt is counted in pieces of this many bytes for each token of its limit
FEWEST_BYTES = 4096  # this many bytes are always encoded at once
BEFORE = "\n"  # a text that another one follows
SPACE = "\u2581"  # as tokens have it


class PromptEncoder:
    """Turns texts in the secret spelling of `special` into the model's token ids. Never changes."""

    def __init__(self, tokenizer: Tokenizer, special: SpecialTokens) -> None:
        """Raises CheckpointError if the tokenizer can't distinguish the secret spelling of special tokens
        from users' text.
        """
        _check_normalizer(tokenizer, special)
        self._special = special
        self._num_ids = num_ids(tokenizer)  # those above, of the copy alone, are the secret spellings
        self._tokenizer = _copy(tokenizer, special)
        self._true_ids, self._forbidden = self._tables()
        self._before, self._behind = self._frame()
        first = self._tokenizer.encode("a", add_special_tokens=False).tokens[:1]
        self.puts_space = any(token.startswith(SPACE) for token in first)

    def encode(self, text: str) -> Ids:
        """Returns the ids of a text, without those that begin or end a prompt (see `framed`). Raises
        RefusedError.
        """
        return self.ids(self.encoding(text))

    def continued(self, text: str) -> Ids:
        """Likewise, of a text that follows another one: without the space that Llama 2's tokenizer and its
        like put before each text. Raises RefusedError.
        """
        before, both = self.encode(BEFORE), self.encode(BEFORE + text)
        is_apart = len(both) > len(before) and np.array_equal(both[: len(before)], before)
        return both[len(before) :] if self.puts_space and is_apart else self.encode(text)

    def encoding(self, text: str) -> Encoding:
        """Returns what `ids` reads. It also has the characters of each token. It is 20 times as large as the
        ids: don't keep it.
        """
        return self._tokenizer.encode(text, add_special_tokens=False)

    def has_far_more_tokens(self, text: str, most: int) -> bool:
        """Returns whether `text` certainly has more tokens than `most`. A text that is long for its limit is
        encoded in pieces until this is known. Because a cut may add tokens, the pieces must have more than
        2 * most. The cost depends on `most`, not on the length of the text.
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

    def ids(self, encoding: Encoding) -> Ids:
        """Returns the model's ids. Raises RefusedError if users' text became a special token: some
        vocabularies (Unigram) contain special tokens also as words, and find them after the search for added
        tokens has ignored them.
        """
        raw = np.array(encoding.ids, np.int32)
        if self._forbidden[raw].any():
            token = self._tokenizer.id_to_token(int(raw[self._forbidden[raw]][0]))
            raise RefusedError(f"{token!r} in the prompt: this model's tokenizer can't take it as plain text")
        return self._true_ids[raw]

    def decoded(self, ids: Ids) -> str:
        """Returns the text of a prompt that came as ids, special tokens as they are spelled."""
        known = ids[ids < self._num_ids]  # padded rows of the embedding have no text
        return self._tokenizer.decode(known.tolist(), skip_special_tokens=False)

    def token(self, token_id: int) -> str | None:
        return self._tokenizer.id_to_token(token_id)

    def is_special(self, token_id: int) -> bool:
        return bool(token_id < len(self._forbidden) and self._forbidden[token_id])

    def framed(self, ids: Ids) -> Ids:
        """Returns `ids` with those that the tokenizer puts around a plain prompt (BOS); a chat template
        writes its own.
        """
        return np.concatenate([self._before, ids, self._behind])

    def _tables(self) -> tuple[Ids, NDArray[np.bool_]]:
        """Returns two arrays by the copy's ids: the model's id; whether plain text must not have this id."""
        size = num_ids(self._tokenizer)
        true_ids, forbidden = np.arange(size, dtype=np.int32), np.zeros(size, np.bool_)
        unknown = _unknown(self._tokenizer)
        for text in self._special.tokens:
            true_id = self._tokenizer.token_to_id(text)
            true_ids[self._tokenizer.token_to_id(self._special.meant(text))] = true_id
            forbidden[true_id] = text != unknown  # plain text that the vocabulary lacks becomes "unknown"
        return true_ids, forbidden

    def _frame(self) -> tuple[Ids, Ids]:
        bare = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a", add_special_tokens=True).ids
        at = next(i for i in range(len(full)) if full[i : i + len(bare)] == bare) if bare else len(full)
        return np.array(full[:at], np.int32), np.array(full[at + len(bare) :], np.int32)


def _check_normalizer(tokenizer: Tokenizer, special: SpecialTokens) -> None:
    """Raises CheckpointError if the normalizer removes the secret before special tokens are found. Most added
    tokens are found before the text is normalized.
    """
    for text, token in special.tokens.items():
        if not (token.normalized and tokenizer.normalizer):
            continue
        if special.meant("") not in tokenizer.normalizer.normalize_str(special.meant(text)):
            raise CheckpointError(
                f"tokenizer.json: its normalizer changes private-use characters before it looks for {text!r};"
                " this is not supported"
            )


def _unknown(tokenizer: Tokenizer) -> str | None:
    """Returns the token for text that the vocabulary lacks."""
    model = json.loads(tokenizer.model.__getstate__())  # its JSON: the only access to a Unigram's
    unknown_id = model.get("unk_id")
    return tokenizer.id_to_token(unknown_id) if unknown_id is not None else model.get("unk_token")


def _copy(tokenizer: Tokenizer, special: SpecialTokens) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    # makes those special that only the configuration names as special
    copy.add_special_tokens(list(special.tokens.values()))
    copy.encode_special_tokens = True  # to the library: encode their text as plain text
    copy.add_tokens([_renamed(token, special.meant(text)) for text, token in special.tokens.items()])
    return copy


def _renamed(token: AddedToken, text: str) -> AddedToken:
    """Returns a copy of `token` with another text and the same rules. It is not special to the library, which
    ignores special tokens here.
    """
    return AddedToken(
        text,
        single_word=token.single_word,
        lstrip=token.lstrip,
        rstrip=token.rstrip,
        normalized=token.normalized,
        special=False,
    )
