"""The wire between instances: the KV blocks of requests that move from one to another.

    source ── DEALER: Blocks, … , Last ─► ROUTER ── destination
    source ◄─ DEALER: Ack, … or Nak ───── ROUTER ── destination

Each instance binds one ROUTER, and connects a DEALER to each destination while it has something for it. A
message is one frame: how KV blocks are written, and a noun. The bytes of the blocks are a frame of their own,
which is not copied. These sockets share nothing with those of `sessions`: tokens never wait for blocks.

Frames that do not fit are dropped. The log names the first one of each kind.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from python_backends.nouns.messages import BadMessageError, BetweenInstances, pack, reader
from python_backends.nouns.moves import Ack, Blocks, Last, Nak
from python_backends.wires.network import CurveKeys, only_own_key, secure_client, secure_server
from python_backends.wires.sockets import Wake, address, open_socket, poller_of

log = logging.getLogger("gapless.instance")

READ = reader(tuple[str, BetweenInstances])
MAX_FRAMES = 64  # that are taken before other work is looked at
NO_BYTES = memoryview(b"")
WRONG_SIZE = "its size is not that of its blocks"

Payload = memoryview | NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """What another instance has sent: `sender` names a connection to our socket, or is the endpoint that we
    have connected to.
    """

    sender: bytes
    message: BetweenInstances
    payload: memoryview


class DroppedFrames:
    """Logs the first dropped frame of each kind."""

    def __init__(self) -> None:
        self.kinds: set[str] = set()

    def drop(self, kind: str, details: str = "") -> None:
        if kind not in self.kinds:
            self.kinds.add(kind)
            log.warning("dropped a frame on the wire of KV blocks: %s%s (logged once)", kind, details)


class BlocksWire:
    """One instance's sockets. One thread uses it; any thread may call `wake`.

    `endpoint` is where others find it. Raises ValueError if that is TCP and there are no keys: KV blocks can
    be read back as the text of users.
    """

    def __init__(
        self, endpoint: str, kv_format: str, block_bytes: int, keys: CurveKeys | None = None
    ) -> None:
        self._keys = keys
        self.check_endpoint(endpoint)
        self._kv_format, self._block_bytes = kv_format, block_bytes
        self.dropped = DroppedFrames()
        self._context = zmq.Context()
        self._authenticator = None if keys is None else only_own_key(self._context, keys)
        self._router = open_socket(self._context, zmq.ROUTER)
        if keys is not None:
            secure_server(self._router, keys)
        self._router.bind(endpoint)
        self.endpoint = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        self._dealers: dict[str, zmq.Socket[Any]] = {}
        self._wake = Wake()
        self._poller = poller_of(self._router, self._wake.fd)

    @staticmethod
    def endpoint_in(run_directory: Path, number: int) -> str:
        """Of instance `number` on this host."""
        return address(run_directory, f"blocks-{number}")

    def check_endpoint(self, endpoint: str) -> None:
        """Raises ValueError if blocks are not sent there, or not taken there."""
        scheme = endpoint.partition("://")[0]
        if scheme not in ("ipc", "tcp"):
            raise ValueError(f"{endpoint}: KV blocks go through ipc:// or tcp:// only")
        if scheme == "tcp" and self._keys is None:
            raise ValueError(f"{endpoint}: KV blocks go through TCP only with a CURVE key, and there is none")

    def wake(self) -> None:
        self._wake.call()

    def receive(self, timeout_s: float) -> list[Frame]:
        """Waits for frames, or until woken. Returns those that fit, in the order of their arrival from each
        sender.
        """
        ready = dict(self._poller.poll(max(0, math.ceil(timeout_s * 1000))))
        if self._wake.fd in ready:
            self._wake.clear()
        frames = list(self._from(self._router, b"", (Blocks, Last))) if self._router in ready else []
        for endpoint, dealer in self._dealers.items():
            if dealer in ready:
                frames += self._from(dealer, endpoint.encode(), (Ack, Nak))
        return frames

    def send(self, to: str, message: Blocks | Last, payload: Payload) -> None:
        """To the endpoint of another instance; never waits. What another instance does not read for long is
        lost.
        """
        if to not in self._dealers:
            self._connect(to)
        self._send(self._dealers[to], [pack((self._kv_format, message)), payload])

    def answer(self, sender: bytes, message: Ack | Nak) -> None:
        self._send(self._router, [sender, pack((self._kv_format, message))])

    def keep(self, endpoints: Collection[str]) -> None:
        """Closes the connections to all other endpoints; what waits there to be sent is lost."""
        for endpoint in self._dealers.keys() - set(endpoints):
            dealer = self._dealers.pop(endpoint)
            self._poller.unregister(dealer)
            dealer.close(linger=0)

    def close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)
        self._wake.close()

    def _connect(self, to: str) -> None:
        dealer = open_socket(self._context, zmq.DEALER)
        if self._keys is not None:
            secure_client(dealer, self._keys)
        dealer.connect(to)
        self._poller.register(dealer, zmq.POLLIN)
        self._dealers[to] = dealer

    def _from(self, socket: zmq.Socket[Any], sender: bytes, kinds: tuple[type, ...]) -> Iterator[Frame]:
        """`sender` empty: it is the first frame of each message."""
        for _ in range(MAX_FRAMES):
            try:
                frames = socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            name = sender or frames.pop(0).bytes
            frame = self._read(name, [frame.buffer for frame in frames], kinds)
            if frame is not None:
                yield frame

    def _read(self, sender: bytes, frames: list[memoryview], kinds: tuple[type, ...]) -> Frame | None:
        """None: it is dropped."""
        try:
            kv_format, message = READ(frames[0] if frames else NO_BYTES)
        except BadMessageError as error:
            self.dropped.drop("it is no message", f": {error}")
            return None
        frame = Frame(sender, message, frames[1] if len(frames) > 1 else NO_BYTES)
        wrong = self._wrong(frame, len(frames) - 1, kinds)
        if kv_format != self._kv_format:
            wrong = "its blocks are written in another way"
        if wrong:
            self.dropped.drop(wrong)
        return None if wrong else frame

    def _wrong(self, frame: Frame, num_payloads: int, kinds: tuple[type, ...]) -> str:
        """Why a frame does not fit, if it does not."""
        message = frame.message
        if not isinstance(message, kinds):
            return "such a message does not belong here"
        if num_payloads != (0 if isinstance(message, Ack | Nak) else 1):
            return "it has too few or too many parts"
        return "" if isinstance(message, Ack | Nak) or self._fits(message, frame.payload) else WRONG_SIZE

    def _fits(self, message: Blocks | Last, payload: memoryview) -> bool:
        least_count = 1 if isinstance(message, Blocks) else 0
        size = message.count * self._block_bytes
        return message.first >= 0 and message.count >= least_count and payload.nbytes == size

    def _send(self, socket: zmq.Socket[Any], frames: list[Any]) -> None:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            self.dropped.drop("it can't be sent", f": {error}")
