"""What each token adds to an answer, as bytes: one table per vocabulary, made once from the tokenizer's decoder.

The bytes of an answer are those of its tokens, one after the other; half characters meet their other half that way. Made for the
detokenizer. Knows the two families of today's language models: byte-level BPE, and SentencePiece (▁ for a space, <0x0A> for a byte).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from python_backends.text.checkpoint import Checkpoint, CheckpointError

# A token without text (special, or a padded row of the vocabulary) is a wall: what stands before it is finished, be it half a
# character or half a stop word. So every token has at least one byte, and a number of tokens bounds a number of bytes. 0xFF can't
# occur in UTF-8; a token that really has it gets 0xFE, which is printed as the same U+FFFD.
WALL = b"\xff"

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, slots=True)
class TokenBytes:
    table: list[bytes]  # by token id
    drops_space: bool  # the answer's first token loses the space that it begins with (all its spaces, if `drops_all`)
    drops_all: bool = False

    def first(self, token: bytes) -> bytes:
        """The bytes of a token with which the text of an answer begins."""
        if not self.drops_space or not token.startswith(b" "):
            return token
        return (token.replace(b" ", b"") if self.drops_all else token[1:]) or WALL


def token_bytes(checkpoint: Checkpoint) -> TokenBytes:
    """Raises CheckpointError if the tokenizer's decoder is of neither family."""
    decoder = checkpoint.tokenizer.decoder
    steps = list(_steps(json.loads(decoder.__getstate__()) if decoder else None))  # its JSON; the library shows it no other way
    spell = _spelling(steps)
    table = [WALL] * checkpoint.vocab_size
    for text, token_id in checkpoint.tokenizer.get_vocab(with_added_tokens=True).items():
        if text not in checkpoint.special_tokens:
            table[token_id] = spell(text).replace(b"\xff", b"\xfe") or WALL
    kinds = {step["type"] for step in steps}
    metaspace = [step for step in steps if step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never"]
    return TokenBytes(table, drops_space="Strip" in kinds or bool(metaspace), drops_all=bool(metaspace))


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    if decoder and decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    elif decoder:
        yield decoder


def _spelling(steps: list[dict[str, Any]]) -> Callable[[str], bytes]:
    """The function from a token as the vocabulary spells it to its bytes."""
    kinds = [step["type"] for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level
    odd = next((step for step in steps if not _is_known(step)), None)
    if odd is not None or not kinds:
        raise CheckpointError(f"tokenizer.json: can't print the tokens of a decoder {odd or kinds}")
    replacements = [(step["pattern"]["String"], step["content"]) for step in steps if step["type"] == "Replace"]
    replacements += [(step["replacement"], " ") for step in steps if step["type"] == "Metaspace"]
    return lambda token: _sentence_piece(token, replacements, "ByteFallback" in kinds)


def _is_known(step: dict[str, Any]) -> bool:
    if step["type"] == "Strip":
        return bool((step["content"], step["start"], step["stop"]) == (" ", 1, 0))
    if step["type"] == "Replace":
        return "String" in step["pattern"]
    return step["type"] in ("ByteFallback", "Fuse", "Metaspace")


def _sentence_piece(token: str, replacements: list[tuple[str, str]], has_bytes: bool) -> bytes:
    byte = _BYTE.fullmatch(token) if has_bytes else None
    if byte:
        return bytes([int(byte[1], 16)])
    for old, new in replacements:
        token = token.replace(old, new)
    return token.encode()


def _byte_level(token: str) -> bytes:
    """A token with a character outside the alphabet of bytes is an added one, and stands for itself."""
    try:
        return bytes(_BYTES[letter] for letter in token)
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's letters for bytes: printable Latin-1 stands for itself, the rest for the letters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
