"""The TensorRT-LLM engine, over a stand-in with TensorRT-LLM's manners: answers,
ends, cancels, faults, memory, what it refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorrt_llm.manners import manners

from python_backends.engine.tensorrt_llm import request_loop
from python_backends.engine.tensorrt_llm.request_loop import EngineDeadError
from python_backends.nouns.messages import Cancel, Failed
from python_backends.nouns.request import AdapterVersion, Finish, Sampling
from python_backends.nouns.step import Admit
from tests.support.tensorrt import MAX_MODEL_TOKENS, VOCAB_SIZE, Serving, answer_of, make_settings, submit
from tests.support.toy_engine import toy_log_probs

# --- answers


def test_twelve_requests_over_three_slots_get_their_answers_and_none_waits_inside(model: Path) -> None:
    asked = [submit(number, 5 + 3 * number, max_tokens=30 + number) for number in range(12)]
    with Serving(make_settings(model), [[one] for one in asked]) as serving:
        answers = serving.run()
        assert answers == {number: answer_of(one) for number, one in enumerate(asked)}
        assert set(serving.link.finishes.values()) == {Finish.LENGTH}
        assert serving.llm.max_queued == 0


def test_the_tokens_of_one_iteration_come_together(model: Path) -> None:
    manners.step_ms = 10
    with Serving(
        make_settings(model), [[submit(number, 8, max_tokens=20) for number in range(3)]]
    ) as serving:
        serving.run()
        assert serving.link.rows == [3] * 20


@pytest.mark.parametrize("count", [2, 3, 7])
def test_responses_of_several_tokens_give_the_same_answers(model: Path, count: int) -> None:
    manners.tokens_a_response = count
    asked = [submit(number, 6, max_tokens=15 + number) for number in range(4)]
    with Serving(make_settings(model), [asked]) as serving:
        assert serving.run() == {number: answer_of(one) for number, one in enumerate(asked)}


@pytest.mark.parametrize("keeps_stop_ids", [True, False])
@pytest.mark.parametrize("place", [0, 1])
def test_a_stop_id_ends_the_answer_and_is_its_last_token(
    model: Path, keeps_stop_ids: bool, place: int
) -> None:
    """Among others, whether TensorRT-LLM leaves it in the tokens or not."""
    manners.keeps_stop_ids = keeps_stop_ids
    free = answer_of(submit(3, 9, max_tokens=20))
    others = [token for token in range(VOCAB_SIZE) if token not in free][:2]
    stop_ids = (free[6], *others) if place == 0 else (*others, free[6])
    with Serving(make_settings(model), [[submit(3, 9, max_tokens=20, stop_ids=stop_ids)]]) as serving:
        assert serving.run()[3] == free[:7]
        assert serving.link.finishes[3] == Finish.STOP


def test_no_stop_id_ends_an_answer_before_min_tokens(model: Path) -> None:
    """The first is barred as in the toy engine; the others come and end nothing before."""
    free = answer_of(submit(3, 9, max_tokens=20))
    unused = next(token for token in range(VOCAB_SIZE) if token not in free)
    asked = submit(3, 9, max_tokens=20, min_tokens=5, stop_ids=(unused, free[2], free[9]))
    with Serving(make_settings(model), [[asked]]) as serving:
        last = next(i for i, token in enumerate(free) if i >= 5 and token in asked.request.sampling.stop_ids)
        assert serving.run()[3] == free[: last + 1]
        assert serving.link.finishes[3] == Finish.STOP


def test_an_answer_ends_at_the_end_of_the_context(model: Path) -> None:
    asked = submit(1, MAX_MODEL_TOKENS - 40, max_tokens=100)
    with Serving(make_settings(model), [[asked]]) as serving:
        assert serving.run()[1] == answer_of(asked)[:40]
        assert serving.link.finishes[1] == Finish.LENGTH


def test_an_answer_goes_on_behind_what_was_delivered(model: Path) -> None:
    whole = answer_of(submit(2, 7, max_tokens=50))
    asked = submit(2, 7, delivered=whole[:20], max_tokens=50, min_tokens=30)
    with Serving(make_settings(model), [[asked]]) as serving:
        assert whole[:20] + serving.run()[2] == whole


def test_log_probabilities_are_those_of_the_stand_in(model: Path) -> None:
    asks = {"max_tokens": 12, "log_probs": True}
    asked = [submit(0, 5, **asks, num_top_log_probs=3), submit(1, 5, **asks), submit(2, 5, max_tokens=12)]
    with Serving(make_settings(model), [asked]) as serving:
        answers = serving.run()
        assert set(serving.link.log_probs) == {0, 1}
        for number in (0, 1):
            scores = serving.link.log_probs[number]
            assert [chosen for chosen, _, _ in scores] == [
                float(toy_log_probs(token, 0, VOCAB_SIZE).chosen[0]) for token in answers[number]
            ]
        for token, (_, ids, top) in zip(answers[0], serving.link.log_probs[0], strict=True):
            wanted = toy_log_probs(token, 3, VOCAB_SIZE)
            assert (ids, top) == (wanted.top_ids.tolist(), wanted.top.tolist())


@pytest.mark.parametrize("count", [1, 5])
def test_a_request_fails_alone_where_a_token_has_no_log_probability(model: Path, count: int) -> None:
    manners.scores_chosen, manners.tokens_a_response = False, count
    asks = {"max_tokens": 12, "temperature": 1.0, "log_probs": True, "num_top_log_probs": 2}
    asked = [submit(0, 5, **asks), submit(1, 5, max_tokens=12), submit(2, 5, **asks), submit(3, 5, **asks)]
    with Serving(make_settings(model), [asked]) as serving:
        assert serving.run() == {1: answer_of(asked[1])}
        assert set(serving.link.failed) == {0, 2, 3}
        assert "gives no log-probability" in serving.link.failed[0]
        assert serving.scheduler.blocks.num_used == 0


def test_an_adapter_changes_the_answers_of_its_requests_alone(model: Path, tmp_path: Path) -> None:
    for name in ("law", "poems"):
        (tmp_path / "adapters" / name).mkdir(parents=True)
        (tmp_path / "adapters" / name / "adapter_config.json").write_text(
            '{"r": 8, "target_modules": ["q_proj"]}'
        )
    settings = make_settings(model, adapters=str(tmp_path / "adapters"))
    plain = submit(0, 8, max_tokens=10)
    with Serving(
        settings,
        [[plain, submit(1, 8, adapter="law", max_tokens=10), submit(2, 8, adapter="poems", max_tokens=10)]],
    ) as serving:
        answers = serving.run()
        assert serving.engine.limits.adapters == (AdapterVersion("law"), AdapterVersion("poems"))
        assert answers[0] == answer_of(plain)
        firsts = [answer_of(submit(number, 8, max_tokens=10))[0] for number in (1, 2)]
        assert [answers[1][0], answers[2][0]] == [firsts[0] + 1, firsts[1] + 2]


def test_sampling_parameters_are_passed_on(model: Path) -> None:
    with Serving(make_settings(model)) as serving:
        sampled = Sampling(
            max_tokens=50, min_tokens=9, temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=11,
            stop_ids=(4, 5), repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=0.25,
            bad_words=((8,), (9,)), log_probs=True,
        )  # fmt: skip
        params = serving.engine._sampling_params(Admit(0, 0, sampled, 10, 20, np.zeros(0, np.int32)))  # type: ignore[attr-defined]
        # so small that it is greedy
        small = Sampling(max_tokens=5, temperature=1e-38, top_k=5, top_p=0.5, min_p=0.5, seed=3)
        greedy = serving.engine._sampling_params(Admit(0, 0, small, 10, 0, np.zeros(0, np.int32)))  # type: ignore[attr-defined]
    assert (params.max_tokens, params.min_tokens, params.temperature, params.top_k, params.top_p) == (
        30,
        None,
        0.5,
        7,
        0.9,
    )
    assert (params.min_p, params.seed, params.end_id, params.stop_token_ids) == (0.1, 31, 4, [5])
    assert (params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (1.5, 0.5, 0.25)
    assert (params.bad_token_ids, params.logprobs, params.detokenize) == ([8, 9], 1, False)
    assert (greedy.top_p, greedy.min_p) == (None, None)
    assert (greedy.top_k, greedy.temperature, greedy.seed, greedy.end_id, greedy.logprobs) == (
        1,
        None,
        None,
        -1,
        None,
    )


# --- cancelling


def test_a_cancelled_request_keeps_its_slot_until_the_engine_lets_go(model: Path) -> None:
    manners.step_ms = 5
    others = [submit(number, 8, max_tokens=60) for number in (1, 2)]
    with Serving(make_settings(model), [[submit(0, 8, max_tokens=100), *others]]) as serving:
        serving.run(lambda: len(serving.link.answers.get(0, ())) > 4)
        serving.link.inbox = [[Cancel(0)]]
        serving.run(lambda: not serving.link.inbox)
        assert serving.scheduler.num_running == 3
        had = len(serving.link.answers[0])
        before = len(serving.link.answers[1])
        serving.run(lambda: serving.scheduler.num_running < 3)
        num_held_steps = len(serving.link.answers[1]) - before
        serving.run()
        assert len(serving.link.answers[0]) == had, "nobody is told of its tokens any more"
        assert [serving.link.answers[number] for number in (1, 2)] == [answer_of(one) for one in others]
        assert serving.llm.max_queued == 0
    assert num_held_steps < 30


def test_a_slot_whose_end_is_never_told_is_free_after_a_while(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that is aborted before TensorRT-LLM has taken it from its queue is never answered."""
    monkeypatch.setattr(request_loop, "LOST_AFTER_S", 0.3)
    manners.step_ms = 30
    asked = [submit(number, 8, max_tokens=60) for number in range(2)]
    with Serving(make_settings(model, slots=2), [[asked[0]]]) as serving:
        serving.run(lambda: bool(serving.link.answers))
        serving.link.inbox = [[asked[1]], [Cancel(1)], [submit(2, 8, max_tokens=5)]]
        serving.run(lambda: 2 in serving.link.finishes)
        assert 1 not in serving.link.answers
        serving.run()
        assert serving.link.answers[0] == answer_of(asked[0])


