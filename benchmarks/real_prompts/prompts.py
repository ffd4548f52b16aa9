"""2,000 prompts as people write them: 75 kinds of questions (`kinds.toml`) about 60 topics (`topics.toml`).

Every prompt is one kind about one topic; all kinds are there equally often (26 or 27 times), and so are all
topics (32 to 34 times). The same list everywhere: the wordings are drawn from a fixed seed.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

FOLDER = Path(__file__).parent
NUM_PROMPTS = 2000
SEED = 20261126
STEP = 7  # topics from one turn of the kinds to the next; no divisor in common with their number


@dataclass(frozen=True, slots=True)
class Prompt:
    kind: str
    topic: str
    messages: tuple[dict[str, str], ...]  # as a chat model gets them: role and content

    @property
    def text(self) -> str:
        """The last message: what a model without a chat template is asked to continue."""
        return self.messages[-1]["content"]


def read_prompts() -> list[Prompt]:
    """Always the same ones, in the same order."""
    kinds, topics = _table("kinds.toml"), _table("topics.toml")
    rng = Random(SEED)
    pairs = _pairs(rng.sample(sorted(kinds), len(kinds)), rng.sample(sorted(topics), len(topics)))
    rng.shuffle(pairs)
    return [_prompt(kind, kinds[kind], topic, topics, rng) for kind, topic in pairs]


def digest(prompts: list[Prompt]) -> str:
    """Of all messages in their order: lengths that were measured belong to these."""
    text = json.dumps([prompt.messages for prompt in prompts], ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def folds(prompts: list[Prompt], by: Literal["kind", "topic"], count: int = 8) -> list[int]:
    """Which of `count` parts each prompt is in, so that a kind (or a topic) is in one part only: who learns
    from the others has never seen it.
    """
    names = sorted({getattr(prompt, by) for prompt in prompts})
    Random(SEED).shuffle(names)
    part = {name: number % count for number, name in enumerate(names)}
    return [part[getattr(prompt, by)] for prompt in prompts]


def _table(name: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads((FOLDER / name).read_text("utf-8"))


def _pairs(kinds: list[str], topics: list[str]) -> list[tuple[str, str]]:
    """`NUM_PROMPTS` pairs of kind and topic, each once: all kinds in turn, each turn with other topics."""
    turns = (divmod(number, len(kinds)) for number in range(NUM_PROMPTS))
    return [(kinds[place], topics[(place + STEP * turn) % len(topics)]) for turn, place in turns]


def _prompt(
    kind: str, entry: dict[str, Any], topic: str, topics: dict[str, dict[str, str]], rng: Random
) -> Prompt:
    other = rng.choice([name for name in sorted(topics) if name != topic])
    fields = {**topics[topic], "other": topics[other]["name"], "sloppy": _sloppy(topics[topic]["passage"])}
    system = [{"role": "system", "content": entry["system"]}] if "system" in entry else []
    turns = [*entry.get("before", []), rng.choice(entry["wordings"])]
    roles = ("user", "assistant")
    return Prompt(
        kind,
        topic,
        (
            *system,
            *(
                {"role": roles[number % 2], "content": turn.format(**fields)}
                for number, turn in enumerate(turns)
            ),
        ),
    )


def _sloppy(text: str) -> str:
    """In small letters, without punctuation."""
    return re.sub(r"[^\w\s']", "", text).lower()
