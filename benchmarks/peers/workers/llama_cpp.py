"""llama.cpp's server, built in the environment of the same name, asked over
HTTP, streaming, by a client on the same processors.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.http_streams import Event, HttpStreams
from benchmarks.common.scored_text import Scores
from benchmarks.common.work import PEER_TOKEN_BUDGET, Job, Timing, Work, num_cores
from benchmarks.peers.workers.gguf_file import write_gguf
from python_backends.linux.free_ports import free_ports

# of 16 bits the one that it multiplies on every processor, and its default
KV_TYPES = {"bfloat16": "f16", "float32": "f32"}
READY_S = 300
JSON = {"Content-Type": "application/json"}
FORCED = 1e6  # added to a logit: that token is chosen


def model_of(directory: Path, weights: str) -> Path:
    return directory / f"{weights}.gguf"


def prepare(directory: Path, weights: str) -> None:
    """Writes the model as llama.cpp reads it, in the folder of the checkpoint, and in a format of its own."""
    plain, path = model_of(directory, "same"), model_of(directory, weights)
    if not plain.exists():
        write_gguf(directory, plain)
    if not path.exists():
        subprocess.run([program("llama-quantize"), plain, path, weights, str(num_cores())], check=True)


def program(name: str) -> Path:
    return Path(sys.executable).parent / name


class Streams(HttpStreams):
    """Streams of llama-server's `/completion`. It sends no event for a token that ends within a character:
    the next event counts that token, but does not have its id.
    """

    def __init__(self, port: int, num_connections: int) -> None:
        super().__init__(port, "/completion", num_connections, lambda _: 0, lambda event: event["stop"])

    def _new_tokens(self, chunk: Event, timing: Timing) -> int:
        return int(chunk["tokens_predicted"]) - len(timing.tokens)

    def _keep(self, chunk: Event, timing: Timing) -> None:
        timing.ids += chunk["tokens"]


class Engine:
    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        max_model_tokens: int,
        weights: str = "same",
    ) -> None:
        (port,) = free_ports(1)
        options: dict[str, Any] = {
            "--model": model_of(directory, weights),
            "--port": port,
            "--parallel": in_flight,
            "--ctx-size": in_flight * max_model_tokens,
            "--threads": num_cores(),
            "--threads-http": 2,
            "--batch-size": PEER_TOKEN_BUDGET,
            "--ubatch-size": PEER_TOKEN_BUDGET,
            "--cache-type-k": KV_TYPES[dtype],
            "--cache-type-v": KV_TYPES[dtype],
            "--flash-attn": "on",
            "--cache-ram": 0,
        }
        words = [str(word) for pair in options.items() for word in pair]
        self._process = subprocess.Popen(
            [program("llama-server"), *words, "--no-warmup", "--no-webui", "--log-disable"]
        )
        self.pid = self._process.pid
        self._port = port
        await_health(port, "/health", "llama-server", self.close)

    def run(self, work: Work) -> list[Timing]:
        always = {
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
            "stream": True,
            "return_tokens": True,
        }
        streams = Streams(self._port, work.in_flight)
        with contextlib.closing(streams):
            return streams.run([body_of(job) | always for job in work.jobs])

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        """Token by token: the next one is forced, whose log-probability the server tells as it was before."""
        found = [Scores() for _ in texts]
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port)) as connection:
            for scores, text in zip(found, texts, strict=True):
                for end in range(1, len(text)):
                    connection.request("POST", "/completion", json.dumps(forced(text[:end], text[end])), JSON)
                    (told,) = json.loads(connection.getresponse().read())["completion_probabilities"]
                    scores.log_probs.append(told["logprob"])
                    scores.likeliest.append(told["top_logprobs"][0]["id"])
        return found

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def body_of(job: Job) -> dict[str, Any]:
    follows = {"json_schema": json.loads(job.schema)} if job.schema else {}
    return {"prompt": job.prompt, "n_predict": job.max_tokens, **follows}


def forced(prompt: Sequence[int], token: int) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "n_predict": 1,
        "temperature": 0,
        "n_probs": 1,
        "logit_bias": [[token, FORCED]],
        "ignore_eos": True,
        "cache_prompt": True,
    }


def await_health(port: int, path: str, program: str, end: Callable[[], None]) -> None:
    """Raises RuntimeError if a program is not ready in time, after it was ended by `end`."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    end()
    raise RuntimeError(f"{program} was not ready within {READY_S} s")
