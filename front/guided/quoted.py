"""A Lark grammar of a text becomes the grammar of that text within a string of JSON, where quotes,
backslashes and control characters are escaped.

A call of a custom tool is written as an object with one text: so models have learned it, and so its end is
known. Called by `inputs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

SPECIAL = ['"', "\\", *map(chr, range(0x20))]
PLAIN = r'[^"\\\x00-\x1f]'
ANY = r"[\x00-\U0010ffff]"
USUAL = [chr(each) for each in range(0x20, 0x300) if chr(each) not in SPECIAL]  # is a class of escaped ones?
# what llguidance knows by these names, so far as it has characters that are escaped
COMMON = {
    "LF": r"/\n/",
    "CR": r"/\r/",
    "CR_LF": r"/\r\n/",
    "NEWLINE": r"/(\r?\n)+/",
    "WS": r"/[ \t\f\r\n]+/",
    "WS_INLINE": r"/[ \t]+/",
    "ESCAPED_STRING": r'/"(\\([^\n]|\n)|[^"\\\n])*"/',
}
TEXT, PATTERN = r'"(?:[^"\\\n]|\\.)*"', r"/(?![/*])(?:[^/\\\n]|\\.)+/"
TOKEN = re.compile(
    rf"(?P<comment>//[^\n]*|\#[^\n]*)|(?P<first>{TEXT})\s*\.\.\s*(?P<last>{TEXT})|(?P<text>{TEXT})(?P<folds>i?)"
    rf"|(?P<pattern>{PATTERN})(?P<flags>[imslux]*)"
    r"|%import\s+common\.(?P<name>\w+)(?:\s*->\s*(?P<alias>\w+))?"
    r"|(?P<other>%(?!ignore\b|import\s+common\.)\S*)"
)
TEXTS = re.compile(rf"({TEXT}i?|{PATTERN}[imslux]*)")
ALIAS = re.compile(r"->\s*\w+")
IGNORES = re.compile(r"^%ignore", re.MULTILINE)
RULE = re.compile(r"^[?!]?([A-Za-z_]\w*)\s*:", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_]\w*")
MARK = "\0"
HELD = re.compile("\0(\\d+)\0")
ATOM = re.compile(
    r"(?P<class>\[\^?\]?(?:[^\]\\]|\\.)*\])|(?P<named>\(\?P?<\w+>)|(?P<group>\((?:\?:)?)|(?P<around>\(\?)"
    r"|(?P<count>\{\d+(?:,\d*)?\}\??)|(?P<mark>[)|*+?])|(?P<kind>\\[dDwWsS])|(?P<edge>\^|\$|\\[bBAzZ])"
    r"|(?P<escape>\\x[\da-fA-F]{2}|\\u[\da-fA-F]{4}|\\.)|(?P<any>\.)|(?P<letter>.)",
    re.DOTALL,
)


class CannotQuoteError(Exception):
    """Says which part of a grammar has no such form."""


def quoted(grammar: str) -> str:
    """Returns the grammar of the same texts within a string of JSON. Raises CannotQuoteError.

    All rules that don't recur become one terminal: between two terminals, llguidance does not go back, and
    the first character of an escaped one is not enough to know where the first terminal ends.
    """
    made = TOKEN.sub(_token, grammar)
    return made if IGNORES.search(made) else _joined(made)


def _joined(grammar: str) -> str:
    parts = TEXTS.split(grammar)  # every second one is a text or a pattern
    bare = "".join(part if i % 2 == 0 else f"{MARK}{i}{MARK}" for i, part in enumerate(parts))
    rules = RULE.split(ALIAS.sub("", bare))
    bodies = dict(zip(rules[1::2], rules[2::2], strict=True))
    uses = {name: {each for each in NAME.findall(body) if each in bodies} for name, body in bodies.items()}
    whole = _without_recursion(uses)
    joined = {name: f"JOINED_{name.upper()}" for name in bodies if name.islower() and name in whole}
    lines = [rules[0]]
    for name, body in bodies.items():
        lines.append(
            f"{joined.get(name, name)}:" + NAME.sub(lambda found: joined.get(found[0], found[0]), body)
        )
    if "start" in joined:
        lines.append(f"\nstart: {joined['start']}\n")
    return HELD.sub(lambda found: parts[int(found[1])], "".join(lines))


def _without_recursion(uses: Mapping[str, set[str]]) -> set[str]:
    """The rules that neither have themselves in them nor one that does."""
    num_left = {name: len(used) for name, used in uses.items()}
    users: dict[str, list[str]] = {name: [] for name in uses}
    for name, used in uses.items():
        for each in used:
            users[each].append(name)
    found = [name for name, count in num_left.items() if not count]
    for name in found:  # grows
        for user in users[name]:
            num_left[user] -= 1
            if not num_left[user]:
                found.append(user)
    return set(found)


def _token(found: re.Match[str]) -> str:
    return next(make(found) for kind, make in MADE.items() if found[kind])


def _range(found: re.Match[str]) -> str:
    first, last = _read(found["first"]), _read(found["last"])
    if len(first) != 1 or len(last) != 1:
        raise CannotQuoteError(f"{found[0]}: a range has two characters")
    return f"/{_among(f'[{re.escape(first)}-{re.escape(last)}]')}/"


def _text(found: re.Match[str]) -> str:
    inside = json.dumps(_read(found["text"]), ensure_ascii=False)[1:-1]
    if found["folds"] and "\\" in inside:
        raise CannotQuoteError(f"{found[0]}: has characters that are escaped, and ignores the case")
    return json.dumps(inside, ensure_ascii=False) + found["folds"]


def _regex(found: re.Match[str]) -> str:
    flags = found["flags"]
    return f"/{_pattern(found['pattern'][1:-1], 's' in flags)}/{flags.replace('s', '')}"


def _common(found: re.Match[str]) -> str:
    name = found["name"]
    return f"{found['alias'] or name}: {TOKEN.sub(_token, COMMON[name])}" if name in COMMON else found[0]


def _unknown(found: re.Match[str]) -> str:
    raise CannotQuoteError(f"{found['other'][:40]}: only %ignore and %import common.NAME are known")


MADE: dict[str, Callable[[re.Match[str]], str]] = {
    "comment": lambda _: "",
    "first": _range,
    "text": _text,
    "pattern": _regex,
    "name": _common,
    "other": _unknown,
}


def _read(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        raise CannotQuoteError(f"{text[:40]}: is no text, as JSON writes it") from None


def _pattern(pattern: str, has_all: bool) -> str:
    """`has_all`: a dot is a line break, too."""

    def atom(found: re.Match[str]) -> str:
        kind, text = found.lastgroup, found[0]
        if kind in ("group", "count", "mark"):
            return text
        if kind == "named":
            return "(?:"
        if kind == "any":
            return _among(ANY if has_all else r"[^\n]")
        if kind in ("around", "edge"):
            raise CannotQuoteError(f"/{pattern[:40]}/: {text} has no place within a string")
        return _among(text if kind in ("class", "kind") else f"[{_letter(text)}]")

    return ATOM.sub(atom, pattern)


def _letter(text: str) -> str:
    """Of a class."""
    return text if text.startswith("\\") else re.escape(text)


def _among(class_: str) -> str:
    """One character of a class."""
    try:
        known = re.compile(class_)
    except re.error as error:
        raise CannotQuoteError(f"{class_[:40]}: {error}") from None
    escaped = [json.dumps(each)[1:-1] for each in SPECIAL if known.fullmatch(each)]
    if not escaped:
        return class_
    choices = [re.escape(each) for each in escaped]
    if any(map(known.fullmatch, USUAL)):
        choices.insert(0, PLAIN if class_ == ANY else f"[{class_}&&{PLAIN}]")
    return f"(?:{'|'.join(choices)})"
