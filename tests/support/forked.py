"""Processes for tests that begin with torch imported, which takes three seconds of a processor: one process
imports it once, and each of these is a copy of it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

COPIES = multiprocessing.get_context("forkserver")
COPIES.set_forkserver_preload(["tests.support.killed_trainer", "tests.support.load_memory"])


def exit_code(function: Callable[..., None], *arguments: Any) -> int | None:
    """Of a process of its own that runs `function`."""
    process = COPIES.Process(target=function, args=arguments, daemon=True)
    process.start()
    process.join(120)
    return process.exitcode


def result(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function` returns in a process of its own. EOFError where it fails, which its process says."""
    receiving, sending = COPIES.Pipe(duplex=False)
    process = COPIES.Process(target=_send, args=(sending, function, arguments), daemon=True)
    process.start()
    sending.close()
    found = receiving.recv()
    process.join()
    return found


def _send(sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    sending.send(function(*arguments))
