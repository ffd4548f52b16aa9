"""Requests with guides in an instance: prepared beside the steps, and the same answers through restarts and
evictions.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import MOST_KEPT, Guides
from python_backends.guides.matcher import Matcher
from python_backends.guides.prepared import Followed
from python_backends.guides.vocabulary import Vocabulary
from python_backends.instance.build import build, start_guides
from python_backends.instance.guided_requests import GuidedRequests
from python_backends.instance.loop import Instance, Parts
from python_backends.moving.copier import Copier
from python_backends.moving.moves import Moves
from python_backends.nouns.messages import Cancel, Failed, Submit
from python_backends.nouns.moves import Refused, Reserve, Reserved
from python_backends.nouns.request import WaitReason
from python_backends.nouns.step import Tokens
from python_backends.settings import EngineSettings, ModelSettings, Settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.vocabulary import vocabulary_of
from python_backends.wires.sessions import NewSession
from tests.support.instance_link import Link, submit
from tests.support.moving import BlocksWire, Network
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
    engine = EngineSettings(kind=TOY, slots=3, block_tokens=4, token_budget=16)
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


class Slow:
    """An instance over the toy engine in which no guide is prepared before `opened` is set."""

    def __init__(self, messages: Sequence[Any], slots: int = 2) -> None:
        self.opened = threading.Event()
        engine = EngineSettings(kind=TOY, slots=slots, block_tokens=4, token_budget=16)
        settings = Settings(model=ModelSettings(directory=str(BUNDLED)), engine=engine)
        self.scheduler, self.engine = build(settings)
        self.link = Link([list(messages)])
        guides = Guides(self._vocabulary)
        self.engine.follow(guides)  # type: ignore[attr-defined]
        self.guided = GuidedRequests(guides)
        self.instance = Instance(
            self.scheduler, self.engine, self.link, lambda _: None, 0, Parts(guided=self.guided)
        )

    def _vocabulary(self) -> Vocabulary:
        self.opened.wait(WAIT_S)
        return vocabulary_of(CHECKPOINT, self.scheduler.limits.vocab_size)

    def turns(self, until: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + WAIT_S
        while not until() and time.monotonic() < ends_s:
            self.instance.turn()
        assert until()

    @property
    def failed(self) -> list[Failed]:
        return [each for each in self.link.published if isinstance(each, Failed)]


def ask(number: int, pattern: str = "[a-z]{3,9}", **sampling: Any) -> Submit:
    grammar = grammar_of("regex", pattern)
    sampling = {"max_tokens": 20, "stop_ids": CHECKPOINT.eos_ids, **sampling}
    return submit(number, 5, grammar=grammar, **sampling)


def test_a_request_gets_its_slot_when_its_guide_is_compiled_and_others_pass() -> None:
    slow = Slow([ask(1), submit(2, 5, max_tokens=9)])
    slow.turns(lambda: slow.link.num_ended == 1)
    assert slow.link.answers.keys() == {2}
    assert slow.scheduler.load().wait_reason is WaitReason.GUIDE
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == 2)
    assert 3 <= len(text_of(slow.link.answers[1])) <= 9
    assert slow.scheduler.load().wait_reason is None


def test_a_guide_that_can_not_be_compiled_fails_its_request_alone() -> None:
    slow = Slow([ask(1, "("), ask(2), submit(3, 5, max_tokens=9)])
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == 2)
    (failed,) = slow.failed
    assert (failed.request_id, failed.request_epoch) == (1, 0)
    assert failed.error.startswith("guided_decoding_guide: ")


def test_a_fault_while_a_guide_is_prepared_fails_its_request_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare = Guides._prepare

    def faulty(guides: Guides, followed: Followed) -> None:
        if followed.grammar == faulty_one.request.sampling.grammar:
            raise MemoryError("no memory is left")
        prepare(guides, followed)

    monkeypatch.setattr(Guides, "_prepare", faulty)
    faulty_one = ask(1, "[0-9]{3}")
    slow = Slow([faulty_one, ask(2), submit(3, 5, max_tokens=9)])
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == 2)
    assert slow.failed == [
        Failed(1, "guided_decoding_guide: could not be prepared; the server's log says more", 0)
    ]
    assert "no memory is left" in caplog.text


def test_delivered_tokens_that_do_not_follow_the_guide_fail_their_request_alone() -> None:
    begun = np.array(CHECKPOINT.tokenizer.encode("12", add_special_tokens=False).ids, np.int32)
    slow = Slow([ask(1).changed(delivered=begun), ask(2)])
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == 1)
    (failed,) = slow.failed
    assert (failed.request_id, "do not follow" in failed.error) == (1, True)


@pytest.mark.parametrize(("cancel", "is_left"), [(Cancel(1), False), (Cancel(1, 7), True)])
def test_what_is_cancelled_meanwhile_is_not_answered(cancel: Cancel, is_left: bool) -> None:
    slow = Slow([ask(1)])
    slow.instance.turn()
    slow.link.inbox.append([cancel])
    slow.instance.turn()
    slow.opened.set()
    slow.turns(lambda: not slow.guided.is_preparing and slow.scheduler.is_idle)
    assert (1 in slow.link.answers) == is_left


def test_of_two_lives_of_a_request_the_later_is_answered() -> None:
    slow = Slow([ask(1), ask(1).changed(request_epoch=1)])
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == 1 and not slow.guided.is_preparing)
    epochs = [each.request_epochs.tolist() for each in slow.link.published if isinstance(each, Tokens)]
    assert {epoch for step in epochs for epoch in step} == {1}
    assert slow.failed == []


def test_a_request_moves_here_when_its_guide_is_compiled() -> None:
    """It is refused before, and its guide is compiled meanwhile: the loop never waits for it."""
    reserves = [Reserve(move, ask(1).request, np.array([5], np.int32), move) for move in (1, 2)]
    slow = Slow(reserves[:1])
    copier = Copier(BlocksWire(Network(), "blocks-0"), slow.engine)  # type: ignore[arg-type]
    slow.instance._moves = Moves(slow.scheduler, copier, 0)
    slow.instance.turn()
    assert [each for each in slow.link.published if isinstance(each, Refused)] == [Refused(1, "guide")]
    slow.opened.set()
    slow.turns(lambda: not slow.guided.is_preparing)
    slow.link.inbox.append([reserves[1]])
    slow.instance.turn()
    assert [each for each in slow.link.published if isinstance(each, Reserved)] == [Reserved(2, 0)]


def test_a_new_session_forgets_what_is_prepared() -> None:
    slow = Slow([ask(1, "(")])
    slow.instance.turn()
    slow.link.inbox.append([NewSession(), ask(1)])
    slow.instance.turn()
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == 1)
    assert slow.failed == []


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """The loop's share: what it compiles, and how many tokens a matcher takes there at once."""
    done: list[tuple[str, int]] = []
    loop, compile_, take = threading.get_ident(), Guides._compile, Matcher.take

    def compiling(guides: Guides, grammar: str) -> Any:
        if threading.get_ident() == loop:
            done.append(("compile", len(grammar)))
        return compile_(guides, grammar)

    def taking(matcher: Matcher, tokens: Sequence[int]) -> bool:
        if threading.get_ident() == loop:
            done.append(("take", len(tokens)))
        return take(matcher, tokens)

    monkeypatch.setattr(Guides, "_compile", compiling)
    monkeypatch.setattr(Matcher, "take", taking)
    return done


