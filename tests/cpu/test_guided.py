"""Answers that follow a guide, of every engine that chooses tokens by our sampler: JSON that the schema
validates, the same through restarts, evictions and steps ahead, and neighbours that notice nothing.

The models are random, so what is valid in an answer comes from the masks. Moves: test_moved_requests.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine, FollowsGuides
from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import Guides
from python_backends.nouns.request import Finish, Request, Sampling
from python_backends.scheduling.state.sequence import Sequence
from tests.cpu.test_log_probs import Scored
from tests.support.guided import END, STOP, guides, text_of
from tests.support.schemas import NUM_RANDOM, SCHEMAS, random_schema
from tests.support.tiny_models import Serving, TinyModel, random_requests

PERSON = SCHEMAS["person"]
KINDS: dict[str, tuple[Callable[[TinyModel, dict[str, Any]], Engine], int]] = {
    "torch": (lambda tiny, options: tiny.engine(**options), 0),
    "torch, ahead": (lambda tiny, options: tiny.engine(**options), 1),
    "torch, fixed shapes": (lambda tiny, options: tiny.engine(cuda_graphs="eager", **options), 1),
}
if library() is not None:
    KINDS |= {
        "layers": (lambda tiny, options: tiny.layers_engine(**options), 0),
        "layers, ahead": (lambda tiny, options: tiny.layers_engine(**options), 1),
    }
GUIDES = guides()  # compiled once


def engine_of(tiny: TinyModel, kind: str, known: Guides = GUIDES, **options: Any) -> tuple[Engine, int]:
    make, ahead = KINDS[kind]
    engine = make(tiny, options)
    assert isinstance(engine, FollowsGuides)
    engine.follow(known)
    return engine, ahead


def asking(schema: dict[str, Any] | None, number: int, kind: str = "json_schema", **sampling: Any) -> Request:
    guide = json.dumps(schema) if isinstance(schema, dict) else schema or ""
    (request,) = random_requests(1, seed=number)
    return request.changed(
        request_id=number,
        sampling=Sampling(
            **{"max_tokens": 120, "temperature": 1.0, "seed": number, "stop_ids": (END,)}
            | {"grammar": grammar_of(kind, guide)}
            | sampling
        ),
    )


def check(schema: dict[str, Any], answer: list[int], finish: Finish) -> None:
    if finish == Finish.LENGTH:
        return
    assert finish == Finish.STOP
    assert answer[-1] == END
    jsonschema.validate(json.loads(text_of(answer)), schema, jsonschema.Draft202012Validator)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tiny_llama(tiny: Callable[[str], TinyModel]) -> TinyModel:
    return tiny("llama_grouped")


def test_an_answer_that_is_whole_is_json_of_its_schema(tiny_llama: TinyModel, kind: str) -> None:
    engine, ahead = engine_of(tiny_llama, kind)
    serving = Serving(engine, ahead=ahead)
    schemas = [schema for schema in SCHEMAS.values() for _ in range(2)]
    answers = serving.run(asking(schema, number) for number, schema in enumerate(schemas))
    for number, schema in enumerate(schemas):
        check(schema, answers[number], serving.finishes[number])
    whole = [finish for finish in serving.finishes.values() if finish == Finish.STOP]
    assert len(whole) > len(schemas) // 2


def test_neighbours_of_an_answer_with_a_guide_keep_their_tokens(tiny_llama: TinyModel, kind: str) -> None:
    engine, ahead = engine_of(tiny_llama, kind)
    plain, drawn = random_requests(2, seed=1), random_requests(2, seed=3, temperature=0.9, top_p=0.95)
    free = [each.changed(request_id=100 + number) for number, each in enumerate([*plain, *drawn])]
    alone = dict(Serving(engine, ahead=ahead).run(free))
    beside = Serving(engine, ahead=ahead)
    beside.run([asking(PERSON, 1), *free[:2], asking(PERSON, 2), *free[2:], asking(PERSON, 3)])
    assert {number: beside.answers[number] for number in alone} == alone


def test_a_restarted_answer_goes_on_with_the_same_json(tiny_llama: TinyModel, kind: str) -> None:
    engine, ahead = engine_of(tiny_llama, kind)
    requests = [asking(PERSON, number) for number in range(4)]
    whole = {number: list(answer) for number, answer in Serving(engine, ahead=ahead).run(requests).items()}
    for cut in (1, 5, 11):
        again = Serving(engine, ahead=ahead)
        for request in requests:
            again.submit(request, whole[request.request_id][:cut])
        assert again.run() == whole


@pytest.mark.slow
def test_answers_of_many_schemas_are_valid_and_the_same_through_a_restart(
    tiny_llama: TinyModel, kind: str
) -> None:
    """All of them with steps ahead, by torch and by layers; a fifth of them otherwise."""
    engine, ahead = engine_of(tiny_llama, kind)
    every = 1 if kind in ("torch, ahead", "layers, ahead") else 5
    schemas = [random_schema(seed) for seed in range(0, NUM_RANDOM, every)]
    requests = [asking(schema, number, max_tokens=60) for number, schema in enumerate(schemas)]
    serving = Serving(engine, ahead=ahead)
    whole = {number: list(answer) for number, answer in serving.run(requests).items()}
    for number, schema in enumerate(schemas):
        check(schema, whole[number], serving.finishes[number])
    assert list(serving.finishes.values()).count(Finish.STOP) > len(schemas) // 2
    again = Serving(engine, ahead=ahead)
    for request in requests:
        answer = whole[request.request_id]
        again.submit(request, answer[: len(answer) // 2])
    assert again.run() == whole


@pytest.mark.parametrize("kind", ["torch", "torch, ahead"])
def test_evicted_answers_go_on_with_the_same_json(tiny_llama: TinyModel, kind: str) -> None:
    requests = [asking(SCHEMAS["any"], number, max_tokens=50) for number in range(8)]
    engine, ahead = engine_of(tiny_llama, kind)
    whole = dict(Serving(engine, ahead=ahead).run(requests))
    small, _ = engine_of(tiny_llama, kind, kv_blocks=24, max_model_tokens=120)
    scarce = Serving(small, ahead=ahead, reserve=_reserve_little)
    assert scarce.run(requests) == whole
    assert scarce.scheduler.num_evictions > 0


def _reserve_little(sequence: Sequence) -> int:
    return 8


def test_an_answer_ends_where_it_is_whole_and_nowhere_else(tiny_llama: TinyModel, kind: str) -> None:
    """The stop id is one that the model may choose as text, too."""
    engine, ahead = engine_of(tiny_llama, kind)
    serving = Serving(engine, ahead=ahead)
    requests = [
        asking("a{5,30}", number, "regex", stop_ids=(END, STOP), max_tokens=40) for number in range(6)
    ]
    answers = serving.run(requests)
    assert set(serving.finishes.values()) == {Finish.STOP}
    for answer in answers.values():
        assert 5 <= len(text_of(answer)) <= 30
        assert answer[-1] in (END, STOP)


def test_an_answer_may_end_by_its_length(tiny_llama: TinyModel, kind: str) -> None:
    engine, ahead = engine_of(tiny_llama, kind)
    serving = Serving(engine, ahead=ahead)
    answers = serving.run([asking("a{5,30}", 0, "regex", max_tokens=3)])
    assert (text_of(answers[0]), serving.finishes[0]) == (b"aaa", Finish.LENGTH)


def test_log_probabilities_stay_those_of_the_model(tiny_llama: TinyModel, kind: str) -> None:
    """Before the first token nothing differs but the mask."""
    engine, ahead = engine_of(tiny_llama, kind)
    scored = {"log_probs": True, "num_top_log_probs": 3, "temperature": 0.0, "max_tokens": 1}
    tops, tokens = [], []
    for grammar in ({}, {"grammar": ""}):
        serving = Scored(engine, ahead=ahead)
        serving.run([asking("zz", 0, "regex", **scored, **grammar)])
        tops.append(serving.scores[0].since(0))
        tokens.append(serving.answers[0])
    np.testing.assert_array_equal(tops[0].top_ids, tops[1].top_ids)
    np.testing.assert_allclose(tops[0].top, tops[1].top, atol=1e-4)
    assert tokens[0] == [ord("z")]


def test_what_follows_no_grammar_fails_alone(tiny_llama: TinyModel, kind: str) -> None:
    """Tokens of an earlier life that the guide does not allow: the instance and its neighbours go on."""
    engine, ahead = engine_of(tiny_llama, kind)
    serving = Serving(engine, ahead=ahead)
    serving.submit(asking("a+", 0, "regex"), [ord("b")])
    serving.submit(asking("a{5}", 1, "regex"))
    answers = serving.run()
    assert text_of(answers[1]) == b"aaaaa"
    (failed,) = serving.scheduler.take_failed()
    assert failed.request_id == 0


def test_four_answers_of_one_prompt_share_a_guide(tiny_llama: TinyModel, kind: str) -> None:
    engine, ahead = engine_of(tiny_llama, kind)
    serving = Serving(engine, ahead=ahead)
    prompt: np.ndarray[Any, Any] = np.arange(40, dtype=np.int32)
    requests = [asking(PERSON, number).changed(prompt=prompt) for number in range(4)]
    answers = serving.run(requests)
    for number in range(4):
        check(PERSON, answers[number], serving.finishes[number])
    assert len({tuple(answer) for answer in answers.values()}) == 4
