"""llama.cpp's GBNF in Lark's syntax, letter by letter. Called by `lark`.

llguidance's own converter makes longer terminals. Between two of them it does not go back, so that an answer
may never end: the white space behind a term takes the line break that must follow. Of that converter only the
parser is used, which says what is wrong and where.
"""

from __future__ import annotations

import json
import re
from typing import Any

from llguidance.gbnf_to_lark import (
    AlternativeNode,
    GrammarParser,
    LiteralNode,
    Position,
    RegexNode,
    RepetitionNode,
    RuleRefNode,
)

from python_backends.guides.errors import GuideError

ANY, NOTHING = "/(?s:.)/", '""'
NAMED = {"n": "\n", "r": "\r", "t": "\t"}
# a letter as the parser below gives it, and one or two of a class
LETTER = r"\\u\{[0-9a-f]+\}|\\?."
LETTERS = re.compile(LETTER, re.DOTALL)
ITEMS = re.compile(rf"({LETTER})(?:-({LETTER}))?", re.DOTALL)


def lark_of_gbnf(guide: str) -> str:
    """Raises what the parser raises, RecursionError, and GuideError for a rule that there is not."""
    rules = _Parser().parse(guide)
    if "root" not in rules:
        raise GuideError("there is no rule root")
    plain = (re.sub(r"[^a-z0-9]", "_", name.lower()) for name in rules)
    names = {name: f"r{i}_{text}" for i, (name, text) in enumerate(zip(rules, plain, strict=True))}
    names["root"] = "start"
    lines = (f"{names[name]}: {_written(rule.alternatives, names)}\n" for name, rule in rules.items())
    return "".join(lines)


class _Parser(GrammarParser):
    def _parse_char(self, pos: Position) -> tuple[str, Position]:
        r"""An escaped letter is \u{its number}, so that nothing behind it can be a part of it."""
        text, after = super()._parse_char(pos)
        if len(text) == 1:
            return text, after
        kind, digits = text[1], text[2:]
        number = int(digits or "0", 16) if kind in "xuU" else ord(NAMED.get(kind, kind))
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise GuideError(f"\\{kind}{digits}: there is no such character")
        return f"\\u{{{number:x}}}", after


def _written(node: Any, names: dict[str, str]) -> str:
    if isinstance(node, AlternativeNode):
        return f"({' | '.join(_written(each, names) for each in node.alternatives)})"
    if isinstance(node, RepetitionNode):
        if node.max_times == 0:
            return NOTHING
        most = "" if node.max_times is None else node.max_times
        return f"({_written(node.node, names)}){{{node.min_times},{most}}}"
    if isinstance(node, RuleRefNode):
        if node.name not in names:
            raise GuideError(f"there is no rule {node.name}")
        return names[node.name]
    if isinstance(node, LiteralNode):
        letters = (json.dumps(_letter(each), ensure_ascii=False) for each in LETTERS.findall(node.value))
        return f"({' '.join(letters)})" if node.value else NOTHING
    if isinstance(node, RegexNode):
        return ANY if node.rx == "." else f"/{_class(node.rx[1:-1])}/"
    return " ".join(_written(each, names) for each in node.children()) or NOTHING


def _class(inner: str) -> str:
    sign = "^" if inner.startswith("^") else ""
    items = (
        f"{_number(first)}-{_number(last)}" if last else _number(first)
        for first, last in ITEMS.findall(inner[len(sign) :])
    )
    return f"[{sign}{''.join(items)}]"


def _number(text: str) -> str:
    return f"\\u{{{ord(_letter(text)):x}}}"


def _letter(text: str) -> str:
    return chr(int(text[3:-1], 16)) if len(text) > 2 else text[-1]
