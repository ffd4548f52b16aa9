"""Several instances behind one server: requests are divided among them, and one may die."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.expected import PROMPT, Expected
from tests.server.serving import Gapless, wait_for
from tests.server.test_recovery import check_that_only_the_poisonous_request_fails

LONG = {"max_tokens": 300, "min_tokens": 300}


@pytest.fixture(scope="module")
def cluster(toy_model: Path) -> Iterator[Gapless]:
    """Two instances of the toy engine."""
    settings = {"model.directory": toy_model, "engine.kind": "toy", "engine.slots": 8, "toy.step_ms": 10}
    served = Gapless(**settings, **{"cluster.instances": 2, "streams.dead_after_s": 3})
    wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 60)
    yield served
    assert served.stop() == 0


def by_instance(cluster: Gapless, name: str) -> list[float]:
    metrics = cluster.metrics()
    return [metrics[f'{name}{{instance="{number}"}}'] for number in range(2)]


def test_both_instances_answer(cluster: Gapless, expected: Expected) -> None:
    before = by_instance(cluster, "gapless_dispatches_total")
    client = cluster.grpc()
    answers = {f"{n}": client.ask(f"{n}", text_input=f"{PROMPT} {n}", **LONG) for n in range(16)}
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers.values()))
    assert by_instance(cluster, "gapless_instance_slots_busy") == [8, 8], "all have a slot"
    client.finish()
    client.close()
    for n in range(16):
        assert answers[f"{n}"].text == expected.text(f"{PROMPT} {n}", **LONG)
        assert answers[f"{n}"].reasons == ["length"]
    after = by_instance(cluster, "gapless_dispatches_total")
    assert [now - then for now, then in zip(after, before, strict=True)] == [8, 8]
    wait_for(cluster.is_idle, 60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_when_one_instance_dies_all_streams_are_whole(
    cluster: Gapless, expected: Expected, number: signal.Signals
) -> None:
    losses = cluster.metrics()["gapless_instance_losses_total"]
    client = cluster.grpc()
    answers = {f"{n}": client.ask(f"{n}", text_input=f"{PROMPT} {n}", **LONG) for n in range(16)}
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers.values()))
    cluster.kill(cluster.instance_pid(1), number)
    client.finish()
    client.close()
    for n in range(16):
        assert answers[f"{n}"].error == ""
        assert answers[f"{n}"].text == expected.text(f"{PROMPT} {n}", **LONG)
        assert answers[f"{n}"].reasons == ["length"]
    metrics = cluster.metrics()
    assert metrics["gapless_instance_losses_total"] == losses + 1
    assert metrics['gapless_restarts_total{process="instance-0"}'] == 0
    wait_for(lambda: cluster.metrics()['gapless_instances{state="ready"}'] == 2, 60)


def test_requests_are_answered_while_one_instance_is_away(cluster: Gapless, expected: Expected) -> None:
    cluster.kill(cluster.instance_pid(1), signal.SIGSTOP)
    for n in range(4):
        answer = cluster.generate(text_input=f"{PROMPT} {n}", max_tokens=5, min_tokens=5)
        assert answer["text_output"] == expected.text(f"{PROMPT} {n}", max_tokens=5, min_tokens=5)
    wait_for(lambda: cluster.metrics()['gapless_instances{state="ready"}'] == 2, 60)


def test_a_request_that_ends_its_instance_ends_no_other(toy_model: Path, expected: Expected) -> None:
    settings = {"model.directory": toy_model, "engine.kind": "toy", "toy.step_ms": 5, "toy.poison_token": 511}
    served = Gapless(**settings, **{"cluster.instances": 2, "streams.dead_after_s": 3})
    wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 60)
    check_that_only_the_poisonous_request_fails(served, expected)
    metrics = served.metrics()
    restarts = [metrics[f'gapless_restarts_total{{process="instance-{number}"}}'] for number in range(2)]
    assert sorted(restarts) == [0, 3], "the same one each time"
    assert served.stop() == 0
