"""Both ends of the wires between scheduler model, instance and detokenizer: ZeroMQ sockets in the run directory.

    detokenizer ── PUSH ─► PULL ── scheduler model ── ROUTER ◄─► DEALER ── instance
                                                   └─ PUSH ─► PULL ── learner

The scheduler model binds, the others connect, in any order and as often as they are restarted. A session is one pairing of a scheduler
model with one life of an instance: frames of another session are dropped. When the scheduler model gives an instance up it opens a new
session, so that an instance that was only asleep forgets what it had.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from python_backends.messages import NOBODY, AnswerRecord, BadMessageError, Hello, Message, new_incarnation, pack, unpack
from python_backends.request import Feedback, Idle, ModelLimits
from python_backends.token_runs import RunsIn, RunsOut

log = logging.getLogger("gapless")

SEND_LIMIT = 100_000  # frames that wait for a peer which doesn't read
FEEDBACK_EVERY_S = 0.005
MAX_UNHEARD = 4096  # frames that wait for the learner


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """An instance has opened a session with us and holds nothing."""

    limits: ModelLimits


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """The instance of this session died, stalled or was replaced."""


@dataclass(frozen=True, slots=True)
class NewSession:
    """The scheduler model is another one, or starts over: everything of the old session is void."""


class SchedulerEnd:
    """The scheduler model's end. One thread uses it; any thread may call `wake`."""

    def __init__(self, run_directory: Path, dead_after_s: float) -> None:
        self._context = zmq.Context()
        self._instances = _socket(self._context, zmq.ROUTER)
        self._instances.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a restarted instance takes its name over
        self._instances.bind(_address(run_directory, "scheduler"))
        self._feedback = _socket(self._context, zmq.PULL)
        self._feedback.bind(_address(run_directory, "feedback"))
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK)
        self._poller = zmq.Poller()
        for source in (self._instances, self._feedback, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)
        self._dead_after_s = dead_after_s
        self._session = new_incarnation()
        self._runs = RunsIn()  # of this session
        self._peer = b""  # name of the instance
        self._peer_incarnation = NOBODY
        self._heard_s = 0.0

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def receive(self, timeout_s: float) -> list[Any]:
        """Waits for news. Returns messages, Feedback, Idle, InstanceReady and InstanceLost in the order of their arrival."""
        self._poller.poll(max(0, math.ceil(timeout_s * 1000)))
        self._clear_wake()
        news: list[Any] = []
        for (name, _, *behind), said in _messages(self._instances, place=1):
            news += self._from_instance(name, said, behind)
        for _, feedback in _messages(self._feedback):
            news += feedback
        if self._peer_incarnation and time.monotonic() - self._heard_s > self._dead_after_s:
            news += self._lose()
        return news

    def send(self, messages: Sequence[Message]) -> None:
        """Sends to the instance of this session; without one nothing is sent."""
        if messages and self._peer_incarnation:
            self._send(messages)

    def close(self) -> None:
        self._context.destroy(linger=0)
        os.close(self._wake_fd)

    def _from_instance(self, name: bytes, said: tuple[str, str, tuple[Any, ...]], behind: list[bytes]) -> list[Any]:
        sender, receiver, messages = said
        if sender == self._peer_incarnation and receiver == self._session:
            self._heard_s = time.monotonic()
            return self._runs.complete([message for message in messages if not isinstance(message, Hello)], behind)
        news = self._lose() if sender != self._peer_incarnation else []
        self._peer = name
        limits = messages[0].limits if isinstance(messages[0], Hello) else None
        if receiver != self._session or limits is None:
            self._send([Hello()])  # it doesn't know this session, or we don't know it
            return news
        self._peer_incarnation, self._heard_s = sender, time.monotonic()
        return [*news, InstanceReady(limits)]

    def _lose(self) -> list[InstanceLost]:
        known, self._peer_incarnation = self._peer_incarnation, NOBODY
        if not known:
            return []
        self._session, self._runs = new_incarnation(), RunsIn()
        return [InstanceLost()]

    def _send(self, messages: Sequence[Message]) -> None:
        frame = pack((self._session, self._peer_incarnation, tuple(messages)))
        try:
            self._instances.send_multipart([self._peer, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # it is gone; its silence or its successor's hello will tell

    def _clear_wake(self) -> None:
        try:
            os.eventfd_read(self._wake_fd)
        except BlockingIOError:
            return


class InstanceEnd:
    """An instance's end. One thread uses it."""

    def __init__(self, run_directory: Path, name: str, limits: ModelLimits) -> None:
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._socket.connect(_address(run_directory, "scheduler"))
        self._incarnation = new_incarnation()
        self._session = NOBODY
        self._runs = RunsOut()  # of this session
        self._limits = limits
        self._send([Hello(limits)])

    def receive(self, timeout_s: float) -> list[Any]:
        """Waits for news. Returns Submit, Cancel and NewSession in the order of their arrival."""
        news: list[Any] = []
        if not self._socket.poll(int(timeout_s * 1000)):
            return news
        for _, (session, _, messages) in _messages(self._socket):
            if session != self._session:
                self._session, self._runs = session, RunsOut()
                news.append(NewSession())
            if any(isinstance(message, Hello) for message in messages):
                self._send([Hello(self._limits)])
            news += [message for message in messages if not isinstance(message, Hello)]
        return news

    def publish(self, messages: Sequence[Message]) -> None:
        self._send(*self._runs.shorten(messages))

    def close(self) -> None:
        self._context.destroy(linger=0)

    def _send(self, messages: Sequence[Message], behind: Sequence[memoryview] = ()) -> None:
        frame = pack((self._incarnation, self._session, tuple(messages)))
        self._socket.send_multipart(
            [frame, *behind], zmq.NOBLOCK
        )  # raises when SEND_LIMIT frames wait: a lost one would leave a stream waiting for ever


class FeedbackEnd:
    """The detokenizer's end: what it found goes to the scheduler model. Any thread may send.

    Every message wakes the scheduler model, and there is a word for every window: what can wait goes along with what comes after it.
    """

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.PUSH)
        self._socket.connect(_address(run_directory, "feedback"))
        self._lock = threading.Lock()
        self._held: list[Feedback | Idle] = []
        self._sent_s = 0.0

    def send(self, *feedback: Feedback | Idle, can_wait: bool = False) -> None:
        """With what was held before it, in order. What can wait is held if something went out within the last FEEDBACK_EVERY_S."""
        with self._lock:
            self._held += feedback
            now_s = time.monotonic()
            if self._held and not (can_wait and now_s - self._sent_s < FEEDBACK_EVERY_S):
                self._socket.send(pack(tuple(self._held)))
                self._held, self._sent_s = [], now_s

    def close(self) -> None:
        self._context.destroy(linger=0)


class RecordsEnd:
    """The scheduler model's end towards the learner: tells what has ended; forgotten if nobody listens for long. One thread uses it."""

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.PUSH)
        self._socket.setsockopt(zmq.SNDHWM, MAX_UNHEARD)
        self._socket.connect(_address(run_directory, "records"))

    def send(self, records: Sequence[AnswerRecord]) -> None:
        """Never waits."""
        try:
            if records:
                self._socket.send(pack(tuple(records)), zmq.NOBLOCK)
        except zmq.Again:
            return

    def close(self) -> None:
        self._context.destroy(linger=0)


