"""Grammars that clients write. Called by `grammars` and `structural_tags`."""

from __future__ import annotations

from llguidance.gbnf_to_lark import gbnf_to_lark, is_lark_syntax

from python_backends.guides.errors import GuideError

MAX_GBNF_BYTES = 16 * 1024  # the time to convert it grows with the square: 0.2 s


def as_lark(guide: str) -> str:
    """A grammar of Lark or GBNF in Lark's syntax. Raises GuideError."""
    if is_lark_syntax(guide):
        return guide
    size = len(guide.encode())
    if size > MAX_GBNF_BYTES:
        raise GuideError(
            f"{size} bytes of GBNF: must be at most {MAX_GBNF_BYTES}; Lark's syntax may be longer"
        )
    try:
        return gbnf_to_lark(guide)
    except Exception as error:  # the converter raises no type of its own
        raise GuideError(f"must be a grammar of Lark or GBNF ({error})") from error