def test_a_hundred_random_requests_a_third_of_them_cancelled(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_loop, "LOST_AFTER_S", 0.5)
    rng = np.random.default_rng(7)
    asked = [
        submit(number, int(rng.integers(1, 40)), max_tokens=int(rng.integers(1, 60))) for number in range(100)
    ]
    cancelled = {int(number) for number in rng.choice(100, 33, replace=False)}
    inbox: list[list[Any]] = [[one] for one in asked]
    for number in cancelled:
        inbox.insert(int(rng.integers(inbox.index([asked[number]]) + 1, len(inbox) + 60)), [Cancel(number)])
    with Serving(make_settings(model, kv_blocks=64), inbox) as serving:
        answers = serving.run(timeout_s=30)
        for number, one in enumerate(asked):
            had = answers.get(number, [])
            assert had == answer_of(one)[: len(had) if number in cancelled else None]
        assert serving.llm.max_queued <= 1, "one that is aborted before it was begun"
        assert serving.scheduler.blocks.num_used == 0


# --- faults


def test_a_request_that_fails_late_fails_alone(model: Path) -> None:
    manners.refused_token = 77
    asked = [submit(number, 8, max_tokens=40, last=77 if number == 1 else 0) for number in range(5)]
    with Serving(make_settings(model), [asked]) as serving:
        answers = serving.run()
        assert serving.link.failed == {1: "this request has gone wrong"}
        assert {number: answers[number] for number in (0, 2, 3, 4)} == {
            number: answer_of(asked[number]) for number in (0, 2, 3, 4)
        }
        assert serving.scheduler.blocks.num_used == 0


