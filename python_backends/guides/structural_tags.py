"""Structural tags: one JSON document that says which parts of an answer are free text and which follow a
schema, a regular expression or a grammar. The format is XGrammar 2's; it becomes a grammar in Lark's syntax.

Called by `grammars`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from llguidance import LLMatcher

from python_backends.guides.errors import GuideError
from python_backends.guides.lark import as_lark
from python_backends.guides.schemas import schema_grammar

MOST_DEPTH = 32  # formats within each other
# any_text, and triggers before which it stands, end at the first place where the text after it can begin
HEAD = "%llguidance {}\nTEXT: /(.|\\n)*/\n"

MANY = ("tags", "at_least_one", "stop_after_first")
KEYS = {  # by type, besides the type itself
    "const_string": ("value",),
    "json_schema": ("json_schema",),
    "regex": ("pattern",),
    "grammar": ("grammar",),
    "any_text": (),
    "sequence": ("elements",),
    "or": ("elements",),
    "tag": ("begin", "content", "end"),
    "triggered_tags": ("triggers", *MANY),
    "tags_with_separator": ("separator", *MANY),
}
WITHOUT_EFFECT: dict[str, Any] = {
    "excludes": [],
    "style": "json",
}  # XGrammar writes them where nothing is asked
HALF_SURROGATE = re.compile("[\ud800-\udfff]")

Format = dict[str, Any]


def structural_tag_grammar(guide: str) -> str:
    """Raises GuideError, which names the place in the document."""
    try:
        document = json.loads(guide)
    except (ValueError, RecursionError) as error:
        raise GuideError(f"must be a structural tag in JSON ({error})") from error
    if not isinstance(document, dict) or document.get("type") != "structural_tag":
        raise GuideError('must be a JSON object with "type": "structural_tag"')
    _refuse_others(document, ("format", "structures", "triggers"), "")
    rules = _Rules()
    return rules.whole(rules.expression(_format_of(document), "format", is_last=True))


def _format_of(document: Format) -> Any:
    """The document's format; of an older document, made from its structures and triggers."""
    if "structures" not in document:
        return document.get("format")
    structures = _list(document, "structures", "")
    tags = [_tag_of(each, f"structures[{i}]") for i, each in enumerate(structures)]
    return {"type": "triggered_tags", "triggers": document.get("triggers"), "tags": tags}


def _tag_of(structure: Any, path: str) -> Format:
    if not isinstance(structure, dict):
        raise GuideError(f"{path}: must be an object")
    _refuse_others(structure, ("begin", "schema", "end"), f"{path}.")
    content = {"type": "json_schema", "json_schema": structure.get("schema")}
    return {"type": "tag", "begin": structure.get("begin"), "content": content, "end": structure.get("end")}


