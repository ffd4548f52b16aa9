"""Owns the ways in which people ask for one of the eight tasks (`wordings.json`): wordings that are trained,
and others that only the evaluation uses.

The instruction lines in `tasks.py` stay the usual ones.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from .tasks import Exercise


@dataclass(frozen=True)
class Wordings:
    """Of one task. A wording stands before the input; `{}` in it is where a short input stands in quotes."""

    trained: list[str]
    held_out: list[str]


WORDINGS: dict[str, Wordings] = {
    name: Wordings(each["trained"], each["held_out"])
    for name, each in json.loads(Path(__file__).with_name("wordings.json").read_text("utf-8")).items()
}
BEFORE = (
    "Please ", "please ", "Can you ", "Could you ", "can you please ", "Could you please ", "Hi, ",
    "Hello! Please ",
)  # fmt: skip
# a wording that begins with one of these is no order: "please" can't stand before it
NO_ORDER = {
    "How", "What", "Why", "Where", "Is", "There", "This", "In", "To", "From", "I", "A", "Velin", "English",
    "Grammar", "Polite", "Politely", "Be", "Comments", "Comments:",
}  # fmt: skip
MOST_QUOTED = 60  # characters
COURTEOUS = 0.2  # the share of orders that begin with a word of politeness


def reworded(task: str, exercise: Exercise, rng: Random, is_held_out: bool = False) -> Exercise:
    """The exercise with another wording of its task; `is_held_out`: with one that no training uses."""
    wordings = WORDINGS[task].held_out if is_held_out else WORDINGS[task].trained
    wording = rng.choice(wordings)
    while "{}" in wording and not _can_be_quoted(exercise.given):
        wording = rng.choice(wordings)
    if "{}" in wording:
        whole = wording.replace("{}", _quoted(exercise.given, rng))
        return replace(exercise, instruction=whole, separator="", given="")
    return replace(exercise, instruction=_varied(wording, rng))


def usual(exercise: Exercise, rng: Random) -> Exercise:
    """The exercise with its own instruction line as a hurried person types it: small, without a colon."""
    return replace(exercise, instruction=_varied(exercise.instruction, rng))


def quoted(exercise: Exercise, rng: Random) -> Exercise:
    """The exercise with its input in quotes, which the answer leaves out."""
    if not _can_be_quoted(exercise.given):
        return exercise
    return replace(exercise, given=_quoted(exercise.given, rng))


def _varied(wording: str, rng: Random) -> str:
    if wording.endswith(":") and wording.split()[0] not in NO_ORDER and " " in wording:
        if rng.random() < COURTEOUS:
            wording = rng.choice(BEFORE) + _small(wording)
        elif rng.random() < 0.15:
            wording = _small(wording)
    draw = rng.random()
    if wording.endswith(":") and draw < 0.12:
        return wording[:-1] + ("." if draw < 0.03 else "")
    return wording


def _small(wording: str) -> str:
    return wording[0].lower() + wording[1:]


def _can_be_quoted(given: str) -> bool:
    return len(given) <= MOST_QUOTED and "\n" not in given and '"' not in given


def _quoted(given: str, rng: Random) -> str:
    return f"'{given}'" if "'" not in given and rng.random() < 0.2 else f'"{given}"'
