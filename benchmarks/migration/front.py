"""What `migration` has in the place of Triton: two instance processes, and the scheduler model's parts in
its own process, which note when each token comes. A detokenizer is not needed: every window is confirmed at
once.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.migration.answers import Answer, Moved
from benchmarks.migration.instance import BLOCKING
from benchmarks.policies import setting_of
from python_backends.cluster.router import Router
from python_backends.launcher.fleets.places import places
from python_backends.linux.large_pages import with_large_pages
from python_backends.linux.process_group import end_group, start_group
from python_backends.moving.coordinator import Coordinator
from python_backends.moving.move import Move, MoveReason
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.messages import Failed
from python_backends.nouns.moves import Adopted, Suspended
from python_backends.nouns.request import Feedback, Ids, Request, Sampling
from python_backends.nouns.step import Evicted, HiddenStates, Started, Tokens
from python_backends.settings import ROOT, ClusterSettings, Settings, StreamSettings, dump
from python_backends.streams.stream import Stream
from python_backends.streams.table import StreamTable
from python_backends.watching.metrics import Metrics
from python_backends.wires.sessions import (
    InstanceLost,
    InstanceMove,
    InstanceReady,
    SchedulerEnd,
)

INSTANCES = (0, 1)
SILENT_S = 60.0  # an instance that has said nothing for so long has died
BACKGROUND_PROMPT, BACKGROUND_ANSWER = 32, 2000  # tokens; few steps have a prompt of theirs


class OneOfTwo(Router):
    """Sends every request where the benchmark says."""

    def __init__(self) -> None:
        super().__init__(ClusterSettings(instances=len(INSTANCES), policy=setting_of("round_robin")))
        self.places: dict[int, int] = {}  # by request id

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        place = self.places[stream.request_id]
        return place if place in allowed else None


class PatientCoordinator(Coordinator):
    """A blocking copy may take as long as it takes."""

    is_patient = False

    def _suspended(self, move: Move, message: Suspended) -> None:
        super()._suspended(move, message)
        if self.is_patient:
            move.due_s = math.inf


class Front:
    def __init__(self, settings: Settings, directory: Path, seed: int = 0) -> None:
        """Starts the instances, and waits until they are ready."""
        dump(settings, directory / "settings.json")
        self._blocking_file = directory / BLOCKING
        self._metrics, self._router = Metrics(), OneOfTwo()
        self._table = StreamTable(
            StreamSettings(), time.monotonic_ns, lambda _: 0, self._metrics, self._router
        )
        self._coordinator = PatientCoordinator(
            self._table.submissions, self._metrics, self._router.step_s, time.monotonic
        )
        self._random = np.random.default_rng(seed)
        self._vocabulary = 0
        self._num_asked = 0
        self._open: dict[int, Answer] = {}
        self._num_background = 0  # requests of each instance
        self._background: list[Answer] = []
        self._num_ended_tokens = 0  # of short requests
        self._heard: dict[type, tuple[float, Any]] = {}  # the last Suspended and the last Adopted, and when
        self._now_s = 0.0
        self._readers: dict[type, Callable[[Any], None]] = {
            Tokens: self._on_tokens,
            Started: self._table.started,
            Evicted: self._table.evicted,
            InstanceLoad: self._router.heard,
            InstanceMove: self._on_move,
            InstanceReady: self._on_ready,
            InstanceLost: self._on_lost,
            Failed: _give_up,
            HiddenStates: lambda news: None,  # no length is predicted here
        }
        self._link = SchedulerEnd(directory, SILENT_S)
        self._directory, self._ready_s = directory, settings.server.ready_s
        self._killed: set[int] = set()  # instances that are not back yet
        self._processes = {number: self._start(number) for number in INSTANCES}
        self.until(lambda: len(self._router.loads) == len(INSTANCES), self._ready_s)

    def close(self) -> None:
        for process in self._processes.values():
            end_group(process, wait_s=10)
        self._link.close()

    def kill(self, instance: int) -> None:
        """Ends its process by SIGKILL, and starts another one in its place; in a thread, because this takes
        time that the scheduler model does not spend.
        """
        self._killed.add(instance)
        threading.Thread(target=self._replace, args=(instance,)).start()

    def until_back(self) -> None:
        """Until the instance that was killed is ready again."""
        self.until(lambda: not self._killed, self._ready_s)

    @property
    def pids(self) -> list[int]:
        """Of the instances."""
        return [each.pid for each in self._processes.values()]

    @property
    def outcomes(self) -> Counter[str]:
        """Of all moves with blocks so far."""
        return Counter(self._metrics.sums("gapless_migrations_total", "outcome"))

    # --- what runs

    def prompt(self, num_tokens: int) -> Ids:
        return self._random.integers(0, self._vocabulary, num_tokens).astype(np.int32)

    def ask(self, prompt: Ids, max_tokens: int, instance: int) -> Answer:
        """A new request, greedy and without a stop, which goes to this instance."""
        self._num_asked += 1
        request = Request(self._num_asked, prompt, Sampling(max_tokens=max_tokens))
        self._router.places[request.request_id] = instance
        refusal = self._table.accept(request, None)
        stream = self._table.find(request.request_id)
        assert stream is not None, refusal
        answer = self._open[request.request_id] = Answer(stream)
        return answer

    def end(self, answer: Answer) -> None:
        """Its client goes away."""
        self._table.feedback(Feedback(answer.stream.request_id, 0, gone=True))
        self.turn()

    def set_background(self, num_requests: int) -> None:
        """So many short requests run at each instance from now on; one that has ended is replaced."""
        self._num_background = num_requests
        for answer in self._background if not num_requests else []:
            self.end(answer)
        self._fill_background()
        self.until(lambda: all(len(each.times_s) > 1 for each in self._background))

    def num_background_tokens(self) -> int:
        """That all short requests have got so far, ended ones included."""
        return self._num_ended_tokens + sum(len(each.times_s) for each in self._background)

    def until(self, condition: Callable[[], bool], most_s: float = 120.0) -> None:
        end_s = time.monotonic() + most_s
        while not condition():
            if any(self._processes[each].poll() is not None for each in {*INSTANCES} - self._killed):
                raise RuntimeError("an instance has ended")
            if time.monotonic() > end_s:
                raise TimeoutError("the instances do not get on")
            self.turn()

    def move(self, answer: Answer, way: str) -> Moved:
        """Moves a request to the other instance, if its move succeeds; returns when it has its next token."""
        stream, source = answer.stream, answer.stream.instance
        moves = self._coordinator
        self.until(lambda: moves.can_leave(stream) and moves.may_try(source, 1 - source))
        began_s, num_tokens, first = time.monotonic(), answer.num_tokens, len(stream.tokens)
        self._heard.clear()
        if way == "recompute":
            self._table.submissions.submit_elsewhere(stream, 1 - source, time.monotonic_ns())
            outcome, next_token = "done", first
        else:
            outcome = self._move_with_blocks(stream, 1 - source, way)
            next_token = self._heard[Adopted][1].first_index if outcome == "done" else len(stream.tokens)
        self.until(lambda: len(stream.tokens) > next_token)
        place = next_token - 1
        if outcome != "done":  # the longest pause since it began
            place = first - 1 + int(answer.gaps_s[first - 1 :].argmax())
        suspended_s, adopted_s = (self._heard.get(kind, (math.nan, None))[0] for kind in (Suspended, Adopted))
        last_s, next_s = answer.times_s[place : place + 2]
        return Moved(way, num_tokens, outcome, place, began_s, last_s, suspended_s, adopted_s, next_s)

    def turn(self) -> None:
        wait_s = min(0.05, self._table.wait_s(), self._coordinator.wait_s())
        news = self._link.receive(wait_s)
        self._now_s = time.monotonic()
        for each in news:
            self._readers[type(each)](each)
        self._coordinator.check()
        for instance, messages in self._table.outbox().items():
            self._link.send(instance, messages)
        for outgoing in self._table.due():
            if outgoing.window is not None:
                end = outgoing.window.start + len(outgoing.window.tokens)
                self._table.feedback(Feedback(outgoing.request_id, end, answered=True))
        for stream in self._table.take_ended():
            del self._open[stream.request_id]
        self._fill_background()

    # --- inside

    def _start(self, instance: int) -> subprocess.Popen[Any]:
        command = [sys.executable, "-m", "benchmarks.migration.instance", str(self._directory), str(instance)]
        place = places(len(INSTANCES), None, [])[instance]
        return start_group(command, with_large_pages(os.environ), place.processors, cwd=ROOT)

    def _replace(self, instance: int) -> None:
        end_group(self._processes[instance], wait_s=0)
        self._processes[instance] = self._start(instance)

    def _fill_background(self) -> None:
        running = [each for each in self._background if not each.has_ended()]
        self._num_ended_tokens += sum(len(each.times_s) for each in self._background if each.has_ended())
        self._background = running
        for instance in INSTANCES:
            here = [each for each in running if self._router.places[each.stream.request_id] == instance]
            self._background += [
                self.ask(self.prompt(BACKGROUND_PROMPT), BACKGROUND_ANSWER, instance)
                for _ in range(self._num_background - len(here))
            ]

    def _move_with_blocks(self, stream: Stream, destination: int, way: str) -> str:
        """How the move ended."""
        before = self.outcomes
        self._coordinator.is_patient = way == "blocking"
        if self._coordinator.is_patient:
            self._blocking_file.touch()
        else:
            self._blocking_file.unlink(missing_ok=True)
        self._coordinator.start(stream, destination, MoveReason.SHUFFLE)
        self._router.moved(stream, destination)
        self.until(lambda: stream not in self._coordinator)
        return next(iter(self.outcomes - before))

    def _on_tokens(self, tokens: Tokens) -> None:
        self._table.tokens(tokens)
        for request_id in tokens.request_ids.tolist():
            answer = self._open.get(request_id)
            if answer is not None:
                count = len(answer.stream.tokens) - len(answer.times_s)
                answer.times_s += [self._now_s] * count

    def _on_move(self, news: InstanceMove) -> None:
        self._heard[type(news.message)] = (self._now_s, news.message)
        self._coordinator.heard(news.instance, news.message)

    def _on_ready(self, ready: InstanceReady) -> None:
        self._vocabulary = ready.limits.vocab_size
        self._router.ready(ready.instance, ready.limits)
        self._table.instance_ready(ready.instance)
        self._coordinator.instance_ready(ready.instance, ready.hello)
        self._killed.discard(ready.instance)

    def _on_lost(self, lost: InstanceLost) -> None:
        if lost.instance not in self._killed:
            _give_up(lost)
        self._router.lost(lost.instance)
        self._table.instance_lost(lost.instance)
        self._coordinator.instance_lost(lost.instance)


def _give_up(news: Any) -> None:
    raise RuntimeError(f"an instance fails: {news}")
