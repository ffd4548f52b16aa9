"""Owns the words of everyday sentences (`everyday.json`) and how their forms are made. One noun and
one name in eight are held out of the training.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HELD_OUT_EVERY = 8
KINDS = ("nouns", "people", "places", "names")
_LISTS: dict[str, Any] = json.loads(Path(__file__).with_name("everyday.json").read_text("utf-8"))

VERBS: list[str] = _LISTS["verbs"]
STATIVE = set(_LISTS["stative"])
MOVES: list[str] = _LISTS["moves"]
GOALS: list[str] = _LISTS["goals"]
STATES: list[str] = _LISTS["states"]
LASTING: list[str] = _LISTS["lasting"]
PERIODS: list[str] = _LISTS["periods"]
# a verb or an adjective, its preposition, wrong ones, what follows
FIXED: list[list[str]] = _LISTS["fixed"]
FITTING: list[list[str]] = _LISTS["fitting"]
ADJECTIVES: list[str] = _LISTS["adjectives"]
FEELINGS: list[str] = _LISTS["feelings"]
COMPARED: list[str] = _LISTS["compared"]
MASSES: list[str] = _LISTS["masses"]
NUMBERS: list[str] = _LISTS["numbers"]
OFTEN: list[str] = _LISTS["often"]
NOW_AND_THEN: list[str] = _LISTS["now_and_then"]
AGO: list[str] = _LISTS["ago"]
REQUESTS: list[str] = _LISTS["requests"]
GIVING: list[str] = _LISTS["giving"]
HANDLING: list[str] = _LISTS["handling"]
IN_NAMES: list[str] = _LISTS["in_names"]
MISSPELLINGS: dict[str, list[str]] = _LISTS["misspellings"]


@dataclass(frozen=True)
class Vocabulary:
    """The nouns and names of one side of the split."""

    nouns: list[str]
    people: list[str]
    places: list[str]
    names: list[str]


def vocabulary(is_held_out: bool) -> Vocabulary:
    """The words that training uses, or those that are in none of its lists."""
    trained = {kind: _trained(_LISTS[kind]) for kind in KINDS}
    if not is_held_out:
        return Vocabulary(**trained)
    known = {word for words in trained.values() for word in words} | _words_of_phrases()
    return Vocabulary(**{kind: [word for word in _LISTS[kind] if word not in known] for kind in KINDS})


def _words_of_phrases() -> set[str]:
    phrases = [
        each
        for kind, listed in _LISTS.items()
        if kind not in KINDS and isinstance(listed, list)
        for each in listed
    ]
    lists = [each if isinstance(each, list) else [each] for each in phrases]
    return {word for phrase in lists for part in phrase for word in part.split()}


def _trained(listed: list[str]) -> list[str]:
    return [word for at, word in enumerate(listed) if at % HELD_OUT_EVERY != HELD_OUT_EVERY - 1]


def plural(noun: str) -> str:
    """The right plural."""
    irregular: dict[str, str] = _LISTS["irregular_plurals"]
    return irregular.get(noun) or _with_s(noun)


def third(verb: str) -> str:
    """The form after she, he and it."""
    return "has" if verb == "have" else _with_s(verb)


def past(verb: str) -> str:
    """The form after yesterday."""
    irregular: dict[str, str] = _LISTS["irregular_pasts"]
    return irregular.get(verb) or regular_past(verb)


def regular_past(verb: str) -> str:
    """The past by rule, which is wrong for irregular verbs."""
    if verb.endswith("e"):
        return verb + "d"
    return (_stem(verb) if not _ends_in_y(verb) else verb[:-1] + "i") + "ed"


def ing(verb: str) -> str:
    """The form after is."""
    return (verb[:-1] if verb.endswith("e") and not verb.endswith("ee") else _stem(verb)) + "ing"


def comparative(adjective: str) -> str:
    """The form before than, of short adjectives."""
    if adjective in _LISTS["comparatives"]:
        return str(_LISTS["comparatives"][adjective])
    if _ends_in_y(adjective):
        return adjective[:-1] + "ier"
    return _stem(adjective) + ("r" if adjective.endswith("e") else "er")


def _with_s(word: str) -> str:
    if _ends_in_y(word):
        return word[:-1] + "ies"
    hissing = word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do")
    return word + ("es" if hissing else "s")


def _ends_in_y(word: str) -> bool:
    return word.endswith("y") and word[-2] not in "aeiou"


def _stem(word: str) -> str:
    return word + word[-1] if word in _LISTS["doubled"] else word
