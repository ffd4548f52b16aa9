"""Where the processes of a server find each other if instances may run on other hosts: by TCP, with CURVE.

A file in the run directory says it; without that file all sockets are in the run directory. The launcher
writes it for the scheduler model, a keeper for its instance.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import zmq

from python_backends.wires.run_directory import NETWORK

if TYPE_CHECKING:
    from zmq.auth.thread import ThreadAuthenticator

HEARTBEAT_MS, SILENT_MS = 1000, 5000  # a connection that is silent for so long is made again


class CurveKeys(NamedTuple):
    """The one pair of keys that all processes of a cluster have, each 40 characters of Z85 (CurveZMQ,
    https://rfc.zeromq.org/spec/26/).
    """

    public: bytes
    secret: bytes

    @classmethod
    def new(cls) -> CurveKeys:
        return cls(*zmq.curve_keypair())


@dataclass(frozen=True, slots=True)
class Network:
    scheduler: str  # endpoint of the scheduler model
    host: str  # address of this process's host, by which other instances reach it
    keys: CurveKeys

    @property
    def own_endpoint(self) -> str:
        """To bind a socket to, at any free port."""
        return f"tcp://{self.host}:*"


def network_as_bytes(network: Network) -> bytes:
    """As it stands in the file."""
    keys = [key.decode() for key in network.keys]
    return json.dumps({"scheduler": network.scheduler, "host": network.host, "keys": keys}).encode()


def read_network(run_directory: Path) -> Network | None:
    """Returns what the file says; None without it. Raises ValueError and KeyError if it is damaged."""
    try:
        said = json.loads((run_directory / NETWORK).read_bytes())
    except FileNotFoundError:
        return None
    public, secret = said["keys"]
    return Network(said["scheduler"], said["host"], CurveKeys(public.encode(), secret.encode()))


def secure_server(socket: zmq.Socket[Any], keys: CurveKeys) -> None:
    """To be called before `bind`. The context needs `only_own_key` as well: knowing the public key of a
    socket would suffice to connect to it.
    """
    socket.curve_server = True
    _use(socket, keys)


def secure_client(socket: zmq.Socket[Any], keys: CurveKeys) -> None:
    """To be called before `connect`."""
    socket.curve_serverkey = keys.public
    _use(socket, keys)


def only_own_key(context: zmq.Context[Any], keys: CurveKeys) -> ThreadAuthenticator:
    """Sockets of this context accept connections with the cluster's keys only. To be stopped before the
    context is destroyed.
    """
    from zmq.auth.thread import ThreadAuthenticator  # brings asyncio, which nothing else here needs

    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback("*", _OwnKey(keys))
    return authenticator


def _use(socket: zmq.Socket[Any], keys: CurveKeys) -> None:
    socket.curve_publickey, socket.curve_secretkey = keys
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, SILENT_MS)


class _OwnKey:
    """Accepts only connections that have the cluster's keys."""

    def __init__(self, keys: CurveKeys) -> None:
        self._public = keys.public

    def callback(self, _domain: str, key: bytes) -> bool:
        return key == self._public
