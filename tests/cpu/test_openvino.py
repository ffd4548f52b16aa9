"""What the OpenVINO engine alone has: padding, steps in a thread of its own, models that it refuses.
Its tokens are compared with transformers' in test_parity.py and test_families.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from python_backends.engine.openvino import known_fault
from python_backends.engine.protocol import Announcing
from python_backends.nouns.request import Request, Sampling
from python_backends.settings import SettingsError
from tests.support.tiny_models import (
    Serving,
    TinyModel,
    random_requests,
)


@pytest.mark.parametrize("ahead", [0, 1])
def test_rows_go_on_beside_padding_as_they_do_alone(one: TinyModel, ahead: int) -> None:
    """11 rows and 13 are padded to 12 and 14 at every step of their run."""
    for count in (11, 13):
        requests = random_requests(count, seed=12, max_tokens=40)
        serving = Serving(one.openvino_engine(slots=count, steps_ahead=ahead), token_budget=1000, ahead=ahead)
        answers = serving.run(requests)
        one.check_all(requests, answers)
        serving.engine.close()


def test_stops_draws_penalties_and_log_probabilities_are_those_of_one_step_after_the_other(
    one: TinyModel,
) -> None:
    free = Serving(one.openvino_engine()).run(random_requests(1, seed=6))[0]
    requests = random_requests(1, seed=6, stop_ids=(free[9],))
    others = random_requests(
        8, seed=7, temperature=0.9, repetition_penalty=1.3, log_probs=True, num_top_log_probs=2
    )
    requests += [Request(request.request_id + 1, request.prompt, request.sampling) for request in others]
    expected = Serving(one.openvino_engine(slots=3), ahead=0).run(requests)
    assert expected[0] == free[: free.index(free[9]) + 1]
    for ahead in (1, 2):
        assert Serving(one.openvino_engine(slots=3, steps_ahead=ahead), ahead=ahead).run(requests) == expected


def test_every_step_but_the_first_tells_how_long_it_was_waited_for(one: TinyModel) -> None:
    serving = Serving(one.openvino_engine(steps_ahead=1), ahead=0)
    serving.submit(random_requests(1)[0])
    outputs = []
    while not serving.scheduler.is_idle:
        plan = serving.scheduler.plan()
        assert plan is not None
        serving.engine.launch(plan)
        outputs.append(serving.engine.collect())
        serving.scheduler.apply(plan, outputs[-1])
    assert all(output.busy_s > 0 for output in outputs)
    assert outputs[0].gap_s == 0
    assert all(output.gap_s > 0 for output in outputs[1:])


def test_a_loop_that_waits_is_told_when_a_step_is_done(one: TinyModel) -> None:
    serving, done = Serving(one.openvino_engine(steps_ahead=1), ahead=1), threading.Semaphore(0)
    assert isinstance(serving.engine, Announcing)
    serving.engine.on_done(done.release)
    serving.submit(random_requests(1)[0])
    for _ in range(5):
        serving.step()
        assert done.acquire(timeout=30)
    serving.engine.close()


def test_the_same_seed_draws_the_same_text_in_any_company(one: TinyModel) -> None:
    drawn = Request(
        0, np.arange(20, dtype=np.int32), Sampling(max_tokens=30, temperature=0.8, top_p=0.9, seed=7)
    )
    alone = Serving(one.openvino_engine()).run([drawn])[0]
    others = [
        Request(request.request_id + 1, request.prompt, request.sampling) for request in random_requests(5)
    ]
    assert Serving(one.openvino_engine()).run([*others, drawn])[0] == alone


@pytest.mark.parametrize(
    ("name", "setting", "named"),
    [
        ("gemma2", {}, "soft-capped"),
        ("mixtral", {}, "mixtures of experts are not computed by the openvino engine; engine.kind = 'torch'"),
        ("llama_grouped", {"block_tokens": 16}, r"engine\.block_tokens = 16"),
        ("llama_grouped", {"device": "cuda"}, r"model\.device = 'cuda'"),
    ],
)
def test_what_it_can_not_run_is_refused_by_name(
    tiny: Callable[[str], TinyModel], name: str, setting: dict[str, object], named: str
) -> None:
    with pytest.raises(SettingsError, match=named):
        tiny(name).openvino_engine(**setting)


def test_a_model_whose_graph_would_end_the_process_is_refused(
    tiny: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma in bfloat16 for one thread, on a processor that is said to have AMX."""
    monkeypatch.setattr(known_fault, "processor_flags", lambda: known_fault.AMX)
    with pytest.raises(SettingsError, match=r"engine\.threads = 1: .* give it two, or set"):
        tiny("gemma3").openvino_engine(dtype="bfloat16")
