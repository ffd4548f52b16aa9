"""With `front.demo`: a button of the page kills an instance, and its answers go on."""

from __future__ import annotations

import logging
import os
import platform
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
from starlette.datastructures import Headers

from front.errors import ProblemError

log = logging.getLogger("gapless.front")


class Victim(msgspec.Struct, forbid_unknown_fields=True):
    instance: int


def victim_in(body: bytes) -> int:
    """Returns the number of the instance that is to be killed. Raises ProblemError."""
    try:
        return msgspec.json.decode(body, type=Victim).instance
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ProblemError(400, f"not what can be killed: {error}", "invalid_value") from error


def check_origin(headers: Headers) -> None:
    """Pages of other origins may not kill, whatever else they may. Raises ProblemError."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host", ""):
        raise ProblemError(403, "the page of another origin asks for this", "forbidden")


def kill(status: Mapping[str, Any], number: int) -> None:
    """Kills the process of this instance, if it runs on this host. Raises ProblemError."""
    found = [each for each in status.get("instances", []) if each["number"] == number]
    if not found or found[0]["state"] not in ("ready", "draining"):
        raise ProblemError(404, f"instance = {number}: there is none that is ready", "not_found", "instance")
    pid = found[0]["pid"]
    if found[0]["host"] != platform.node() or not _is_instance(pid, number):
        raise ProblemError(404, f"instance = {number}: it runs on another host", "not_found", "instance")
    log.warning("instance %d is killed by a page (front.demo)", number)
    os.kill(pid, signal.SIGKILL)


def _is_instance(pid: int, number: int) -> bool:
    """Whether the process is still that of the instance."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return pid > 1 and command.split(b"\0")[0].strip() == f"gapless-instance-{number}".encode()
