"""What survives: cancels, crashes and kills around streams whose text stays the same."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.support.server import doors
from tests.support.server.expected import PROMPT, Expected
from tests.support.server.serving import ROOT, Answer, Gapless, leftovers, wait_for
from tests.support.server.whole_answers import whole_answers
from tests.support.toy_engine import toy_settings

LONG = {"max_tokens": 400, "min_tokens": 400}


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_streams_go_on_with_the_same_text_when_the_instance_is_killed_or_stalls(
    gapless: Gapless, expected: Expected, number: int
) -> None:
    with whole_answers(gapless, expected, 16, **LONG):
        gapless.kill(gapless.instance_pid(), number)


def test_only_the_request_that_kills_every_instance_is_failed(toy_model: Path, expected: Expected) -> None:
    """Token 511 kills the toy engine's process. Its neighbours see two crashes,
    re-enter one at a time, and end with their text.
    """
    with Gapless(**toy_settings(toy_model, step_ms=5, poison_token=511)) as served:
        check_that_only_the_poisonous_request_fails(served, expected)


def check_that_only_the_poisonous_request_fails(
    served: Gapless, expected: Expected, num_tokens: int = 400
) -> None:
    """Token 511 is the end of the engine."""
    long = {"max_tokens": num_tokens, "min_tokens": num_tokens}
    poison = expected.decode([511])
    assert expected.ids(f"x{poison}")[-1] == 511
    prompts = [prompt for n in range(40) if 511 not in expected.tokens(prompt := f"{PROMPT} {n}", **long)][:4]
    client = served.grpc()
    answers = {prompt: client.ask(prompt, text_input=prompt, **long) for prompt in prompts}
    client.read_until(lambda: all(answer.chunks > 2 for answer in answers.values()))
    culprit = served.generate_stream(text_input=f"x{poison}", max_tokens=5)
    assert "alone" in culprit.error
    client.finish(120)
    client.close()
    assert {prompt: answer.text for prompt, answer in answers.items()} == {
        prompt: expected.text(prompt, **long) for prompt in prompts
    }


def test_two_hundred_requests_a_third_of_them_abandoned_leave_nothing_behind(
    gapless: Gapless, expected: Expected
) -> None:
    """Lengths, seeds and stop words at random; cancelled by gRPC, by
    breaking an HTTP stream, or by deadline.
    """
    rng = random.Random(20)
    jobs = [Job(rng, number) for number in range(200)]
    threads = [threading.Thread(target=work, args=[gapless, expected, jobs[i::25]]) for i in range(25)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    problems = [job.problem for job in jobs if job.problem]
    assert not problems, problems[:5]
    assert all(job.done for job in jobs)
    wait_for(gapless.is_idle, 60)
    assert gapless.metrics()["gapless_slots_busy"] == 0


class Job:
    """One random request, how it is to be abandoned if at all, and what was wrong with its answer."""

    def __init__(self, rng: random.Random, number: int) -> None:
        self.prompt = (
            " ".join(
                rng.choices(["def", "self", "return", "x", "size", "read", "(", ")"], k=rng.randint(1, 30))
            )
            + f" {number}"
        )
        self.max_tokens = rng.randint(1, 250)
        self.sampled = rng.random() < 0.3
        self.seed = rng.randrange(1 << 40)
        self.with_stop_word = rng.random() < 0.3
        self.how = rng.choice(["grpc", "http", "deadline"]) if rng.random() < 1 / 3 else "whole"
        self.moment_s = rng.uniform(0.0, 0.8)
        self.problem = ""
        self.done = False


def work(gapless: Gapless, expected: Expected, jobs: list[Job]) -> None:
    for job in jobs:
        try:
            run(gapless, expected, job)
            job.done = True
        except Exception as error:
            job.problem = f"{job.how}: {error!r}"


def run(gapless: Gapless, expected: Expected, job: Job) -> None:
    sampling = {"temperature": 1.0, "seed": job.seed} if job.sampled else {}
    whole = expected.text(job.prompt, max_tokens=job.max_tokens, **sampling)
    inputs = {"text_input": job.prompt, "max_tokens": job.max_tokens, **sampling}
    if job.with_stop_word and "\ufffd" not in whole[10:12] and len(whole) > 12:
        inputs["stop_words"] = [whole[10:12]]
        whole = whole.split(whole[10:12])[0]
    if job.how == "http":
        break_off(gapless, inputs, job.moment_s)
        return
    client = gapless.grpc()
    answer = client.ask(
        timeout_us=int(job.moment_s * 1e6) + 1000 if job.how == "deadline" else None, **inputs
    )
    if job.how == "grpc":
        time.sleep(job.moment_s)
        client.cancel()
        client.close()
        return
    client.finish()
    client.drain(0.05)
    client.close()
    judge(job, answer, whole)


def judge(job: Job, answer: Answer, whole: str) -> None:
    if answer.num_ends != 1 or answer.error:
        job.problem = f"{answer.num_ends} ends, {answer.error}"
    elif job.how == "deadline" and answer.reasons == ["deadline"]:
        # the last character may be cut in half by the deadline, and is then shown as U+FFFD
        job.problem = (
            "" if whole.startswith(answer.text.rstrip("\ufffd")) else "wrong text before the deadline"
        )
    elif answer.text != whole:
        job.problem = f"wrong text: {answer.text!r} instead of {whole!r}"


def break_off(gapless: Gapless, inputs: dict[str, object], after_s: float) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gapless.http_port, timeout=30)
    connection.request("POST", "/v2/models/ensemble/generate_stream", json.dumps({"stream": True, **inputs}))
    time.sleep(after_s)
    connection.close()


def test_the_instance_may_die_while_the_server_restarts(gapless: Gapless, expected: Expected) -> None:
    gapless.kill(gapless.stub_pid("scheduler"))
    time.sleep(0.4)
    gapless.kill(gapless.instance_pid())
    answer = wait_for(lambda: gapless.generate(text_input=PROMPT, max_tokens=20).get("text_output"), 120)
    assert answer == expected.text(PROMPT, max_tokens=20)


def test_the_door_keeps_its_limits_when_tokenizer_and_instance_die_together(gapless: Gapless) -> None:
    before = gapless.generate(text_input=PROMPT, max_tokens=5000)["error"]
    gapless.kill(gapless.instance_pid())
    gapless.kill(gapless.stub_pid("tokenizer"))
    wait_for(lambda: gapless.generate(text_input=PROMPT, max_tokens=5).get("text_output"), 60)
    assert gapless.generate(text_input=PROMPT, max_tokens=5000)["error"] == before


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGKILL])
def test_when_the_launcher_goes_everything_goes(toy_model: Path, number: int) -> None:
    served = Gapless(**toy_settings(toy_model))
    processes = served.processes()
    assert len(processes) >= 5
    os.kill(served.process.pid, number)
    served.process.wait(60)
    wait_for(
        lambda: not any(process.is_running() and process.status() != "zombie" for process in processes), 60
    )
    served.stop()


LAST_MOMENT = """
import os, subprocess
from python_backends.linux.process_group import start_group
group = start_group(["sh", "-c", "sleep 1000 & sleep 1000"], dict(os.environ), stdout=subprocess.DEVNULL)
print(group.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_what_a_launcher_starts_in_its_last_moment_goes_too() -> None:
    for _ in range(20):
        command = [sys.executable, "-c", LAST_MOMENT]
        launcher = subprocess.run(
            command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False, timeout=60
        )
        assert launcher.returncode == -signal.SIGKILL
        group = int(launcher.stdout)
        wait_for(
            lambda group=group: not any(is_in(group, process) for process in psutil.process_iter(["status"])),
            60,
        )


def is_in(group: int, process: psutil.Process) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return process.info["status"] != "zombie" and os.getpgid(process.pid) == group
    return False


def test_a_port_in_use_is_named(toy_model: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(AssertionError, match=f"server.http_port = {port}: (?i:address already in use)"):
            Gapless(**{**toy_settings(toy_model), "server.http_port": port})


def test_sigterm_to_all_processes_drains_and_leaves_no_process_socket_or_shared_memory(
    toy_model: Path, expected: Expected
) -> None:
    with Gapless(**toy_settings(toy_model, step_ms=5)) as served:
        run_name = served.run_directory.name
        client = served.grpc()
        answer = client.ask(text_input=PROMPT, max_tokens=300, min_tokens=300)
        client.read_until(lambda: answer.chunks > 2)
        processes = [*served.processes(), psutil.Process(served.process.pid)]
        for process in processes:  # as systemd, with its KillMode=control-group
            process.terminate()
        client.finish()
        assert answer.text == expected.text(PROMPT, max_tokens=300, min_tokens=300), "an open request may end"
        client.close()
        served.process.wait(90)
    assert not list(leftovers(run_name))


def test_what_is_still_open_when_draining_has_to_end_is_told_so_once(toy_model: Path) -> None:
    served = Gapless(**{**toy_settings(toy_model, step_ms=5), "server.drain_s": 1})
    ten_seconds = {"text_input": "x", "max_tokens": 2000, "min_tokens": 2000, "stream": True}
    with ThreadPoolExecutor() as clients, doors.GrpcDoor(served.grpc_port) as grpc_door:
        answers = [
            clients.submit(grpc_door.ask, doors.message(**ten_seconds)),
            clients.submit(doors.post, served.http_port, "generate_stream", doors.body(**ten_seconds)),
            clients.submit(
                doors.post, served.http_port, "generate", doors.body(**ten_seconds | {"stream": False})
            ),
        ]
        wait_for(lambda: served.metrics()["gapless_slots_busy"] == 3, 60)
        assert served.stop() == 0
        outcomes = [answer.result(60) for answer in answers]
    assert [outcome.num_ends for outcome in outcomes] == [1, 1, 1]
    assert all("the server is shutting down" in outcome.errors[0] for outcome in outcomes)
