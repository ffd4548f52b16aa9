"""Several instances behind one server: requests are divided and move; one may die, or be emptied."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.test_recovery import check_that_only_the_poisonous_request_fails
from tests.support.server.expected import PROMPT, Expected
from tests.support.server.serving import ROOT, Gapless, wait_for
from tests.support.server.whole_answers import check_whole, whole_answers
from tests.support.toy_engine import toy_settings

LONG = {"max_tokens": 300, "min_tokens": 300}
LONGER = {"max_tokens": 900, "min_tokens": 900}


@pytest.fixture(scope="module")
def cluster(toy_model: Path) -> Iterator[Gapless]:
    """Two instances of the toy engine."""
    settings = {**toy_settings(toy_model, step_ms=10), "engine.slots": 16}
    with Gapless(**settings, **{"cluster.instances": 2, "streams.dead_after_s": 3}) as served:
        wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 60)
        yield served


def by_instance(cluster: Gapless, name: str) -> list[float]:
    metrics = cluster.metrics()
    return [metrics[f'{name}{{instance="{number}"}}'] for number in range(2)]


def test_both_instances_answer(cluster: Gapless, expected: Expected) -> None:
    before = by_instance(cluster, "gapless_dispatches_total")
    with whole_answers(cluster, expected, 16, **LONG):
        assert by_instance(cluster, "gapless_instance_slots_busy") == [8, 8], "all have a slot"
    after = by_instance(cluster, "gapless_dispatches_total")
    assert [now - then for now, then in zip(after, before, strict=True)] == [8, 8]
    wait_for(cluster.is_idle, 60)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_when_one_instance_dies_all_streams_are_whole(
    cluster: Gapless, expected: Expected, number: signal.Signals
) -> None:
    losses = cluster.metrics()["gapless_instance_losses_total"]
    with whole_answers(cluster, expected, 16, **LONG):
        cluster.kill(cluster.instance_pid(1), number)
    metrics = cluster.metrics()
    assert metrics["gapless_instance_losses_total"] == losses + 1
    assert metrics['gapless_restarts_total{process="instance-0"}'] == 0
    wait_for(lambda: cluster.metrics()['gapless_instances{state="ready"}'] == 2, 60)


def test_requests_are_answered_while_one_instance_is_away(cluster: Gapless, expected: Expected) -> None:
    losses = cluster.metrics()["gapless_instance_losses_total"]
    cluster.kill(cluster.instance_pid(1), signal.SIGSTOP)
    for n in range(4):
        answer = cluster.generate(text_input=f"{PROMPT} {n}", max_tokens=5, min_tokens=5)
        assert answer["text_output"] == expected.text(f"{PROMPT} {n}", max_tokens=5, min_tokens=5)
    wait_for(lambda: cluster.metrics()["gapless_instance_losses_total"] == losses + 1, 60)
    wait_for(lambda: cluster.metrics()['gapless_instances{state="ready"}'] == 2, 60)


@pytest.mark.slow
def test_a_request_that_ends_its_instance_ends_no_other(toy_model: Path, expected: Expected) -> None:
    settings = toy_settings(toy_model, step_ms=5, poison_token=511)
    with Gapless(**settings, **{"cluster.instances": 2, "streams.dead_after_s": 3}) as served:
        wait_for(lambda: served.metrics()['gapless_instances{state="ready"}'] == 2, 60)
        check_that_only_the_poisonous_request_fails(served, expected)
        metrics = served.metrics()
        restarts = [metrics[f'gapless_restarts_total{{process="instance-{number}"}}'] for number in range(2)]
        assert sorted(restarts) == [0, 3], "the same one each time"


def migrations(cluster: Gapless, reason: str, outcome: str = "done") -> float:
    name = f'gapless_migrations_total{{outcome="{outcome}",reason="{reason}"}}'
    return cluster.metrics().get(name, 0.0)


def check_nothing_is_kept(cluster: Gapless) -> None:
    wait_for(cluster.is_idle, 60)
    wait_for(lambda: by_instance(cluster, "gapless_instance_slots_busy") == [0, 0], 60)
    wait_for(lambda: by_instance(cluster, "gapless_instance_kv_blocks_used") == [0, 0], 60)


def control(cluster: Gapless, *command: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "commands.control"]
    call += ["--run-directory", str(cluster.run_directory)]
    return subprocess.run(
        [*call, *command], check=False, cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_an_instance_is_emptied_while_its_requests_are_answered(cluster: Gapless, expected: Expected) -> None:
    """Of 16 streams, half come by HTTP. The instance can be killed then: nothing is computed again."""
    before = cluster.metrics()
    with ThreadPoolExecutor(8) as threads, whole_answers(cluster, expected, 8, **LONGER):
        by_http = {
            n: threads.submit(cluster.generate_stream, text_input=f"{PROMPT} {n}", **LONGER)
            for n in range(8, 16)
        }
        busy = wait_for(lambda: all_busy(cluster), 60)
        drain_and_kill(cluster)
    check_whole({n: answer.result() for n, answer in by_http.items()}, expected, **LONGER)
    assert migrations(cluster, "drain") >= busy[1] + before.get(
        'gapless_migrations_total{outcome="done",reason="drain"}', 0.0
    )
    after = cluster.metrics()
    assert after["gapless_prefix_hit_tokens_total"] == before["gapless_prefix_hit_tokens_total"]
    submitted = [_num_submitted(metrics) for metrics in (before, after)]
    assert submitted[1] - submitted[0] == 16, "no prompt was computed a second time"
    wait_for(lambda: cluster.metrics()['gapless_instances{state="draining"}'] == 1, 60)
    last = control(cluster, "drain", "0")
    assert (last.returncode, last.stdout) == (1, "")
    assert "the last one that gets requests" in last.stderr
    assert control(cluster, "restore", "1").returncode == 0
    assert json.loads(control(cluster, "status", "--json").stdout)["instances"][1]["state"] != "draining"
    wait_for(lambda: cluster.metrics()['gapless_instances{state="ready"}'] == 2, 60)
    assert "there is no instance 7; there are 0, 1" in control(cluster, "drain", "7").stderr


def all_busy(cluster: Gapless) -> list[float]:
    """How many of 16 requests each instance has, once all have a slot."""
    busy = by_instance(cluster, "gapless_instance_slots_busy")
    return busy if sum(busy) == 16 and min(busy) > 1 else []


def _num_submitted(metrics: dict[str, float]) -> float:
    return sum(count for name, count in metrics.items() if name.startswith("gapless_dispatches_total"))


def drain_and_kill(cluster: Gapless) -> None:
    """Empties instance 1, and kills it then."""
    drained = control(cluster, "drain", "1")
    assert (drained.returncode, drained.stderr) == (0, "")
    assert drained.stdout.startswith("instance 1 is empty after ")
    print(drained.stdout)
    status = json.loads(control(cluster, "status", "--json").stdout)
    assert [each["state"] for each in status["instances"]] == ["ready", "draining"]
    assert [each["pid"] for each in status["instances"]] == [cluster.instance_pid(n) for n in range(2)]
    assert status["instances"][1]["slots_busy"] == status["instances"][1]["waiting"] == 0
    cluster.kill(cluster.instance_pid(1))


def test_one_request_is_moved_by_hand_and_back(cluster: Gapless, expected: Expected) -> None:
    sent_bytes = cluster.metrics()["gapless_migration_bytes_total"]
    client = cluster.grpc()
    answer = client.ask("0", text_input=PROMPT, **LONGER)
    client.read_until(lambda: answer.chunks > 2)
    wait_for(lambda: len(control(cluster, "requests").stdout.splitlines()) == 2, 60)
    names, values = (line.split("  ") for line in control(cluster, "requests").stdout.splitlines())
    fields = dict(zip(*([cell.strip() for cell in line if cell] for line in (names, values)), strict=True))
    there = 1 - int(fields["instance"])
    for instance in (there, 1 - there):
        moved = control(cluster, "move", fields["request"], str(instance))
        assert moved.returncode == 0, moved.stderr
        assert moved.stdout.startswith(f"request {fields['request']} is in instance {instance} after ")
    refused = control(cluster, "move", fields["request"], str(1 - there))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"it is in instance {1 - there} already" in refused.stderr
    client.finish()
    client.close()
    assert (answer.error, answer.text) == ("", expected.text(PROMPT, **LONGER))
    assert "there is no open request" in control(cluster, "move", fields["request"], "1").stderr
    assert migrations(cluster, "asked") == 2
    wait_for(lambda: cluster.metrics()["gapless_migration_bytes_total"] > sent_bytes, 60)


@pytest.fixture(scope="module")
def scaled(toy_model: Path) -> Iterator[Gapless]:
    """One to three instances, as the load says; each has little memory."""
    settings = {**toy_settings(toy_model, step_ms=20), "engine.slots": 8}
    cluster = {"cluster.max_instances": 3, "engine.kv_blocks": 128, "streams.dead_after_s": 5}
    with Gapless(**settings, **cluster) as served:
        yield served


def num_instances(cluster: Gapless) -> dict[str, float]:
    """By state, without those of which there is none."""
    metrics = cluster.metrics()
    counts = {
        state: metrics[f'gapless_instances{{state="{state}"}}']
        for state in ("starting", "ready", "draining", "lost")
    }
    return {state: count for state, count in counts.items() if count}


@pytest.mark.slow
def test_a_burst_brings_more_instances_and_quiet_ends_them(scaled: Gapless, expected: Expected) -> None:
    """Two long answers are still being written when the others have ended."""
    assert num_instances(scaled) == {"ready": 1}
    most = {n: {"max_tokens": 600, "min_tokens": 600} for n in range(24)}
    most |= {n: {"max_tokens": 1600, "min_tokens": 1600} for n in (0, 1)}
    client = scaled.grpc()
    answers = {n: client.ask(f"{n}", text_input=f"{PROMPT} {n}", **most[n]) for n in most}
    wait_for(lambda: num_instances(scaled) == {"ready": 3}, 120)
    client.finish(180)
    client.close()
    for n, answer in answers.items():
        assert answer.error == ""
        assert answer.text == expected.text(f"{PROMPT} {n}", **most[n])
        assert answer.reasons == ["length"]
    wait_for(lambda: num_instances(scaled) == {"ready": 1}, 120)
    metrics = scaled.metrics()
    ups, downs = (metrics[f'gapless_scalings_total{{direction="{way}"}}'] for way in ("up", "down"))
    assert ups == downs >= 2
    assert metrics["gapless_instance_losses_total"] == 0
    assert metrics["gapless_instance_seconds_total"] > 0
    wait_for(lambda: len(running(scaled)) == 1, 60)
    assert all(metrics[f'gapless_restarts_total{{process="instance-{number}"}}'] == 0 for number in range(3))


def running(cluster: Gapless) -> list[int]:
    """The numbers of the instances whose processes run."""
    lines = [" ".join(words) for words in cluster.command_lines().values()]
    return [int(line.split()[0].rpartition("-")[2]) for line in lines if line.startswith("gapless-instance-")]


@pytest.mark.slow
def test_the_number_of_instances_can_be_fixed_while_requests_are_answered(
    scaled: Gapless, expected: Expected
) -> None:
    more = control(scaled, "scale", "2")
    assert more.returncode == 0, more.stderr
    assert more.stdout.startswith("the number of instances is 2; all are ready after ")
    assert num_instances(scaled) == {"ready": 2}
    moves = migrations(scaled, "drain")
    with whole_answers(scaled, expected, 8, **LONG):
        fewer = control(scaled, "scale", "1")
        assert (fewer.returncode, len(fewer.stdout.splitlines())) == (0, 1), fewer.stderr
    assert migrations(scaled, "drain") > moves
    wait_for(lambda: len(running(scaled)) == 1, 60)
    assert scaled.metrics()["gapless_instance_losses_total"] == 0
    refused = control(scaled, "scale", "4")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "scale 4: must be auto or a number from 1 to 3 (cluster.max_instances)" in refused.stderr
    usual = control(scaled, "scale", "auto")
    assert usual.stdout == "there will be 1 to 3 instances, as the load says\n"


def test_another_scheduler_model_takes_over_the_instances_that_run(
    scaled: Gapless, expected: Expected
) -> None:
    assert control(scaled, "scale", "2").returncode == 0
    before = {scaled.instance_pid(number) for number in running(scaled)}
    scaled.kill(scaled.stub_pid("scheduler"))
    wait_for(lambda: scaled.log.count("serving again"), 60)
    wait_for(lambda: num_instances(scaled) == {"ready": 2}, 60)
    assert {scaled.instance_pid(number) for number in running(scaled)} == before
    answer = scaled.generate(text_input=PROMPT, max_tokens=5, min_tokens=5)
    assert answer["text_output"] == expected.text(PROMPT, max_tokens=5, min_tokens=5)
    assert control(scaled, "scale", "auto").returncode == 0
    wait_for(lambda: num_instances(scaled) == {"ready": 1}, 60)


def test_where_the_number_is_fixed_an_order_can_still_lower_it(cluster: Gapless) -> None:
    assert control(cluster, "scale", "1").returncode == 0
    assert num_instances(cluster) == {"ready": 1}
    refused = control(cluster, "scale", "3").stderr
    assert "must be auto or a number from 1 to 2 (cluster.instances)" in refused
    assert control(cluster, "scale", "auto").stdout == "there will be 2 instances (cluster.instances)\n"
    wait_for(lambda: num_instances(cluster) == {"ready": 2}, 60)