class _Rules:
    """The rules of one grammar, as they are found."""

    def __init__(self) -> None:
        self._rules: list[str] = []
        self._parts: list[dict[str, Any]] = []  # grammars of their own
        self._depth = 0
        self._makers: dict[str, Callable[[Format, str, bool], str]] = {
            "const_string": self._const_string,
            "json_schema": self._json_schema,
            "regex": self._regex,
            "grammar": self._grammar,
            "any_text": self._any_text,
            "sequence": self._sequence,
            "or": self._or,
            "tag": self._tag,
            "triggered_tags": self._triggered_tags,
            "tags_with_separator": self._tags_with_separator,
        }

    def whole(self, start: str) -> str:
        lark = HEAD + f"start: {start}\n" + "".join(self._rules)
        main = {"name": "structural_tag", "lark_grammar": lark}
        return json.dumps({"grammars": [main, *self._parts]})

    def expression(self, found: Any, path: str, is_last: bool) -> str:
        """What stands for a format in a rule. `is_last`: no text follows it."""
        if not isinstance(found, dict):
            raise GuideError(f"{path}: must be an object with a type")
        make = self._makers.get(str(found.get("type")))
        if make is None:
            raise GuideError(f"{path}.type = {found.get('type')!r}: must be one of {', '.join(self._makers)}")
        _refuse_others(found, KEYS[found["type"]], f"{path}.")
        if self._depth == MOST_DEPTH:
            raise GuideError(f"formats must be at most {MOST_DEPTH} deep")
        self._depth += 1
        made = make(found, path, is_last)
        self._depth -= 1
        return made

    def _rule(self, body: str, how: str = "") -> str:
        name = f"r{len(self._rules)}"
        self._rules.append(f"{name}{how}: {body}\n")
        return name

    def _part(self, **grammar: Any) -> str:
        name = f"part{len(self._parts)}"
        self._parts.append({"name": name, **grammar})
        return f"@{name}"

    def _const_string(self, found: Format, path: str, is_last: bool) -> str:
        return _quoted(_text(found, "value", path))

    def _json_schema(self, found: Format, path: str, is_last: bool) -> str:
        try:
            (made,) = json.loads(schema_grammar(found.get("json_schema")))["grammars"]
        except GuideError as error:
            raise GuideError(f"{path}.json_schema: {error}") from error
        return self._part(json_schema=made["json_schema"])

    def _regex(self, found: Format, path: str, is_last: bool) -> str:
        (made,) = json.loads(LLMatcher.grammar_from_regex(_text(found, "pattern", path)))["grammars"]
        return self._part(lark_grammar=made["lark_grammar"])

    def _grammar(self, found: Format, path: str, is_last: bool) -> str:
        try:
            return self._part(lark_grammar=as_lark(_text(found, "grammar", path)))
        except GuideError as error:
            raise GuideError(f"{path}.grammar: {error}") from error

    def _any_text(self, found: Format, path: str, is_last: bool) -> str:
        if not is_last:
            raise GuideError(f"{path}: any_text must be last, or the whole content of a tag")
        return "TEXT"

    def _sequence(self, found: Format, path: str, is_last: bool) -> str:
        parts = _list(found, "elements", path)
        last = len(parts) - 1
        return " ".join(
            self.expression(part, f"{path}.elements[{i}]", is_last and i == last)
            for i, part in enumerate(parts)
        )

    def _or(self, found: Format, path: str, is_last: bool) -> str:
        parts = _list(found, "elements", path)
        return _any_of(
            self._rule(self.expression(part, f"{path}.elements[{i}]", is_last))
            for i, part in enumerate(parts)
        )

    def _tag(self, found: Format, path: str, is_last: bool) -> str:
        return self._from(found, path, is_last, begin=_text(found, "begin", path))

    def _from(self, tag: Format, path: str, is_last: bool, begin: str) -> str:
        """A tag whose beginning is `begin` here."""
        content, end = tag.get("content"), _text(tag, "end", path)
        if end and isinstance(content, dict) and content.get("type") == "any_text":
            return f"{_quoted(begin)} {self._rule(f'TEXT {_quoted(end)}', '[lazy]')}"
        inner = self.expression(content, f"{path}.content", is_last and not end)
        return f"{_quoted(begin)} {inner} {_quoted(end)}"

    def _triggered_tags(self, found: Format, path: str, is_last: bool) -> str:
        if not is_last:
            raise GuideError(f"{path}: triggered_tags must be last, because free text follows each tag")
        triggers = {
            trigger: self._rule(f"TEXT {_quoted(trigger)}", "[lazy]")
            for trigger in (_trigger(found, i, path) for i in range(len(_list(found, "triggers", path))))
        }
        tag = self._rule(
            _any_of(
                self._triggered(tag, f"{path}.tags[{i}]", triggers)
                for i, tag in enumerate(_list(found, "tags", path))
            )
        )
        at_least_one = _flag(found, "at_least_one", path)
        if _flag(found, "stop_after_first", path):
            return tag if at_least_one else f"({tag} | TEXT)"
        return f"{tag}{'+' if at_least_one else '*'} TEXT"

    def _triggered(self, tag: Any, path: str, triggers: dict[str, str]) -> str:
        begin = _text(_tag(tag, path), "begin", path)
        for trigger, rule in triggers.items():
            if begin.startswith(trigger):
                return f"{rule} {self._from(tag, path, False, begin.removeprefix(trigger))}"
        raise GuideError(f"{path}.begin = {begin!r}: must begin with one of the triggers")

    def _tags_with_separator(self, found: Format, path: str, is_last: bool) -> str:
        tags = {f"{path}.tags[{i}]": tag for i, tag in enumerate(_list(found, "tags", path))}
        tag = self._rule(_any_of(self._tag(_tag(each, where), where, False) for where, each in tags.items()))
        separator = _quoted(_text(found, "separator", path))
        more = "" if _flag(found, "stop_after_first", path) else f" ({separator} {tag})*"
        return f"{tag}{more}" if _flag(found, "at_least_one", path) else f"({tag}{more})?"


def _quoted(text: str) -> str:
    return json.dumps(text)


def _any_of(rules: Iterable[str]) -> str:
    return f"({' | '.join(rules)})"


def _tag(found: Any, path: str) -> Format:
    if not isinstance(found, dict) or found.get("type", "tag") != "tag":
        raise GuideError(f"{path}: must be a tag")
    _refuse_others(found, KEYS["tag"], f"{path}.")
    return found


def _refuse_others(found: Format, known: Iterable[str], path: str) -> None:
    """Raises GuideError for a key that would have no effect, and has one elsewhere or is misspelt."""
    for key, value in found.items():
        if key not in ("type", *known) and value is not None and value != WITHOUT_EFFECT.get(key):
            raise GuideError(f"{path}{key[:40]}: is not known; there are {', '.join(known) or 'no others'}")


def _flag(found: Format, name: str, path: str) -> bool:
    value = found.get(name) or False
    if not isinstance(value, bool):
        raise GuideError(f"{path}.{name}: must be true or false")
    return value


def _trigger(found: Format, index: int, path: str) -> str:
    place = f"{path}.triggers[{index}]"
    trigger = _checked(found["triggers"][index], place)
    if not trigger:
        raise GuideError(f"{place}: must not be empty")
    return trigger


def _text(found: Format, name: str, path: str) -> str:
    return _checked(found.get(name), f"{path}.{name}")


def _checked(text: Any, place: str) -> str:
    if not isinstance(text, str):
        raise GuideError(f"{place}: must be a string")
    if HALF_SURROGATE.search(text):
        raise GuideError(f"{place}: must be text that UTF-8 can encode")
    return text


def _list(found: Format, name: str, path: str) -> list[Any]:
    items = found.get(name)
    if not isinstance(items, list) or not items:
        raise GuideError(f"{path + '.' if path else ''}{name}: must be a list of at least one")
    return items
