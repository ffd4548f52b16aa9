"""Requests move at random between two instances while they are answered, and no text changes, also if
instances die or clients go away meanwhile. GAPLESS_MOVES: each test goes on until so many have moved.
"""

from __future__ import annotations

import json
import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.server.test_cluster import LONG, check_nothing_is_kept, migrations
from tests.support.server.disturbing import disturbed
from tests.support.server.expected import PROMPT, Expected
from tests.support.server.serving import ROOT, Gapless, wait_for
from tests.support.server.whole_answers import check_whole, whole_answers
from tests.support.shuffle import SHUFFLE
from tests.support.toy_engine import toy_settings

NUM_MOVES = int(os.environ.get("GAPLESS_MOVES", "50"))
NUM_STAYING, NUM_LEAVING = 40, 12  # clients of one round in which instances are killed


@pytest.fixture(scope="module")
def shuffled(toy_model: Path) -> Iterator[Gapless]:
    """Two instances between which requests move all the time."""
    settings = {**toy_settings(toy_model, step_ms=10), "engine.slots": 64}
    cluster = {"cluster.instances": 2, "cluster.policy": SHUFFLE}
    with Gapless(**settings, **cluster, **{"streams.dead_after_s": 3}) as served:
        wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 60)
        yield served


def test_requests_move_while_they_are_answered_and_no_text_changes(
    shuffled: Gapless, expected: Expected
) -> None:
    """A tenth of the clients come by HTTP."""
    while migrations(shuffled, "shuffle") < NUM_MOVES:
        with ThreadPoolExecutor(10) as threads, whole_answers(shuffled, expected, 90, **LONG):
            by_http = {
                n: threads.submit(shuffled.generate_stream, text_input=f"{PROMPT} {n}", **LONG)
                for n in range(90, 100)
            }
        check_whole({n: answer.result() for n, answer in by_http.items()}, expected, **LONG)
        assert migrations(shuffled, "shuffle") >= 50
    check_nothing_is_kept(shuffled)


@pytest.mark.slow
def test_instances_are_killed_while_requests_move_and_every_text_is_whole(
    shuffled: Gapless, expected: Expected
) -> None:
    """Each of them twice, once by SIGSTOP, in random order; clients go away meanwhile."""
    rng, moves, rounds = random.Random(1), migrations(shuffled, "shuffle"), 0
    ended = num_ended(shuffled)
    while migrations(shuffled, "shuffle") < moves + NUM_MOVES:
        kill_instances(shuffled, expected, rng)
        rounds += 1
    check_nothing_is_kept(shuffled)
    assert num_ended(shuffled) - ended == rounds * (NUM_STAYING + NUM_LEAVING), "each has ended once"
    done = migrations(shuffled, "shuffle") - moves
    print(f"{done:.0f} moves; {rounds} times 4 instances were killed and {NUM_LEAVING} requests cancelled")


def num_ended(served: Gapless) -> float:
    """Requests that have ended in whatever way."""
    counts = served.metrics().items()
    return sum(count for name, count in counts if name.startswith("gapless_requests_total"))


