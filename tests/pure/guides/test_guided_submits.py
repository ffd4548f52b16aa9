"""Requests with guides in an instance: compiled beside the steps, and the same answers through a restart."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import Guides
from python_backends.guides.vocabulary import Vocabulary
from python_backends.instance.build import build, start_guides
from python_backends.instance.guided_submits import GuidedSubmits
from python_backends.instance.loop import Instance, Parts
from python_backends.nouns.messages import Cancel, Failed, Submit
from python_backends.settings import EngineSettings, ModelSettings, Settings
from python_backends.text.checkpoint import read_checkpoint
from tests.support.guided import END, vocabulary
from tests.support.instance_link import Link, submit
from tests.support.schemas import SCHEMAS
from tests.support.toy_engine import TOY

BUNDLED = Path(__file__).resolve().parents[3] / "models/bundled"
CHECKPOINT = read_checkpoint(BUNDLED)
WAIT_S = 60.0


def guided(number: int, schema: dict[str, Any], **sampling: Any) -> Submit:
    grammar = grammar_of("json_schema", json.dumps(schema))
    sampling = {"temperature": 1.0, "seed": number, "stop_ids": CHECKPOINT.eos_ids, **sampling}
    return submit(number, 5, **{"max_tokens": 200, "grammar": grammar, **sampling})


def served(steps_ahead: int, messages: Sequence[Any], num_ends: int) -> Link:
    engine = EngineSettings(kind=TOY, slots=3, block_tokens=4, token_budget=16, steps_ahead=steps_ahead)
    settings = Settings(model=ModelSettings(directory=str(BUNDLED)), engine=engine)
    scheduler, running = build(settings)
    link = Link([list(messages)])
    parts = Parts(guided=start_guides(settings, scheduler, running, lambda: None))
    instance = Instance(scheduler, running, link, lambda _: None, steps_ahead, parts)
    ends_s = time.monotonic() + WAIT_S
    while link.num_ended < num_ends and time.monotonic() < ends_s:
        instance.turn()
    running.close()
    assert link.num_ended == num_ends
    return link


def text_of(answer: list[int]) -> str:
    text: str = CHECKPOINT.tokenizer.decode(answer, skip_special_tokens=True)
    return text


def test_answers_of_an_instance_follow_their_schemas() -> None:
    schemas = [SCHEMAS[name] for name in ("person", "tree", "one of two records")]
    answers = served(1, [guided(number, schema) for number, schema in enumerate(schemas)], 3).answers
    for number, schema in enumerate(schemas):
        assert answers[number][-1] in CHECKPOINT.eos_ids
        jsonschema.validate(json.loads(text_of(answers[number])), schema)


def test_an_answer_goes_on_after_its_delivered_tokens_with_the_same_json() -> None:
    whole = served(0, [guided(1, SCHEMAS["person"])], 1).answers[1]
    for cut in (1, len(whole) // 2, len(whole) - 1):
        again = guided(1, SCHEMAS["person"]).changed(delivered=np.array(whole[:cut], np.int32))
        assert served(0, [again], 1).answers[1] == whole[cut:]


@pytest.fixture
def opened() -> threading.Event:
    """Until it is set, nothing is compiled."""
    return threading.Event()


@pytest.fixture
def held(opened: threading.Event) -> GuidedSubmits:
    def slow() -> Vocabulary:
        opened.wait(WAIT_S)
        return vocabulary()

    return GuidedSubmits(Guides(slow))


def taken(held: GuidedSubmits, opened: threading.Event) -> tuple[list[Submit], list[Failed]]:
    """What comes out first after compiling may go on; nothing if nothing waits."""
    assert held.take() == ([], [])
    opened.set()
    ends_s = time.monotonic() + WAIT_S
    while held._held and time.monotonic() < ends_s:
        submits, failed = held.take()
        if submits or failed:
            return submits, failed
        time.sleep(0.01)
    return [], []


def ask(grammar: str, epoch: int = 0) -> Submit:
    return submit(1, 5, max_tokens=9, grammar=grammar, stop_ids=(END,)).changed(request_epoch=epoch)


def test_a_request_waits_until_its_guide_is_compiled(held: GuidedSubmits, opened: threading.Event) -> None:
    message = ask(grammar_of("regex", "a+"))
    assert held.hold(message)
    assert taken(held, opened) == ([message], [])
    assert not held.hold(message)  # it is compiled


def test_a_request_without_a_guide_does_not_wait(held: GuidedSubmits) -> None:
    assert not held.hold(submit(1, 5, max_tokens=9))


def test_a_guide_that_can_not_be_compiled_fails_its_request(
    held: GuidedSubmits, opened: threading.Event
) -> None:
    held.hold(ask(grammar_of("regex", "(")))
    submits, (failed,) = taken(held, opened)
    assert submits == []
    assert (failed.request_id, failed.request_epoch) == (1, 0)
    assert failed.error.startswith("guided_decoding_guide: ")


@pytest.mark.parametrize(("cancel", "is_left"), [(Cancel(1), False), (Cancel(1, 7), True)])
def test_what_is_cancelled_meanwhile_is_not_submitted(
    held: GuidedSubmits, opened: threading.Event, cancel: Cancel, is_left: bool
) -> None:
    held.hold(ask(grammar_of("regex", "a+")))
    held.cancel(cancel)
    submits, _ = taken(held, opened)
    assert bool(submits) == is_left


def test_of_two_lives_of_a_request_the_later_is_submitted(
    held: GuidedSubmits, opened: threading.Event
) -> None:
    held.hold(ask(grammar_of("regex", "a+"), 0))
    held.hold(ask(grammar_of("regex", "a+"), 1))
    submits, _ = taken(held, opened)
    assert [each.request_epoch for each in submits] == [1]


def test_a_new_session_forgets_what_waits(held: GuidedSubmits, opened: threading.Event) -> None:
    held.hold(ask(grammar_of("regex", "a+")))
    held.forget_all()
    assert taken(held, opened) == ([], [])
