"""The wire between scheduler model and instances: sessions.

A session is one pairing of a scheduler model with one life of an instance: frames of another session are
dropped. When the scheduler model gives an instance up it opens a new session, so that an instance that was
only asleep forgets what it had.

Each end counts the frames that it sends in a session, and a session from which one is missing ends: ZeroMQ
loses what is under way when it makes a connection by TCP again. An instance that misses one begins a new
life. The scheduler model says something every BEAT_S, so that its last frame is missed, too.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from python_backends.linux.pauses import Silence, longest_silence_s
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.messages import (
    NOBODY,
    FromInstance,
    Hello,
    ToInstance,
    frame_reader,
    new_incarnation,
    pack,
    reader,
)
from python_backends.nouns.moves import Adopted, MoveEnded, Refused, Reserved, Suspended
from python_backends.nouns.request import Feedback, Idle, ModelLimits
from python_backends.wires.network import Network, only_own_key, read_network, secure_client, secure_server
from python_backends.wires.sockets import Wake, address, open_socket, poller_of, received, say_unknown

log = logging.getLogger("gapless")

FROM_INSTANCE = frame_reader(FromInstance, say_unknown)
TO_INSTANCE = frame_reader(ToInstance, say_unknown)
FEEDBACK = reader(tuple[Feedback | Idle, ...])
INSTANCE_NAME = re.compile(rb"instance-(\d{1,4})\.[0-9a-f]+")  # and its life
BEAT_S = 1.0
LONGEST_TURN_S = 2.0  # of the scheduler model, between two looks at whether the instance is silent


@dataclass(frozen=True, slots=True)
class InstanceReady:
    """The instance with this number has opened a session with us and holds nothing."""

    instance: int
    hello: Hello

    @property
    def limits(self) -> ModelLimits:
        assert self.hello.limits is not None
        return self.hello.limits


@dataclass(frozen=True, slots=True)
class InstanceMove:
    """What the instance with this number says of a move."""

    instance: int
    message: Reserved | Refused | Suspended | Adopted | MoveEnded


@dataclass(frozen=True, slots=True)
class InstanceLost:
    """The instance with this number died, stalled or was replaced."""

    instance: int
    silent_s: float = 0.0  # it was given up after this silence; 0: not for that


@dataclass(frozen=True, slots=True)
class NewSession:
    """The scheduler model is another one, or starts over: everything of the old session is void."""


class _Peer:
    """One instance as the scheduler model knows it: which of its lives counts, and the session with that.

    Several may live at the same time, where a host was cut off and its instance was started elsewhere. The
    one of which was heard last counts; an earlier one only when that is silent.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.name = b""  # of the socket of the life that counts
        self.incarnation = NOBODY  # of the life that counts
        self.limits: ModelLimits | None = None  # as it said when it opened the session
        self.session = new_incarnation()
        self.num_heard = 0  # frames of this life
        self.num_sent, self.sent_s = 0, 0.0  # frames in this session, and when the last one was sent
        self._next_number = 0  # of the frame that comes next in this session
        self.longest_step_s = 0.0  # as it said last
        self._heard_of: set[bytes] = set()  # sockets of lives
        self._silence = Silence(LONGEST_TURN_S)  # a turn waits for a second at most

    @property
    def is_ready(self) -> bool:
        """Whether it has opened the session."""
        return self.limits is not None

    def replaces(self, name: bytes) -> bool:
        """Whether the life with that socket counted before the one that counts."""
        return self.incarnation != NOBODY and name != self.name and name in self._heard_of

    def hear(self, name: bytes, incarnation: str, session: str, number: int) -> list[InstanceLost]:
        """A frame of that life, which counts from now on. Ends the session if frames before it are lost."""
        lacks_frames = self.is_ready and session == self.session and number != self._next_number
        if lacks_frames:
            log.warning("frames of instance %d are lost: its requests are submitted again", self.number)
        lost = self.lose() if lacks_frames or incarnation != self.incarnation else []
        if session == self.session:
            self._next_number = number + 1
        self.name, self.incarnation = name, incarnation
        self._heard_of.add(name)
        self.num_heard += 1
        return lost

    def labelled(self, message: Any) -> Any:
        """`message` of this instance, with its number where it needs one."""
        if isinstance(message, Load):
            self.longest_step_s = message.longest_step_s
            assert self.limits is not None, "it has opened the session"
            return InstanceLoad(self.number, self.limits, message)
        if isinstance(message, Reserved | Refused | Suspended | Adopted | MoveEnded):
            return InstanceMove(self.number, message)
        return message

    def look(self, dead_after_s: float) -> list[InstanceLost]:
        """Ends the session if it has been silent for too long."""
        silent_s = self._silence.look(self.num_heard)
        if silent_s <= longest_silence_s(dead_after_s, self.longest_step_s):
            return []
        return self.lose(silent_s)

    def lose(self, silent_s: float = 0.0) -> list[InstanceLost]:
        """Ends the session. Empty if there was none."""
        self.longest_step_s = 0.0
        lost = [InstanceLost(self.number, silent_s)] if self.is_ready else []
        if self.incarnation != NOBODY:
            self.incarnation, self.limits, self.session = NOBODY, None, new_incarnation()
            self.num_sent = 0
        return lost