def kill_instances(shuffled: Gapless, expected: Expected, rng: random.Random) -> None:
    losses = shuffled.metrics()["gapless_instance_losses_total"]
    most = {"max_tokens": 1500, "min_tokens": 1500}
    leaving = [shuffled.grpc() for _ in range(NUM_LEAVING)]
    for n, each in enumerate(leaving):
        each.ask("0", text_input=f"{PROMPT} leaves {n}", **most)
    for each in leaving:
        each.read_until(lambda each=each: each.answers["0"].chunks > 0)
    with whole_answers(shuffled, expected, NUM_STAYING, **most) as client:
        for instance, number in rng.sample([(0, "KILL"), (1, "KILL"), (0, "STOP"), (1, "STOP")], 4):
            client.drain(rng.uniform(0.5, 1.5))  # requests move meanwhile
            for _ in range(NUM_LEAVING // 4):
                gone = leaving.pop()
                gone.cancel()
                gone.close()
            shuffled.kill(shuffled.instance_pid(instance), signal.Signals[f"SIG{number}"])
            losses += 1
            wait_for(lambda most=losses: shuffled.metrics()["gapless_instance_losses_total"] >= most, 60)
            moves = migrations(shuffled, "shuffle")
            wait_for(lambda: shuffled.metrics()['gapless_instances{state="ready"}'] == 2, 60)
            # requests move only when none is suspected: one that is alone in a crash would be failed
            wait_for(lambda most=moves: migrations(shuffled, "shuffle") > most or shuffled.is_idle(), 120)


@pytest.mark.slow
def test_if_the_destination_stops_while_blocks_are_copied_the_source_goes_on(
    toy_model: Path, expected: Expected
) -> None:
    """Its blocks weigh as much as those of a large model, so that many moves are under way."""
    settings = {**toy_settings(toy_model, step_ms=10, block_bytes=2_000_000), "engine.slots": 16}
    settings |= {"engine.kv_blocks": 256, "streams.dead_after_s": 10}
    cluster = {"cluster.instances": 2, "cluster.policy": SHUFFLE}
    with Gapless(**settings, **cluster) as served:
        wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 60)
        with whole_answers(served, expected, 8, max_tokens=600, min_tokens=600) as client:
            client.read_until(lambda: all(answer.chunks > 20 for answer in client.answers.values()))
            pid = served.instance_pid(1)
            for _ in range(3):  # each pause is shorter than what an instance may be silent
                os.kill(pid, signal.SIGSTOP)
                client.drain(2)
                os.kill(pid, signal.SIGCONT)
                client.drain(0.5)
        assert served.metrics()["gapless_instance_losses_total"] == 0
        check_nothing_is_kept(served)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled model as a Mistral, whose layers have the same weights, with sliding windows."""
    directory = tmp_path_factory.mktemp("windowed")
    for path in (ROOT / "models" / "bundled").iterdir():
        if path.name != "config.json":
            (directory / path.name).symlink_to(path)
    config = json.loads((ROOT / "models" / "bundled" / "config.json").read_text())
    config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 48}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


# with many moves both models; with few one of them by torch's operators, the other by layers in C++
SLIDING = [("off", True), ("auto", False)]
SLIDING += [("off", False), ("auto", True)] * (NUM_MOVES >= 1000)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "slides"), SLIDING)
def test_the_bundled_model_gives_the_same_answers_while_requests_move(
    windowed: Path, layers: str, slides: bool
) -> None:
    """Greedy and sampled, with penalties and log-probabilities, in float32; with sliding windows or not."""
    settings = {
        "engine.kind": "torch",
        "engine.cpp_layers": layers,
        "model.dtype": "float32",
        "engine.slots": 16,
        "engine.threads": 1,  # those of torch spin while they wait for each other
    }
    settings |= {"model.directory": windowed} if slides else {}
    most = {"max_tokens": 100, "min_tokens": 100}
    kinds: list[dict[str, Any]] = [
        {},
        {"temperature": 0.8, "seed": 7},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5},
        {"return_log_probs": True},
        {"temperature": 1.0, "seed": 9, "frequency_penalty": 0.4, "return_log_probs": True},
    ]
    inputs = [{"text_input": f"def read_{n}(self, size", **most, **kinds[n % 5]} for n in range(15)]
    with Gapless(**settings) as one:
        expected = texts_and_scores(one, inputs)
    cluster = {"cluster.instances": 2, "cluster.policy": SHUFFLE}
    with Gapless(**settings, **cluster) as served:
        num_answers, difference = 0, 0.0
        while migrations(served, "shuffle") < NUM_MOVES:
            for (text, scores), (wanted, wanted_scores) in zip(
                texts_and_scores(served, inputs), expected, strict=True
            ):
                assert text == wanted
                np.testing.assert_allclose(scores, wanted_scores, atol=1e-3)
                difference = max(difference, float(np.abs(scores - wanted_scores).max(initial=0.0)))
                num_answers += 1
        assert [len(scores) for _, scores in expected] == [
            100 * ("return_log_probs" in each) for each in inputs
        ]
        done = migrations(served, "shuffle")
        print(
            f"{done:.0f} moves, {num_answers} answers; log-probabilities differ by {difference:.1g} at most"
        )
        assert disturbed(served, inputs, [1])[0] == [text for text, _ in expected], "also through a kill"


def texts_and_scores(served: Gapless, inputs: list[dict[str, Any]]) -> list[tuple[str, NDArray[np.float32]]]:
    """All are asked at once. The log-probabilities of an answer's tokens: [tokens], or [0]."""
    client = served.grpc()
    asked = [client.ask(f"{n}", **each) for n, each in enumerate(inputs)]
    client.finish(120)
    client.close()
    assert [each.error for each in asked] == [""] * len(asked)
    scores = [[each.as_numpy("output_log_probs") for each in answer.results] for answer in asked]
    return [
        (answer.text, np.concatenate([[], *(each.reshape(-1) for each in found if each is not None)]))
        for answer, found in zip(asked, scores, strict=True)
    ]
