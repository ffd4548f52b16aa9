"""AMD PACE's server for AMD's processors, in the environment of the same name, asked over HTTP, streaming, by
a client on the same processors. It needs the program numactl.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.common.http_streams import HttpStreams
from benchmarks.common.work import KV_POOL_GIB, PEER_TOKEN_BUDGET, Job, Timing, Work
from benchmarks.peers.workers.llama_cpp import await_health
from python_backends.linux.free_ports import free_ports

END_S = 30  # less than its own process has to end


class Streams(HttpStreams):
    """Streams of pace-server's `/v1/completions` in its mode for MLPerf: a line of ids for each step, without
    the text, and at last `[DONE]`.
    """

    def __init__(self, port: int, num_connections: int) -> None:
        super().__init__(port, "/v1/completions", num_connections, lambda _: 0, lambda _: False)

    def _read(self, came: list[tuple[float, bytes]], timing: Timing) -> None:
        begun = b""
        for now, part in came:
            *lines, begun = (begun + part).split(b"\n")
            for line in lines:
                if line in (b"", b"[DONE]") or line.endswith(b"\r"):  # of HTTP itself
                    continue
                if line == b"ERROR":
                    raise RuntimeError("pace-server ended a request with an error")
                ids = [int(each) for each in line.split()]
                timing.ids += ids
                timing.tokens += [now] * len(ids)
                timing.ended = now


class Engine:
    def __init__(self, directory: Path, dtype: str, in_flight: int, max_model_tokens: int) -> None:
        """Its context is the model's, whatever `max_model_tokens`."""
        if not shutil.which("numactl"):
            raise FileNotFoundError("pace-server needs the program numactl (Debian's package numactl)")
        engine_port, self._port = free_ports(2)
        self._directory = directory
        options: dict[str, Any] = {
            "--server_model": directory,
            "--server_host": "127.0.0.1",
            "--server_port": engine_port,
            "--router_host": "127.0.0.1",
            "--router_port": self._port,
            "--dtype": dtype,
            "--serve_type": "continuous_batch",
            "--kv_cache_type": "SLAB_POOL",
            "--kv_cache_memory_gb": KV_POOL_GIB,
            "--token_budget": PEER_TOKEN_BUDGET,
            "--max_num_running_reqs": in_flight,
            "--numa_physcpubind": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
            "--fastapi_log_level": "warning",
        }
        words = [str(word) for pair in options.items() for word in pair]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "pace.server.launcher", *words], start_new_session=True
        )
        self.pid = self._process.pid
        await_health(self._port, "/v1/health", "pace-server", self.close)
        self._signal(signal.SIGSTOP)

    def run(self, work: Work) -> list[Timing]:
        """It stands still between its turns: its threads spin while they wait."""
        self._signal(signal.SIGCONT)
        streams = Streams(self._port, work.in_flight)
        with contextlib.closing(streams):
            timings = streams.run([self._body_of(job) for job in work.jobs])
        self._signal(signal.SIGSTOP)
        return timings

    def close(self) -> None:
        """Ends its launcher, which would leave the others, with its router and its engine."""
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: int) -> None:
        os.killpg(self._process.pid, number)

    def _body_of(self, job: Job) -> dict[str, Any]:
        return {
            "model": str(self._directory),
            "prompt": job.prompt,
            "max_tokens": job.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "mlperf_mode": True,
        }
