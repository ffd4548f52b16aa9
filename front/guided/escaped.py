"""Patterns of a text become patterns of that text within a string of JSON. Called by `quoted`."""

from __future__ import annotations

import json
import re

SPECIAL = {each: re.escape(json.dumps(each)[1:-1]) for each in ('"', "\\", *map(chr, range(0x20)))}
ALL_SPECIAL = "".join(SPECIAL)
PLAIN = r'[^"\\\x00-\x1f]'
ANY = r"[\x00-\U0010ffff]"
# characters by which one sees whether a class has any that are not escaped: the last stands for all above
# it, because Python takes a hundred times as long to read a class that has them
LAST = "\xff"
USUAL = "".join(chr(each) for each in range(0x20, 0x100) if chr(each) not in SPECIAL)
ABOVE = re.compile(r"(?P<above>[^\x00-\xff]|\\u(?!00)[\da-fA-F]{4})|\\.", re.DOTALL)
ATOM = re.compile(
    r"(?P<class>\[\^?\]?(?:[^\]\\]|\\.)*\])|(?P<open>\[)|(?P<named>\(\?P?<\w+>)|(?P<around>\(\?(?!:))"
    r"|(?P<group>\((?:\?:)?)|(?P<count>\{\d+(?:,\d*)?\}\??)|(?P<mark>[)|*+?])|(?P<kind>\\[dDwWsS])"
    r"|(?P<edge>\^|\$|\\[bBAzZ])"
    r"|(?P<escape>\\x[\da-fA-F]{2}|\\u[\da-fA-F]{4}|\\.)|(?P<any>\.)|(?P<letter>.)",
    re.DOTALL,
)


class CannotQuoteError(Exception):
    """Says which part of a grammar has no such form."""


def pattern_of(pattern: str, has_all: bool) -> str:
    """`has_all`: a dot is a line break, too."""

    def atom(found: re.Match[str]) -> str:
        kind, text = found.lastgroup, found[0]
        if kind in ("group", "count", "mark"):
            return text
        if kind == "named":
            return "(?:"
        if kind == "any":
            return among(ANY if has_all else r"[^\n]")
        if kind == "letter":
            return SPECIAL.get(text) or letter(text)
        if kind == "open":
            raise CannotQuoteError(f"/{pattern[:40]}/: a bracket has no end")
        if kind in ("around", "edge"):
            raise CannotQuoteError(f"/{pattern[:40]}/: {text} has no place within a string")
        return among(text if kind in ("class", "kind") else f"[{text}]")

    return ATOM.sub(atom, pattern)


def letter(text: str) -> str:
    """Of a class, or beside one."""
    return re.escape(text).replace("/", r"\/")


def among(class_: str) -> str:
    """One character of a class."""
    try:
        known = re.compile(ABOVE.sub(lambda found: LAST if found["above"] else found[0], class_))
    except re.error as error:
        raise CannotQuoteError(f"{class_[:40]}: {error}") from None
    choices = [SPECIAL[each] for each in known.findall(ALL_SPECIAL)]
    if not choices:
        return class_
    if known.search(USUAL):
        choices.insert(0, PLAIN if class_ == ANY else f"[{class_}&&{PLAIN}]")
    return f"(?:{'|'.join(choices)})"