class SchedulerEnd:
    """The scheduler model's end: a session with each instance. One thread uses it; any thread may call
    `wake`.
    """

    def __init__(self, run_directory: Path, dead_after_s: float) -> None:
        """Instances connect to a socket in `run_directory`, or by TCP if a file there says so
        (`wires.network`).
        """
        self._context = zmq.Context()
        network = read_network(run_directory)
        self._authenticator = None if network is None else only_own_key(self._context, network.keys)
        self._instances = open_socket(self._context, zmq.ROUTER)
        self._instances.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a life that connects again keeps its name
        if network is not None:
            secure_server(self._instances, network.keys)
        self._instances.bind(_scheduler_at(run_directory, network))
        self._feedback = open_socket(self._context, zmq.PULL)
        self._feedback.bind(address(run_directory, "feedback"))
        self._wake = Wake()
        self._poller = poller_of(self._instances, self._feedback, self._wake.fd)
        self._dead_after_s = dead_after_s
        self._peers: dict[int, _Peer] = {}

    def wake(self) -> None:
        self._wake.call()

    def receive(self, timeout_s: float) -> list[Any]:
        """Waits for news. Returns messages, Feedback, Idle, InstanceReady, InstanceLoad, InstanceMove and
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
        for peer in self._peers.values():
            news += peer.look(self._dead_after_s)
            if peer.is_ready and time.monotonic() - peer.sent_s >= BEAT_S:
                self._send(peer, [])
        return news

    def send(self, instance: int, messages: Sequence[ToInstance]) -> None:
        """Sends to the instance with this number; if there is no session with it, nothing is sent."""
        peer = self._peers.get(instance)
        if messages and peer is not None and peer.is_ready:
            self._send(peer, messages)

    def give_up(self, instance: int) -> list[InstanceLost]:
        """Ends the session with the instance of this number, whose process has ended. Empty if there was
        none.
        """
        peer = self._peers.get(instance)
        return peer.lose() if peer is not None else []

    def close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)
        self._wake.close()

    def _from_instance(self, name: bytes, said: tuple[str, str, int, tuple[Any, ...]]) -> list[Any]:
        sender, receiver, number, messages = said
        peer = self._peer(name)
        if peer is None or peer.replaces(name):
            return []
        news: list[Any] = list(peer.hear(name, sender, receiver, number))
        if peer.is_ready and receiver == peer.session:
            return [peer.labelled(each) for each in messages if not isinstance(each, Hello)]
        hello = messages[0] if messages else None
        if receiver != peer.session or not isinstance(hello, Hello) or hello.limits is None:
            self._send(peer, [Hello()])  # it doesn't know this session, or we don't know it
            return news
        peer.limits = hello.limits
        return [*news, InstanceReady(peer.number, hello)]

    def _peer(self, name: bytes) -> _Peer | None:
        """The instance of this socket name; None if no instance has such a name."""
        found = INSTANCE_NAME.fullmatch(name)
        if found is None:
            return None
        return self._peers.setdefault(int(found[1]), _Peer(int(found[1])))

    def _send(self, peer: _Peer, messages: Sequence[ToInstance]) -> None:
        frame = pack((peer.session, peer.incarnation, peer.num_sent, tuple(messages)))
        peer.num_sent, peer.sent_s = peer.num_sent + 1, time.monotonic()
        try:
            self._instances.send_multipart([peer.name, frame], zmq.NOBLOCK)
        except zmq.ZMQError:
            return  # it is gone; its silence or its successor's hello will tell


def _scheduler_at(run_directory: Path, network: Network | None) -> str:
    return network.scheduler if network is not None else address(run_directory, "scheduler")


class InstanceEnd:
    """An instance's end. One thread uses it; any thread may call `wake`."""

    def __init__(
        self, run_directory: Path, name: str, limits: ModelLimits, blocks_at: str = "", kv_format: str = ""
    ) -> None:
        """`blocks_at` and `kv_format`: of the KV blocks that this instance exchanges with others, if it
        does.
        """
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.DEALER)
        self._incarnation = new_incarnation()
        self._socket.setsockopt(zmq.IDENTITY, f"{name}.{self._incarnation}".encode())
        network = read_network(run_directory)
        if network is not None:
            secure_client(self._socket, network.keys)
        self._socket.connect(_scheduler_at(run_directory, network))
        self._wake = Wake()
        self._poller = poller_of(self._socket, self._wake.fd)
        self._session = NOBODY
        self._num_sent, self._next_number = 0, 0  # frames in this session; of the one that comes next
        self._hello = Hello(limits, platform.node(), blocks_at, kv_format, os.getpid())
        self.publish([self._hello])

    def receive(self, timeout_s: float) -> list[Any]:
        """Waits for news, or until woken. Returns Submit, Predicted, Cancel, messages of moves and
        NewSession in the order of their arrival.
        """
        news: list[Any] = []
        if not self._poller.poll(int(timeout_s * 1000)):
            return news
        self._wake.clear()
        for _, (session, receiver, number, messages) in received(self._socket, TO_INSTANCE):
            if receiver != self._incarnation:
                continue  # an earlier life of ours
            if session != self._session:
                self._session, self._num_sent = session, 0
                news.append(NewSession())
            elif number != self._next_number:
                self._begin_again()
                continue
            self._next_number = number + 1
            if any(isinstance(message, Hello) for message in messages):
                self.publish([self._hello])
            news += [message for message in messages if not isinstance(message, Hello)]
        return news

    def wake(self) -> None:
        self._wake.call()

    def publish(self, messages: Sequence[FromInstance]) -> None:
        """Raises when SEND_LIMIT frames wait: a lost one would leave a stream waiting for ever."""
        frame = pack((self._incarnation, self._session, self._num_sent, tuple(messages)))
        self._socket.send(frame, zmq.NOBLOCK)
        self._num_sent += 1

    def _begin_again(self) -> None:
        """Frames to us are lost: the scheduler model hears of another life, which has no requests."""
        log.warning("frames from the scheduler model are lost: a new session begins")
        self._incarnation, self._session, self._num_sent = new_incarnation(), NOBODY, 0
        self.publish([self._hello])

    def close(self) -> None:
        self._context.destroy(linger=0)
        self._wake.close()
