"""Grammars that clients write. Called by `grammars` and `structural_tags`."""

from __future__ import annotations

import re

from python_backends.guides.errors import GuideError
from python_backends.guides.gbnf import lark_of_gbnf

LARK = re.compile(r"^[^\S\n]*(%llguidance\b|[?!]?start(\.\d+|\[[^\]\n]*\])*[^\S\n]*:(?!:=))", re.MULTILINE)
PARTS = re.compile(
    r"//[^\n]*|#[^\n]*|\"(?:[^\"\\\n]|\\.)*\"|/(?:[^/\\\n]|\\.)+/|(?P<token><[^>\n]*>?)|(?P<open>[\"/])"
)
MAX_GBNF_BYTES = 16 * 1024  # converted in 0.1 s


def as_lark(guide: str) -> str:
    """A grammar of Lark or GBNF in Lark's syntax. Raises GuideError."""
    if LARK.search(guide):
        _refuse_tokens(guide)
        return guide
    size = len(guide.encode())
    if size > MAX_GBNF_BYTES:
        raise GuideError(
            f"{size} bytes of GBNF: must be at most {MAX_GBNF_BYTES}; Lark's syntax may be longer"
        )
    try:
        return lark_of_gbnf(guide)
    except Exception as error:  # the parser raises no type of its own
        raise GuideError(f"must be a grammar of Lark or GBNF ({error})") from error


def _refuse_tokens(guide: str) -> None:
    """Raises GuideError. No answer can have them, so it could not end."""
    for part in PARTS.finditer(guide):
        if part["open"]:
            return  # what is wrong there is said when it is compiled
        if part["token"]:
            raise GuideError(f"{part['token'][:40]}: special tokens and ids can't be a part of an answer")
