"""What stands still, what is cleaned away, what is full: a Python model that hangs, a pause of the whole
server, the run directory without its files, a disk without room, JSON nested without end. Open streams keep
their text wherever it can be kept.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from tests.support.server.expected import PROMPT, Expected
from tests.support.server.onlookers import HttpOnlooker
from tests.support.server.serving import ROOT, Answer, Gapless, GrpcClient, wait_for
from tests.support.toy_engine import toy_settings

LONG = {"max_tokens": 1500, "min_tokens": 1500}  # at least seven seconds
NUM_EACH = 4


class Streams:
    """Open streams over gRPC and HTTP, which have all begun."""

    def __init__(self, gapless: Gapless) -> None:
        self._http = [
            HttpOnlooker(gapless.http_port, {"text_input": f"{PROMPT} http {n}", **LONG})
            for n in range(NUM_EACH)
        ]
        self._grpc: GrpcClient = gapless.grpc()
        self._answers: dict[str, Answer] = {
            f"{n}": self._grpc.ask(f"{n}", text_input=f"{PROMPT} grpc {n}", **LONG) for n in range(NUM_EACH)
        }
        self._grpc.read_until(lambda: all(answer.chunks > 2 for answer in self._answers.values()))
        for stream in self._http:
            stream.wait_for_text()

    def check_whole(self, expected: Expected) -> None:
        """Each ends once, with the text that nobody has disturbed."""
        self._grpc.finish(120)
        self._grpc.close()
        for n in range(NUM_EACH):
            self._http[n].join()
            for answer, name in ((self._answers[f"{n}"], f"grpc {n}"), (self._http[n].answer, f"http {n}")):
                assert (answer.error, answer.reasons) == ("", ["length"]), name
                assert answer.text == expected.text(f"{PROMPT} {name}", **LONG), name


@pytest.fixture
def runtime_directory() -> Iterator[Path]:
    """Its name is short: the launcher uses another directory where the names of sockets would be too long."""
    with TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture
def served(toy_model: Path, runtime_directory: Path) -> Iterator[Gapless]:
    """A server of its own, with its run directory where the test can reach it."""
    with Gapless(
        {"RUNTIME_DIRECTORY": str(runtime_directory)},
        **{**toy_settings(toy_model, step_ms=5), "streams.dead_after_s": 3},
    ) as made:
        yield made


def answers_again(gapless: Gapless, expected: Expected) -> None:
    asked = {"text_input": PROMPT, "max_tokens": 20}
    answer = wait_for(lambda: gapless.generate(**asked).get("text_output"), 90)
    assert answer == expected.text(PROMPT, max_tokens=20)


# --- a Python model that hangs


LOOPS = """
from python_backends.triton_models.life import Life, watched
from python_backends.triton_models.tokenizer import TritonPythonModel as Tokenizer


class TritonPythonModel(Tokenizer):
    def initialize(self, args):
        super().initialize(args)
        self.life.end()
        self.life = Life("tokenizer", longest_s=2.0)

    @watched
    def execute(self, requests):
        tensors = [tensor for tensor in requests[0].inputs() if tensor.name() == "text_input"]
        while any(b"for ever" in tensor.as_numpy().tolist()[0] for tensor in tensors):
            pass
        return super().execute(requests)
