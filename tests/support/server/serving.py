"""A running Gapless for tests: the launcher as a user starts it, and clients that speak to it as users do."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import psutil
import tritonclient.grpc as triton

from python_backends.linux.free_ports import free_ports
from python_backends.text.door.table import FIELDS

ROOT = Path(__file__).resolve().parents[3]
BUSY = 4  # how many times as long as on a quiet machine something may take, as others work on it as well
NUMPY = {"INT32": np.int32, "FP32": np.float32, "UINT64": np.uint64}


class Gapless:
    """One launcher with everything below it, by default with the small model; `environment` is added to
    ours, `prefix` runs the command. A `with` block stops it at its end.
    """

    def __init__(
        self, environment: dict[str, str] | None = None, prefix: Sequence[str] = (), /, **settings: Any
    ) -> None:
        ports = free_ports(4)
        # what others have learned would change the tests
        self._learned = tempfile.TemporaryDirectory(prefix="learned-")
        self.learned = self._learned.name
        names = ("server.http_port", "server.grpc_port", "server.metrics_port", "front.port")
        given = dict(zip(names, ports, strict=True))
        learned = {
            "prediction.directory": self._learned.name,
            "front.directory": f"{self._learned.name}/front",
        }
        settings = {**given, "model.directory": "bundled", **learned, **settings}
        self.http_port, self.grpc_port, self.metrics_port, self.front_port = ports
        command = [*prefix, sys.executable, "-m", "commands.serve"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        pipe, variables = subprocess.PIPE, {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, cwd=ROOT, env=variables, stdout=pipe, stderr=pipe, text=True)
        self._log: list[str] = []
        self._await_invitation()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Raises AssertionError with the log if it does not end well, except after an error of the block."""
        code = self.stop()
        assert error is not None or code == 0, self.log

    @property
    def log(self) -> str:
        return "".join(self._log)

    def _await_invitation(self) -> None:
        assert self.process.stdout is not None
        self._reader = threading.Thread(
            target=lambda: self._log.extend(self.process.stderr or []), daemon=True
        )
        self._reader.start()
        for line in self.process.stdout:
            if "Ctrl-C ends it" in line:
                return
        self.stop()
        raise AssertionError(f"Gapless did not start:\n{self.log}")

    def stop(self, timeout_s: float = 90) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        code = self.process.wait(BUSY * timeout_s)
        self._reader.join(BUSY * timeout_s)
        self._learned.cleanup()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        return code

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def command_lines(self) -> dict[int, list[str]]:
        """The words of each process's command, by its pid; a process that has ended has none."""
        lines = {}
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                lines[process.pid] = process.cmdline()
        return lines

    @property
    def run_directory(self) -> Path:
        """Where tritonserver works."""
        return Path(psutil.Process(self.server_pid()).cwd())

    def instance_pid(self, number: int = 0) -> int:
        return self._pid(lambda line: f"gapless-instance-{number}" in line)

    def stub_pid(self, model: str) -> int:
        return self._pid(lambda line: "triton_python_backend_stub" in line and f"/{model}/" in line)

    def server_pid(self) -> int:
        return self._pid(lambda line: "bin/tritonserver" in line)

    def _pid(self, wanted: Callable[[str], bool]) -> int:
        def find() -> int:
            lines = self.command_lines().items()
            return next((pid for pid, words in lines if wanted(" ".join(words))), 0)

        return int(wait_for(find, 60))

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def metrics(self) -> dict[str, float]:
        """Our metrics by name with labels, as /metrics shows them once they
        have been written after this was asked.
        """
        asked_s = time.time()
        return dict(wait_for(lambda: self._metrics_since(asked_s), 60))

    def _metrics_since(self, time_s: float) -> dict[str, float]:
        """Empty if they are older."""
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        metrics = {
            name: float(value) for name, value in re.findall(r"^(gapless_\S+) (\S+)$", text, re.MULTILINE)
        }
        return metrics if metrics["gapless_metrics_timestamp_seconds"] >= time_s else {}

    def is_idle(self) -> bool:
        metrics = self.metrics()
        names = ("gapless_slots_busy", "gapless_requests_waiting", "gapless_kv_blocks_used")
        return all(metrics[name] == 0 for name in names)

    def is_ready(self) -> bool:
        """What the image's health check says."""
        script = [str(ROOT / "build/image/is-ready"), str(self.http_port)]
        return subprocess.run(script, capture_output=True, check=False, timeout=60).returncode == 0

    def restarts(self) -> dict[str, float]:
        """How often the launcher has started each process again."""
        return {
            name.split('"')[1]: count
            for name, count in self.metrics().items()
            if name.startswith("gapless_restarts_total")
        }

    # --- clients

    def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None, port: int | None = None
    ) -> tuple[int, str]:
        """By default to Triton."""
        connection = http.client.HTTPConnection("127.0.0.1", port or self.http_port, timeout=120)
        connection.request("POST", path, json.dumps(body), headers or {})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    def post_to_front(self, path: str, body: Any) -> tuple[int, str]:
        return self.post(path, body, port=self.front_port)

    def ask_front(self, path: str, body: Any) -> Any:
        """Its answer, read as JSON."""
        return json.loads(self.post_to_front(path, body)[1])

    def generate(self, **inputs: Any) -> dict[str, Any]:
        status, text = self.post("/v2/models/ensemble/generate", inputs)
        return {"status": status, **json.loads(text)}

    def generate_stream(self, **inputs: Any) -> Answer:
        answer = Answer()
        status, text = self.post("/v2/models/ensemble/generate_stream", {"stream": True, **inputs})
        answer.status = status
        for line in text.splitlines():
            if line.startswith("data: "):
                answer.add_json(json.loads(line[len("data: ") :]))
        if status != 200:
            answer.error = text
        return answer

    def grpc(self) -> GrpcClient:
        return GrpcClient(f"127.0.0.1:{self.grpc_port}")


