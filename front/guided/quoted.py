"""A Lark grammar of a text becomes the grammar of that text within a string of JSON, where quotes,
backslashes and control characters are escaped.

A call of a custom tool is written as an object with one text: so models have learned it, and so its end is
known. Called by `inputs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from front.guided.escaped import CannotQuoteError, among, letter, pattern_of

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
    r'|(?P<open>["/\0])'
)
HELD = re.compile(rf"({TEXT}i?|{PATTERN}[imslux]*|%import\s+common\.\w+(?:\s*->\s*\w+)?)")
ALIAS = re.compile(r"->\s*\w+")
IGNORES = re.compile(r"^%ignore", re.MULTILINE)
RULE = re.compile(r"^[?!]?([A-Za-z_]\w*)\s*:", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_]\w*")
MARK = "\0"
MARKED = re.compile("\0(\\d+)\0")


def quoted(grammar: str) -> str:
    """Returns the grammar of the same texts within a string of JSON. Raises CannotQuoteError.

    All rules that don't recur become one terminal: between two terminals, llguidance does not go back, and
    the first character of an escaped one is not enough to know where the first terminal ends.
    """
    made = TOKEN.sub(_token, grammar)
    return made if IGNORES.search(made) else _joined(made)


def _joined(grammar: str) -> str:
    parts = HELD.split(grammar)  # every second one is a text, a pattern or an import
    bare = "".join(part if i % 2 == 0 else f"{MARK}{i}{MARK}" for i, part in enumerate(parts))
    rules = RULE.split(ALIAS.sub("", bare))
    bodies: dict[str, str] = {}
    for name, body in zip(rules[1::2], rules[2::2], strict=True):
        if name in bodies:
            raise CannotQuoteError(f"{name[:40]}: there are two rules of this name")
        bodies[name] = body
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
    return MARKED.sub(lambda found: parts[int(found[1])], "".join(lines))


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
    return f"/{among(f'[{letter(first)}-{letter(last)}]')}/"


def _text(found: re.Match[str]) -> str:
    inside = json.dumps(_read(found["text"]), ensure_ascii=False)[1:-1]
    if found["folds"] and "\\" in inside:
        raise CannotQuoteError(f"{found[0]}: has characters that are escaped, and ignores the case")
    return json.dumps(inside, ensure_ascii=False) + found["folds"]


def _regex(found: re.Match[str]) -> str:
    flags = found["flags"]
    return f"/{pattern_of(found['pattern'][1:-1], 's' in flags)}/{flags.replace('s', '')}"


def _common(found: re.Match[str]) -> str:
    name = found["name"]
    return f"{found['alias'] or name}: {TOKEN.sub(_token, COMMON[name])}" if name in COMMON else found[0]


def _unknown(found: re.Match[str]) -> str:
    raise CannotQuoteError(f"{found['other'][:40]}: only %ignore and %import common.NAME are known")


def _open(found: re.Match[str]) -> str:
    raise CannotQuoteError(f"{found.string[found.start() :][:40]!r}: no text or pattern ends here")


MADE: dict[str, Callable[[re.Match[str]], str]] = {
    "comment": lambda _: "",
    "first": _range,
    "text": _text,
    "pattern": _regex,
    "name": _common,
    "other": _unknown,
    "open": _open,
}


def _read(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        raise CannotQuoteError(f"{text[:40]}: is no text, as JSON writes it") from None
