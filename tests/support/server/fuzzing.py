"""Random requests for a real server, good and bad, and what has to hold around them.

    python -m tests.support.server.fuzzing --requests 10000 --model toy      (`make fuzz`)

Eight control streams run all the time, and their texts must not change. Every other request is drawn from its
number and a seed: valid or with wrong types, ranks, shapes, names, values or bytes, through one of three
doors, read to its end or left at a random moment. Each that is read to its end must end exactly once.
Afterwards nothing is left in a slot or inside the server, no process has died, and memory is flat, as
`memory` says.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tqdm import tqdm

from tests.support.server import doors, memory
from tests.support.server.doors import GrpcDoor, Outcome
from tests.support.server.random_requests import Shot, shot
from tests.support.server.serving import Gapless, wait_for
from tests.support.server.toy_model import write_toy_model
from tests.support.toy_engine import toy_settings

NUM_CONTROLS = 8
NUM_SHOOTERS = 12
# shares of the requests after which memory is marked; the first one fills caches and heaps
PHASES = (0.3, 0.65, 1.0)
SETTLE_S = 1.5  # until what clients have left is gone too
PROCESSES = ("tritonserver", "tokenizer", "scheduler", "detokenizer", "instance")


@dataclass
class Report:
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    num_control_answers: int = 0
    marks: list[memory.Mark] = field(default_factory=list)  # before, warmed up, half-way, after


class Fuzz:
    """One run against one server, in phases with a mark of the memory behind each."""

    def __init__(self, gapless: Gapless, seed: int, num_requests: int) -> None:
        self.report = Report()
        self._gapless = gapless
        self._seed = seed
        self._num_requests = num_requests
        self._next: Iterator[int] = iter(())
        self._lock = threading.Lock()
        self._progress = tqdm(
            total=num_requests, desc="random requests", smoothing=0.05, disable=num_requests < 1000
        )
        self._done = threading.Event()

    def run(self) -> Report:
        controls = [Control(self._gapless, number) for number in range(NUM_CONTROLS)]
        pids, losses = pids_of(self._gapless), self._num_losses()
        self._mark(pids)
        streams = [
            threading.Thread(target=control.keep_asking, args=[self._done, self.report])
            for control in controls
        ]
        for thread in streams:
            thread.start()
        for number in (int(share * self._num_requests) for share in PHASES):
            self._fire(range(self.report.outcomes.total(), number))
            self._mark(pids)
        self._done.set()
        for thread in streams:
            thread.join()
        self._progress.close()
        self._check_afterwards(pids, losses)
        return self.report

    def _num_losses(self) -> float:
        return self._gapless.metrics()["gapless_instance_losses_total"]

    def _fire(self, numbers: range) -> None:
        self._next = iter(numbers)
        shooters = [threading.Thread(target=self._shoot) for _ in range(NUM_SHOOTERS)]
        for thread in shooters:
            thread.start()
        for thread in shooters:
            thread.join()

    def _mark(self, pids: dict[str, int]) -> None:
        time.sleep(SETTLE_S)
        self.report.marks.append(memory.mark(self.report.outcomes.total(), pids))

    def _check_afterwards(self, pids: dict[str, int], losses: float) -> None:
        try:
            wait_for(self._gapless.is_idle, 60)
        except AssertionError:
            self.report.problems.append(f"not idle in the end: {self._gapless.metrics()}")
        if pids_of(self._gapless) != pids:
            now = pids_of(self._gapless)
            self.report.problems.append(
                f"processes were restarted: {pids}, now {now}; {self._gapless.log[-2000:]}"
            )
            return
        if self._num_losses() != losses:
            self.report.problems.append("the scheduler gave the instance up")
        self.report.problems += [
            str(verdict) for verdict in memory.verdicts(self.report.marks) if not verdict.is_flat
        ]

    def _shoot(self) -> None:
        with GrpcDoor(self._gapless.grpc_port) as door:
            while True:
                with self._lock:
                    number = next(self._next, None)
                if number is None:
                    return
                self._judge(number, shot(random.Random(f"{self._seed} {number}")), door)
                self._progress.update()

    def _judge(self, number: int, made: Shot, door: GrpcDoor) -> None:
        try:
            outcome = fire(made, self._gapless.http_port, door)
            verdict = verdict_of(made, outcome)
        except Exception as error:
            outcome, verdict = Outcome(), f"{type(error).__name__}: {error}"
        with self._lock:
            self.report.outcomes[kind_of(outcome)] += 1
            if verdict:
                self.report.problems.append(f"request {number} ({made}): {verdict}; {outcome}")


def pids_of(gapless: Gapless) -> dict[str, int]:
    """Of the processes that a request goes through, by name."""
    stubs = {model: gapless.stub_pid(model) for model in PROCESSES[1:4]}
    return {"tritonserver": gapless.server_pid(), **stubs, "instance": gapless.instance_pid()}


def fire(made: Shot, http_port: int, door: GrpcDoor) -> Outcome:
    if made.door == "grpc":
        return door.ask(made.content, cancel_after_s=made.leave_after_s)
    return doors.post(http_port, made.door, made.content, cut_after_s=made.leave_after_s)


def verdict_of(made: Shot, outcome: Outcome) -> str:
    """What is wrong with an outcome, or nothing."""
    if outcome.cut:
        return "" if outcome.num_ends <= 1 else "ended more than once"
    if outcome.num_ends != 1 and made.is_request:
        return f"ended {outcome.num_ends} times"
    if any("Traceback" in error or "python_backends" in error for error in outcome.errors):
        return "an error shows our insides"
    if made.is_valid and outcome.errors:
        return "a valid request was refused"
    if made.is_valid is False and outcome.reasons:
        return "an invalid request was answered"
    return ""


def kind_of(outcome: Outcome) -> str:
    if outcome.cut:
        return "left"
    return outcome.reasons[0] if outcome.reasons else "refused" if outcome.errors else "nothing"


class Control:
    """A stream that asks the same again and again; those of even numbers over gRPC, the others over HTTP."""

    def __init__(self, gapless: Gapless, number: int) -> None:
        self._inputs = {"text_input": f"def read_{number}(self, size", "max_tokens": 200, "min_tokens": 200}
        self._gapless = gapless
        self._number = number
        self._text = self._ask().text  # undisturbed

    def keep_asking(self, done: threading.Event, report: Report) -> None:
        while not done.is_set():
            try:
                outcome = self._ask()
                wrong = outcome.text != self._text or outcome.reasons != ["length"] or bool(outcome.errors)
            except Exception as error:
                outcome, wrong = error, True  # type: ignore[assignment]
            report.num_control_answers += 1
            if wrong:
                report.problems.append(f"control stream {self._number}: {outcome} instead of {self._text!r}")
                return

    def _ask(self) -> Outcome:
        if self._number % 2:
            return doors.post(
                self._gapless.http_port, "generate_stream", doors.body(stream=True, **self._inputs)
            )
        with GrpcDoor(self._gapless.grpc_port) as door:
            return door.ask(doors.message(stream=True, **self._inputs))


def serve(model: str, directory: Path) -> Gapless:
    toy = toy_settings(write_toy_model(directory), step_ms=3)
    # so that it says what is left when it ends
    bundled = {"model.dtype": "float32"}  # texts are compared
    return Gapless(**(bundled if model == "bundled" else toy), **{"server.verbose": "true"})


def left_inside(log: str) -> list[str]:
    """What tritonserver says of requests that it still counts while it
    ends, although every client has long gone.
    """
    found = re.findall(r"Model '(\w+)' \(version \d+\) has (\d+) in-flight inferences", log)
    return [
        f"{count} requests were left inside the model {model} for ever"
        for model, count in dict(found).items()
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000, help="how many (default: %(default)s)")
    parser.add_argument(
        "--seed", type=int, default=1, help="another seed, other requests (default: %(default)s)"
    )
    parser.add_argument(
        "--model", choices=("bundled", "toy"), default="bundled", help="what is served (default: %(default)s)"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        gapless = serve(asked.model, Path(directory) / "toy")
        report = Fuzz(gapless, asked.seed, asked.requests).run()
        code = gapless.stop(timeout_s=100)
    report.problems += left_inside(gapless.log)
    print(memory.table(report.marks))
    for verdict in memory.verdicts(report.marks):
        print(verdict)
    print(", ".join(f"{count} {kind}" for kind, count in report.outcomes.most_common()))
    print(f"{report.num_control_answers} control answers, {len(report.problems)} problems")
    for problem in report.problems[:20]:
        print("-", problem[:1000])
    return int(bool(report.problems) or code != 0)


if __name__ == "__main__":
    sys.exit(main())