class LearnerEnd:
    """The learner's end: hears of every answer that has ended."""

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = _socket(self._context, zmq.PULL)
        self._socket.bind(_address(run_directory, "records"))

    def receive(self, timeout_s: float) -> list[AnswerRecord]:
        """Waits for the first ones."""
        self._socket.poll(max(0, math.ceil(timeout_s * 1000)))
        return [record for _, records in _messages(self._socket) for record in records]

    def close(self) -> None:
        self._context.destroy(linger=0)


def _socket(context: zmq.Context[Any], kind: int) -> zmq.Socket[Any]:
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, SEND_LIMIT)
    socket.setsockopt(zmq.RCVHWM, SEND_LIMIT)
    socket.setsockopt(zmq.LINGER, 0)
    return socket


def _address(run_directory: Path, name: str) -> str:
    return f"ipc://{run_directory}/{name}.sock"


def _messages(socket: zmq.Socket[Any], place: int = 0) -> Iterator[tuple[list[bytes], Any]]:
    """Everything that has arrived as (frames, what the one at `place` says); what nobody of ours wrote is passed over."""
    while True:
        try:
            frames = socket.recv_multipart(zmq.NOBLOCK)
            yield frames, unpack(frames[place])
        except zmq.Again:
            return
        except BadMessageError as error:
            log.warning("dropped a frame: %s", error)
