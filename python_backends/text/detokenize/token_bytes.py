"""The bytes that each token adds to an answer: one table per vocabulary, made once from the tokenizer's
decoder.

The bytes of an answer are the bytes of its tokens, concatenated; this also joins the parts of a character
that is split over tokens. Only the first token of a text may have other bytes: SentencePiece drops the space
before it. The answer in a chat is such a text; an answer that continues a plain prompt is not. Made for the
detokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from python_backends.text.checkpoint import Checkpoint
from python_backends.text.detokenize.spelling import spelling

# A token without text (special, or a padded row of the vocabulary) is a wall: the text before it ends there,
# even within a character or a stop word. So every token has at least one byte, and n tokens have at least n
# bytes. 0xFF can't occur in UTF-8; a token that contains it gets 0xFE instead, which also becomes U+FFFD.
WALL = b"\xff"

MAX_LEAD_TOKENS = 8  # an answer's leading space is dropped if it comes within this many tokens


@dataclass(frozen=True, slots=True)
class TokenBytes:
    table: list[bytes]  # by token id
    firsts: dict[int, bytes]  # by token id: bytes at the start of an answer, where they are different

    def begin(self, tokens: Sequence[int], spelled: list[bytes]) -> str:
        """Corrects the start of `spelled`, the bytes of an answer's tokens, in place. Returns the text that
        this removes (a space).
        """
        for i, token in enumerate(tokens[:MAX_LEAD_TOKENS]):
            if token in self.firsts:
                later, spelled[i] = spelled[i], self.firsts[token]
                first = self.firsts[token].removeprefix(WALL)
                return later.removesuffix(first).decode() if later.endswith(first) else ""
            if self.table[token] != WALL:
                return ""
        return ""


def token_bytes(checkpoint: Checkpoint) -> TokenBytes:
    """Makes the table of a checkpoint. Raises CheckpointError if the decoder can't work token by token."""
    tokenizer = checkpoint.tokenizer
    spell = spelling(tokenizer.decoder)
    table, firsts = [WALL] * checkpoint.vocab_size, {}
    for token_id in range(checkpoint.vocab_size):
        text = tokenizer.id_to_token(token_id)
        if text is not None and text not in checkpoint.special_tokens:
            table[token_id], first = _safe(spell(text, False)), _safe(spell(text, True))
            if first != table[token_id]:
                firsts[token_id] = first
    return TokenBytes(table, firsts)


def _safe(spelled: bytes) -> bytes:
    return spelled.replace(b"\xff", b"\xfe") or WALL