def test_an_error_that_comes_after_an_abort_frees_the_slot_and_is_told_nobody(model: Path) -> None:
    manners.hears_aborts = False
    manners.refused_token, manners.step_ms = 77, 20
    with Serving(make_settings(model), [[submit(1, 8, max_tokens=40, last=77)], [], [Cancel(1)]]) as serving:
        serving.run()
        assert serving.link.failed == {}


def test_a_failure_names_the_life_that_has_failed_and_is_not_the_length_of_an_answer(model: Path) -> None:
    """The next life of the request may run in another instance already."""
    manners.refused_token = 77
    asked = [submit(number, 8, max_tokens=40, last=77 if number == 1 else 0) for number in range(5)]
    asked = [message.changed(request_epoch=3) for message in asked]
    with Serving(make_settings(model), [asked]) as serving:
        serving.run()
        assert serving.link.failures == [Failed(1, "this request has gone wrong", 3)]
        assert len(serving.scheduler.outlook.future.lengths._ended) == 4


def test_a_request_that_is_refused_at_once_fails_alone(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Serving(make_settings(model), [[submit(0, 8, max_tokens=5), submit(1, 8, max_tokens=5)]]) as serving:
        ask = serving.llm.generate_async

        def generate_async(**arguments: Any) -> Any:
            if arguments["inputs"][0] == 1:
                raise ValueError("nothing begins with 1")
            return ask(**arguments)

        monkeypatch.setattr(serving.llm, "generate_async", generate_async)
        serving.run()
        assert serving.link.failed == {1: "nothing begins with 1"}
        assert serving.link.answers[0] == answer_of(submit(0, 8, max_tokens=5))


def test_the_death_of_the_engine_comes_out_of_collect(model: Path) -> None:
    manners.fatal_token = 99
    inbox = [[submit(0, 8, max_tokens=200)], [], [submit(1, 8, max_tokens=5, last=99)]]
    with (
        Serving(make_settings(model), inbox) as serving,
        pytest.raises(EngineDeadError, match="illegal memory access"),
    ):
        serving.run()


def test_an_error_that_befalls_all_requests_at_once_is_the_engines_death(model: Path) -> None:
    """TensorRT-LLM fails everybody with a RequestError when a step of its own goes
    wrong, and goes on as if nothing had happened.
    """
    manners.breaking_token, manners.step_ms = 99, 2
    inbox = [
        [submit(0, 8, max_tokens=200), submit(1, 8, max_tokens=200)],
        [],
        [submit(2, 8, max_tokens=5, last=99)],
    ]
    with Serving(make_settings(model), inbox) as serving:
        with pytest.raises(
            EngineDeadError, match=r"failed all [23] requests at once: an illegal memory access"
        ):
            serving.run()
        assert serving.link.failed == {}, "they go on in the next life"


def test_an_engine_that_only_fails_requests_is_dead(model: Path) -> None:
    manners.breaking_token = 99
    asked = [submit(number, 8, max_tokens=5, last=99) for number in range(5)]
    with Serving(make_settings(model, slots=1), [asked]) as serving:
        with pytest.raises(EngineDeadError, match="failed 3 requests without a token in between"):
            serving.run()
        assert set(serving.link.failed) == {0, 1}


def test_an_engine_that_says_nothing_is_dead(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_loop, "LOST_AFTER_S", 0.2)
    manners.silent_token = 99
    settings = make_settings(model)
    with (
        Serving(settings, [[submit(1, 8, max_tokens=5, last=99)]]) as serving,
        pytest.raises(EngineDeadError, match=r"for 0\.2 s"),
    ):
        serving.run()


def test_a_request_that_is_lost_among_others_fails_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_loop, "LOST_AFTER_S", 0.3)
    manners.silent_token, manners.step_ms = 99, 5
    other = submit(0, 8, max_tokens=150)
    with Serving(make_settings(model), [[other, submit(1, 8, max_tokens=5, last=99)]]) as serving:
        serving.run()
        assert "the engine has lost this request" in serving.link.failed[1]
        assert serving.link.answers[0] == answer_of(other)
