"""What each token adds to an answer, as bytes: one table per vocabulary, made once from the tokenizer's
decoder.

The bytes of an answer are those of its tokens, one after the other; so the two halves of a character are
joined. Only the token with which a text begins may have others: SentencePiece drops the space before it. An
answer in a chat is such a text; one that continues a plain prompt is not. Made for the detokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from python_backends.text.checkpoint import Checkpoint
from python_backends.text.detokenize.spelling import spelling

# A token without text (special, or a padded row of the vocabulary) is a wall: what stands before it is
# finished, be it half a character or half a stop word. So every token has at least one byte, and a number of
# tokens bounds a number of bytes. 0xFF can't occur in UTF-8; a token that really has it gets 0xFE, which is
# printed as the same U+FFFD.
WALL = b"\xff"

MAX_LEAD_TOKENS = 8  # an answer's leading space is dropped if it comes within this many tokens


@dataclass(frozen=True, slots=True)
class TokenBytes:
    table: list[bytes]  # by token id
    firsts: dict[int, bytes]  # by token id, where an answer that begins with the token begins otherwise

    def begin(self, tokens: Sequence[int], spelled: list[bytes]) -> str:
        """Corrects the beginning of `spelled`, the bytes of an answer's tokens; returns how many bytes this
        removes (a space).
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
    """Raises CheckpointError if the tokenizer's decoder can't print an answer piece by piece."""
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