"""


def test_a_tokenizer_in_an_endless_loop_is_replaced(
    toy_model: Path, tmp_path: Path, expected: Expected
) -> None:
    """Its process runs, and so does the thread that beats."""
    repository = tmp_path / "model_repository"
    shutil.copytree(ROOT / "model_repository", repository)
    (repository / "tokenizer/1/model.py").write_text(LOOPS)
    settings = {
        **toy_settings(toy_model, step_ms=5),
        "streams.dead_after_s": 3,
    }
    with Gapless(**settings, **{"server.model_repository": repository}) as served:
        streams = Streams(served)
        hanging = HttpOnlooker(served.http_port, {"text_input": "for ever", "max_tokens": 5})
        pid = served.stub_pid("tokenizer")
        wait_for(lambda: served.stub_pid("tokenizer") != pid, 90)
        streams.check_whole(expected)
        hanging.join()
        assert hanging.saw != "the whole answer"
        answers_again(served, expected)
    assert "model tokenizer hangs" in served.log


# --- a pause of the whole server


def pause(gapless: Gapless, seconds: float) -> None:
    """Every process stands still, and then all go on, the models before tritonserver.

    In the other order Triton may call a model unhealthy that was inside a call (docs/operations.md).
    """
    processes = [psutil.Process(gapless.process.pid), *gapless.processes()]
    try:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # one that lives for a moment only
                process.suspend()
        time.sleep(seconds)
    finally:
        for process in reversed(processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


@pytest.mark.slow
def test_three_pauses_of_the_whole_server_are_pauses_and_nothing_else(
    gapless: Gapless, expected: Expected
) -> None:
    """6 s each: longer than the time after which a silent process is given up (3 s here)."""
    wait_for(gapless.is_ready, 60)
    before = gapless.restarts(), gapless.server_pid(), gapless.instance_pid()
    streams = Streams(gapless)
    for _ in range(3):
        pause(gapless, 6)
        time.sleep(1)
    streams.check_whole(expected)
    answers_again(gapless, expected)
    time.sleep(5)  # whoever was to be given up would have been by now
    assert (gapless.restarts(), gapless.server_pid(), gapless.instance_pid()) == before


# --- the run directory


def run_directory(runtime_directory: Path) -> Path:
    (found,) = runtime_directory.glob("gapless-*")
    return found


def replaced(pid: Callable[[], int]) -> None:
    """Kills a process; waits for its successor."""
    before = pid()
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: pid() != before, 90)


def clean_up(directory: Path) -> None:
    """All that a cleaner may take."""
    for name in (
        "settings.json",
        "key",
        "launcher",
        "models",
        "python_backends",
    ):
        (directory / name).unlink(missing_ok=True)
    for name in ("backends", "libraries", "namesakes"):
        shutil.rmtree(directory / name)


def test_the_files_of_the_run_directory_may_be_removed_before_something_dies(
    served: Gapless, runtime_directory: Path, expected: Expected
) -> None:
    directory = run_directory(runtime_directory)
    streams = Streams(served)
    clean_up(directory)
    time.sleep(2)  # /metrics is written meanwhile
    replaced(served.instance_pid)
    replaced(lambda: served.stub_pid("tokenizer"))
    streams.check_whole(expected)
    answers_again(served, expected)
    clean_up(directory)
    replaced(lambda: served.stub_pid("scheduler"))
    answers_again(served, expected)
    check_restarts(served)


def check_restarts(served: Gapless) -> None:
    counts = served.restarts()
    assert counts["instance-0"] == counts["tokenizer"] == counts["scheduler"] == 1


@pytest.fixture
def small_disk(runtime_directory: Path) -> Iterator[Path]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(runtime_directory)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip("only root can mount a small disk")
    yield runtime_directory
    subprocess.run(["umount", "--lazy", str(runtime_directory)], check=True)


def test_what_dies_beside_a_full_disk_is_healed(
    small_disk: Path, served: Gapless, expected: Expected
) -> None:
    streams = Streams(served)
    with contextlib.suppress(OSError), (small_disk / "ballast").open("wb", buffering=0) as ballast:
        while True:
            ballast.write(bytes(512))
    with pytest.raises(OSError, match="No space"):
        (small_disk / "more").write_bytes(bytes(8192))
    replaced(served.instance_pid)
    replaced(lambda: served.stub_pid("tokenizer"))
    streams.check_whole(expected)
    answers_again(served, expected)
    replaced(lambda: served.stub_pid("scheduler"))
    answers_again(served, expected)
    check_restarts(served)


# --- JSON nested without end


def deep_bodies(levels: int) -> Iterator[tuple[str, str]]:
    """Where Triton reads JSON of clients: the address, and the body."""
    for opening, closing in (("[", "]"), ('{"a":', "}")):
        deep = f"{opening * levels}1{closing * levels}"
        for field in ("text_input", "max_tokens", "unknown"):
            yield "ensemble/generate", f'{{"{field}": {deep}}}'
        yield "ensemble/generate_stream", f'{{"stream": true, "stop_words": {deep}}}'
        tensor = '{"name": "token_window", "datatype": "UINT8", "shape": [1, 1], "data": '
        for path in ("detokenizer/infer", "tokenizer/infer", "ensemble/infer"):
            yield path, f'{{"inputs": [{tensor}{deep}}}]}}'
        yield "detokenizer/infer", f'{{"inputs": {deep}}}'
        yield "detokenizer/infer", f'{{"parameters": {deep}}}'
    yield "ensemble/generate", "[" * levels


@pytest.mark.parametrize("levels", [100_000, 1_000_000])
def test_deeply_nested_json_is_answered_and_open_streams_go_on(
    gapless: Gapless, expected: Expected, levels: int
) -> None:
    server = gapless.server_pid()
    streams = Streams(gapless)
    for path, body in deep_bodies(levels):
        connection = http.client.HTTPConnection("127.0.0.1", gapless.http_port, timeout=120)
        connection.request("POST", f"/v2/models/{path}", body)
        response = connection.getresponse()
        assert response.status in (200, 400, 500, 501), (path, response.status)
        assert b'"error"' in response.read(), path
        connection.close()
    streams.check_whole(expected)
    assert gapless.server_pid() == server
    assert gapless.process.poll() is None


def test_messages_that_are_deeply_nested_json_are_refused(gapless: Gapless, expected: Expected) -> None:
    """The door's own reader, over gRPC and HTTP; 400,000 levels fit into what a prompt may have."""
    server = gapless.server_pid()
    for levels in (1_000, 100_000, 400_000):
        messages = f'[{{"role": "user", "content": {"[" * levels}{"]" * levels}}}]'
        client = gapless.grpc()
        answer = client.ask(messages=messages, max_tokens=5)
        client.finish()
        client.close()
        assert "messages = " in answer.error
        refused = gapless.generate(messages=messages, max_tokens=5)
        assert (refused["status"], "messages = " in refused["error"]) == (400, True)
    answers_again(gapless, expected)
    assert gapless.server_pid() == server


def test_the_threads_of_tritonserver_have_the_stacks_that_this_takes(gapless: Gapless) -> None:
    """And its models inherit the limit without taking more memory: what is not used costs nothing."""
    assert psutil.Process(gapless.server_pid()).rlimit(psutil.RLIMIT_STACK)[0] == 512 << 20
    for model in ("tokenizer", "scheduler", "detokenizer"):
        assert psutil.Process(gapless.stub_pid(model)).memory_info().rss < 300 << 20