@dataclass
class Answer:
    """What a client received: the text so far, and how often the answer ended."""

    text: str = ""
    chunks: int = 0
    reasons: list[str] = field(default_factory=list)
    error: str = ""
    status: int = 0
    num_output_tokens: int = 0
    results: list[Any] = field(default_factory=list)  # each response of gRPC, as its client has it

    @property
    def num_ends(self) -> int:
        return len(self.reasons) + bool(self.error)

    def add_json(self, chunk: dict[str, Any]) -> None:
        if "error" in chunk:
            self.error = chunk["error"]
            return
        self.add(chunk["text_output"], chunk.get("finish_reason", ""), chunk.get("num_output_tokens", 0))

    def add(self, text: str, reason: str, num_output_tokens: int) -> None:
        self.text += text
        self.chunks += 1
        self.num_output_tokens += num_output_tokens
        if reason:
            self.reasons.append(reason)


class GrpcClient:
    """One gRPC stream to the ensemble; answers are told apart by request id."""

    def __init__(self, url: str) -> None:
        self._client = triton.InferenceServerClient(url)
        self.answers: dict[str, Answer] = {}
        self._news: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._client.start_stream(lambda result, error: self._news.put((result, error)))

    def ask(self, name: str = "1", timeout_us: int | None = None, **inputs: Any) -> Answer:
        inputs = {"stream": True, "return_num_output_tokens": True, **inputs}
        self.answers[name] = Answer()
        tensors = [tensor(key, value) for key, value in inputs.items()]
        self._client.async_stream_infer(
            "ensemble", tensors, request_id=name, timeout=timeout_us, enable_empty_final_response=True
        )
        return self.answers[name]

    def finish(self, timeout_s: float = 60) -> None:
        """Waits until every answer of this stream has ended."""
        while any(not answer.num_ends for answer in self.answers.values()):
            self._take(BUSY * timeout_s)

    def read_until(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        while not condition():
            self._take(BUSY * timeout_s)

    def drain(self, seconds: float) -> None:
        """Reads on for a while, to see what should not come."""
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(queue.Empty):
                self._take(left_s)

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)

    def drop(self) -> None:
        """Closes the connection under the stream, as a client that dies."""
        self._client._channel.close()

    def close(self) -> None:
        self._client.close()

    def _take(self, timeout_s: float) -> None:
        result, error = self._news.get(timeout=timeout_s)
        if error is not None:
            self._fail(error)
            return
        response = result.get_response()
        answer = self.answers[response.id]
        if not response.outputs:
            return  # the empty final response of the transport
        answer.results.append(result)
        outputs = {output.name: result.as_numpy(output.name).flat[0] for output in response.outputs}
        reason = outputs.get("finish_reason", b"").decode()
        answer.add(outputs["text_output"].decode(), reason, int(outputs.get("num_output_tokens", 0)))

    def _fail(self, error: triton.InferenceServerException) -> None:
        """An error names no request where several share a stream; tests
        that expect errors use one stream a request.
        """
        for answer in self.answers.values():
            if not answer.num_ends:
                answer.error = error.message() or str(error)


def tensor(name: str, value: Any) -> triton.InferInput:
    if isinstance(value, bool):
        data, kind = np.array([[value]]), "BOOL"
    elif isinstance(value, str):
        data, kind = np.array([[value.encode()]], object), "BYTES"
    elif isinstance(value, list) and all(type(item) is int for item in value):
        data, kind = np.array([value], np.int32), "INT32"
    elif isinstance(value, list) and all(type(item) is float for item in value):
        data, kind = np.array([value], np.float32), "FP32"
    elif isinstance(value, list):
        data, kind = np.array([[word.encode() for word in value]], object), "BYTES"
    else:
        kind = FIELDS[name].dtype
        data = np.array([[value]], NUMPY[kind])
    made = triton.InferInput(name, list(data.shape), kind)
    made.set_data_from_numpy(data)
    return made


def wait_for(condition: Callable[[], Any], timeout_s: float, every_s: float = 0.05) -> Any:
    """The first true value of `condition`, which is looked at every `every_s`. Raises AssertionError after
    `timeout_s` of a machine that has nothing else to do.
    """
    end_s = time.monotonic() + BUSY * timeout_s
    while True:
        with contextlib.suppress(OSError, KeyError):
            value = condition()
            if value:
                return value
        assert time.monotonic() < end_s, f"did not come true within {BUSY} * {timeout_s} s"
        time.sleep(every_s)


def settled(count: Callable[[], float], timeout_s: float = 60) -> float:
    """What is counted, once it has not changed for two seconds: /metrics
    and logs lag behind. Raises AssertionError.
    """
    end_s, before = time.monotonic() + BUSY * timeout_s, count()
    while True:
        time.sleep(2)
        now = count()
        if now == before:
            return now
        assert time.monotonic() < end_s, f"it still changes after {timeout_s} s"
        before = now


def leftovers(run_name: str) -> Iterator[str]:
    """Processes, sockets and shared memory that a Gapless has left behind."""
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if run_name in line:
            yield line
    for directory in (Path("/dev/shm"), Path("/run"), Path("/tmp")):
        yield from (str(path) for path in directory.glob(f"{run_name}*"))
