"""The workload of real prompts: always the same, evenly drawn, and split without a leak."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from benchmarks.real_prompts.answers import SEEDS, Answers
from benchmarks.real_prompts.prompts import NUM_PROMPTS, digest, folds, read_prompts

ABOUT = {"model": "m", "prompts": "d"}


def test_all_kinds_and_all_topics_are_asked_about_equally_often() -> None:
    prompts = read_prompts()
    kinds, topics = Counter(p.kind for p in prompts), Counter(p.topic for p in prompts)
    assert len(prompts) == len({str(prompt.messages) for prompt in prompts}) == NUM_PROMPTS
    assert len(kinds) >= 60
    assert len(topics) >= 60
    assert max(kinds.values()) - min(kinds.values()) <= 1
    assert max(topics.values()) - min(topics.values()) <= 2


def test_no_prompt_has_an_unfilled_field_and_turns_begin_and_end_with_the_user() -> None:
    for prompt in read_prompts():
        roles = [message["role"] for message in prompt.messages if message["role"] != "system"]
        assert roles == (["user", "assistant"] * NUM_PROMPTS)[: len(roles)]
        assert len(roles) % 2 == 1
        assert not any("{" in message["content"] for message in prompt.messages)


@pytest.mark.parametrize("by", ["kind", "topic"])
def test_a_kind_or_topic_is_in_one_part_only(by: str) -> None:
    prompts = read_prompts()
    parts = folds(prompts, by)  # type: ignore[arg-type]
    seen = {(getattr(prompt, by), part) for prompt, part in zip(prompts, parts, strict=True)}
    assert len(seen) == len({name for name, _ in seen})
    assert max(Counter(parts).values()) < 1.3 * min(Counter(parts).values())


def test_asking_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    prompts, path = read_prompts()[:3], tmp_path / "new" / "lengths.json"
    answers = Answers(path, ABOUT, 3)
    first, second, *_ = answers.missing(prompts)
    answers.note(first, 7, True)
    answers.note(second, 1024, False)
    answers.save()
    again = Answers(path, ABOUT, 3)
    assert [row[0] for row in again.lengths] == [7, -1024, None]
    assert len(list(again.missing(prompts))) == 3 * len(SEEDS) - 2


def test_lengths_of_other_prompts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    Answers(path, ABOUT, 3).save()
    with pytest.raises(ValueError, match="prompts is another one"):
        Answers(path, {**ABOUT, "prompts": digest(read_prompts())}, 3)
