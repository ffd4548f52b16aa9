"""llama.cpp's server, built in the environment of the same name, asked over
HTTP, streaming, by a client on the same processors.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from benchmarks.common.http_streams import Event, HttpStreams
from benchmarks.common.work import PEER_TOKEN_BUDGET, Job, Timing, Work, num_cores
from benchmarks.peers.workers.gguf_file import write_gguf
from python_backends.linux.free_ports import free_ports

KV_TYPES = {"bfloat16": "bf16", "float32": "f32"}
READY_S = 300
MODEL = "model.gguf"


def prepare(directory: Path, dtype: str) -> None:
    """Writes the model as llama.cpp reads it, in the folder of the checkpoint."""
    if not (directory / MODEL).exists():
        write_gguf(directory, directory / MODEL, dtype)


class Streams(HttpStreams):
    """Streams of llama-server's `/completion`."""

    def __init__(self, port: int, num_connections: int) -> None:
        super().__init__(
            port,
            "/completion",
            num_connections,
            lambda event: len(event["tokens"]),
            lambda event: event["stop"],
        )

    def _keep(self, chunk: Event, timing: Timing) -> None:
        timing.ids += chunk["tokens"]


class Engine:
    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        max_model_tokens: int,
        token_budget: int = PEER_TOKEN_BUDGET,
    ) -> None:
        (port,) = free_ports(1)
        options: dict[str, Any] = {
            "--model": directory / MODEL,
            "--port": port,
            "--parallel": in_flight,
            "--ctx-size": in_flight * max_model_tokens,
            "--threads": num_cores(),
            "--threads-http": 2,
            "--batch-size": token_budget,
            "--ubatch-size": token_budget,
            "--cache-type-k": KV_TYPES[dtype],
            "--cache-type-v": KV_TYPES[dtype],
            "--flash-attn": "on",
            "--cache-ram": 0,
        }
        command = [
            str(Path(sys.executable).parent / "llama-server"),
            *(str(word) for pair in options.items() for word in pair),
        ]
        self._process = subprocess.Popen([*command, "--no-warmup", "--no-webui", "--log-disable"])
        self.pid = self._process.pid
        self._port = port
        await_health(port)

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

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def body_of(job: Job) -> dict[str, Any]:
    follows = {"json_schema": json.loads(job.schema)} if job.schema else {}
    return {"prompt": job.prompt, "n_predict": job.max_tokens, **follows}


def await_health(port: int) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"llama-server was not ready within {READY_S} s")
