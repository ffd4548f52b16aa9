"""The wire between scheduler model and instance: sessions.

A session is one pairing of a scheduler model with one life of an instance: frames of another session are
dropped. When the scheduler model gives an instance up it opens a new session, so that an instance that was
only asleep forgets what it had.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from python_backends.linux.pauses import Silence
from python_backends.nouns.messages import (
    NOBODY,
    FromInstance,
    Hello,
    ToInstance,
    new_incarnation,
    pack,
    reader,
)
from python_backends.nouns.request import Feedback, Idle, ModelLimits
from python_backends.wires.sockets import Wake, address, open_socket, poller_of, received

FROM_INSTANCE = reader(tuple[str, str, tuple[FromInstance, ...]])
TO_INSTANCE = reader(tuple[str, str, tuple[ToInstance, ...]])
FEEDBACK = reader(tuple[Feedback | Idle, ...])
LONGEST_TURN_S = 2.0  # of the scheduler model, between two looks at whether the instance is silent


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
        self._instances = open_socket(self._context, zmq.ROUTER)
        self._instances.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a restarted instance takes its name over
        self._instances.bind(address(run_directory, "scheduler"))
        self._feedback = open_socket(self._context, zmq.PULL)
        self._feedback.bind(address(run_directory, "feedback"))
        self._wake = Wake()
        self._poller = poller_of(self._instances, self._feedback, self._wake.fd)
        self._dead_after_s = dead_after_s
        self._session = new_incarnation()
        self._peer = b""  # name of the instance
        self._peer_incarnation = NOBODY
        self._num_heard = 0  # frames of this session
        self._silence = Silence(LONGEST_TURN_S)  # a turn waits for a second at most

    def wake(self) -> None:
        self._wake.call()

    def receive(self, timeout_s: float) -> list[Any]:
        """Waits for news. Returns messages, Feedback, Idle, InstanceReady and
        InstanceLost in the order of their arrival.
        """
        ready = dict(self._poller.poll(max(0, math.ceil(timeout_s * 1000))))
        news: list[Any] = []
        if self._wake.fd in ready:
            self._wake.clear()
        if self._instances in ready:
            for (name, *_), said in received(self._instances, FROM_INSTANCE, place=1):
                news += self._from_instance(name, said)
        if self._feedback in ready:
            for _, feedback in received(self._feedback, FEEDBACK):
                news += feedback
        if self._silence.look(self._num_heard) > self._dead_after_s and self._peer_incarnation:
            news += self._lose()
        return news

    def send(self, messages: Sequence[ToInstance]) -> None:
        """Sends to the instance of this session; without one nothing is sent."""
        if messages and self._peer_incarnation:
            self._send(messages)

    def close(self) -> None:
        self._context.destroy(linger=0)
        self._wake.close()

    def _from_instance(self, name: bytes, said: tuple[str, str, tuple[Any, ...]]) -> list[Any]:
        sender, receiver, messages = said
        if sender == self._peer_incarnation and receiver == self._session:
            self._num_heard += 1
            return [message for message in messages if not isinstance(message, Hello)]
        news = self._lose() if sender != self._peer_incarnation else []
        self._peer = name
        limits = messages[0].limits if isinstance(messages[0], Hello) else None
        if receiver != self._session or limits is None:
            self._send([Hello()])  # it doesn't know this session, or we don't know it
            return news
        self._peer_incarnation = sender
        self._num_heard += 1
        return [*news, InstanceReady(limits)]

    def _lose(self) -> list[InstanceLost]:
        known, self._peer_incarnation = self._peer_incarnation, NOBODY
        if not known:
            return []
        self._session = new_incarnation()
        return [InstanceLost()]

    def _send(self, messages: Sequence[ToInstance]) -> None:
        frame = pack((self._session, self._peer_incarnation, tuple(messages)))
        try:
            self._instances.send_multipart([self._peer, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # it is gone; its silence or its successor's hello will tell


class InstanceEnd:
    """An instance's end. One thread uses it; any thread may call `wake`."""

    def __init__(self, run_directory: Path, name: str, limits: ModelLimits) -> None:
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, name.encode())
        self._socket.connect(address(run_directory, "scheduler"))
        self._wake = Wake()
        self._poller = poller_of(self._socket, self._wake.fd)
        self._incarnation = new_incarnation()
        self._session = NOBODY
        self._limits = limits
        self._send([Hello(limits)])

    def receive(self, timeout_s: float) -> list[Any]:
        """Waits for news, or until woken. Returns Submit, Predicted, Cancel, Pace
        and NewSession in the order of their arrival.
        """
        news: list[Any] = []
        if not self._poller.poll(int(timeout_s * 1000)):
            return news
        self._wake.clear()
        for _, (session, _, messages) in received(self._socket, TO_INSTANCE):
            if session != self._session:
                self._session = session
                news.append(NewSession())
            if any(isinstance(message, Hello) for message in messages):
                self._send([Hello(self._limits)])
            news += [message for message in messages if not isinstance(message, Hello)]
        return news

    def wake(self) -> None:
        self._wake.call()

    def publish(self, messages: Sequence[FromInstance]) -> None:
        self._send(messages)

    def close(self) -> None:
        self._context.destroy(linger=0)
        self._wake.close()

    def _send(self, messages: Sequence[FromInstance]) -> None:
        """Raises when SEND_LIMIT frames wait: a lost one would leave a stream waiting for ever."""
        frame = pack((self._incarnation, self._session, tuple(messages)))
        self._socket.send(frame, zmq.NOBLOCK)