def test_the_loop_compiles_nothing_though_more_guides_wait_than_are_kept(work: list[tuple[str, int]]) -> None:
    count = 2 * MOST_KEPT
    slow = Slow([ask(number, f"[a-z]{{3,9}}|{number}x") for number in range(count)])
    slow.opened.set()
    slow.turns(lambda: slow.link.num_ended == count)
    assert slow.failed == []
    assert set(work) == {("take", 1)}


def test_the_loop_takes_no_token_again_of_an_answer_that_was_evicted_or_begun_elsewhere(
    work: list[tuple[str, int]],
) -> None:
    pattern, length = "[a-z]{80,90}", 120
    whole = Slow([ask(1, pattern, max_tokens=length)])
    whole.opened.set()
    whole.turns(lambda: whole.link.num_ended == 1)
    answer = whole.link.answers[1]
    assert len(answer) > 20
    begun = ask(2, pattern, max_tokens=length).changed(
        request=ask(1, pattern, max_tokens=length).request.changed(request_id=2),
        delivered=np.array(answer[:10], np.int32),
    )
    again = Slow([ask(1, pattern, max_tokens=length), begun])
    again.opened.set()
    again.turns(lambda: len(again.link.answers.get(1, [])) > 10)
    sequence = again.scheduler.find(1)
    assert sequence is not None
    again.scheduler._evict(sequence)
    again.turns(lambda: again.link.num_ended == 2)
    assert again.link.answers == {1: answer, 2: answer[10:]}
    assert set(work) == {("take", 1)}
