"""Turns the decoder of a tokenizer.json into a function from one token to its bytes, one function for each of
the decoder's steps.

An answer is sent in pieces. So a decoder is supported if the bytes of a token depend only on that token and
on whether the answer begins with it. The server refuses to start with any other decoder and names the step.
Called by `token_bytes`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from tokenizers import decoders

from python_backends.checkpoint.source import CheckpointError

Piece = str | bytes  # of text; bytes if it may be a part of a character
Spelling = Callable[[Piece, bool], Piece]  # the flag: the answer begins with this token
Step = dict[str, Any]

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_FUSING = ("ByteLevel", "Fuse")  # after these the library has one text for the whole answer, no tokens


def spelling(decoder: decoders.Decoder | None) -> Callable[[str, bool], bytes]:
    """Returns the function from (token, whether the answer begins with it) to bytes. Raises CheckpointError,
    which names the step that can't be done token by token.
    """
    if decoder is None:
        raise CheckpointError("tokenizer.json has no decoder, which is needed to turn tokens into text")
    steps = list(_steps(json.loads(decoder.__getstate__())))  # its JSON: the only access to it
    for i, step in enumerate(steps):
        if reason := _refusal(step, steps[:i]):
            raise CheckpointError(
                f"tokenizer.json: the decoder's step {step['type']} can't be done token by token: {reason}"
            )
    functions = [_SPELLINGS[step["type"]](step) for step in steps]

    def spell(token: str, first: bool) -> bytes:
        piece: Piece = token
        for function in functions:
            piece = function(piece, first)
        return piece.encode() if isinstance(piece, str) else piece

    return spell


def _steps(decoder: Step) -> Iterator[Step]:
    if decoder["type"] == "Sequence":
        for inner in decoder["decoders"]:
            yield from _steps(inner)
    else:
        yield decoder


def _refusal(step: Step, before: list[Step]) -> str:
    """Returns why `step` is not supported after the steps `before`; empty if it is supported."""
    kind = step["type"]
    fused = any(other["type"] in _FUSING for other in before)
    if kind not in _SPELLINGS:
        return "it is not supported"
    if kind == "Replace":
        return _refusal_to_replace(step["pattern"], fused)
    if kind == "Strip" and (step["start"] > 1 or step["stop"]):
        return (
            f"it strips {step['start']} characters at the start and {step['stop']} at the end; at most 1"
            " and 0 are supported"
        )
    if _looks_at_the_start(step) and any(map(_looks_at_the_start, before)):
        return "a step before it also changes the start of an answer"
    if kind == "Strip" and step["start"] and not fused:
        return "without Fuse before it, it strips every token"
    return (
        "after ByteLevel or Fuse the text is not divided into tokens"
        if fused and kind not in ("Strip", "Fuse")
        else ""
    )


def _refusal_to_replace(pattern: dict[str, str], fused: bool) -> str:
    if "String" not in pattern:
        return f"its pattern is {pattern}; only strings are supported"
    if not pattern["String"] or (fused and len(pattern["String"]) > 1):
        return f"its pattern {pattern['String']!r} may match across tokens; only one character is supported"
    return ""


def _looks_at_the_start(step: Step) -> bool:
    if step["type"] == "Metaspace":
        return bool(step["prepend_scheme"] != "never")
    return bool(step["type"] == "WordPiece" or (step["type"] == "Strip" and step["start"]))


def _byte_level(_step: Step) -> Spelling:
    """A token with a character outside the byte alphabet is an added token; its text is not changed."""

    def spell(piece: Piece, _first: bool) -> Piece:
        if isinstance(piece, str) and all(letter in _BYTES for letter in piece):
            return bytes(_BYTES[letter] for letter in piece)
        return piece

    return spell


def _byte_fallback(_step: Step) -> Spelling:
    def spell(piece: Piece, _first: bool) -> Piece:
        byte = _BYTE.fullmatch(piece) if isinstance(piece, str) else None
        return bytes([int(byte[1], 16)]) if byte else piece

    return spell


def _replace(step: Step) -> Spelling:
    old, new = step["pattern"]["String"], step["content"]
    return lambda piece, _first: piece.replace(old, new) if isinstance(piece, str) else piece


def _metaspace(step: Step) -> Spelling:
    """Removes all spaces of an answer's first token, at any position in it."""
    drops = step["prepend_scheme"] != "never"

    def spell(piece: Piece, first: bool) -> Piece:
        return (
            piece.replace(step["replacement"], "" if first and drops else " ")
            if isinstance(piece, str)
            else piece
        )

    return spell


def _strip(step: Step) -> Spelling:
    letter = step["content"].encode()

    def spell(piece: Piece, first: bool) -> Piece:
        whole = piece.encode() if isinstance(piece, str) else piece
        return whole.removeprefix(letter) if first and step["start"] else whole

    return spell


def _word_piece(step: Step) -> Spelling:
    """Uses the library's decoder, which works token by token: a space before each token that isn't "##…",
    none before some punctuation marks.
    """
    decoder = decoders.WordPiece(prefix=step["prefix"], cleanup=step["cleanup"])

    def spell(piece: Piece, first: bool) -> Piece:
        if isinstance(piece, bytes):
            return piece
        return decoder.decode([piece]) if first else decoder.decode(["a", piece])[1:]

    return spell


def _fuse(_step: Step) -> Spelling:
    return lambda piece, _first: piece


_SPELLINGS: dict[str, Callable[[Step], Spelling]] = {
    "ByteLevel": _byte_level,
    "ByteFallback": _byte_fallback,
    "Fuse": _fuse,
    "Metaspace": _metaspace,
    "Replace": _replace,
    "Strip": _strip,
    "WordPiece": _word_piece,
}


def _byte_alphabet() -> dict[str, int]:
    """Returns GPT-2's table from character to byte: printable Latin-1 characters are themselves, the
    characters from U+0100 on are the other bytes.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTES = _byte_alphabet()
