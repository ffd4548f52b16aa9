"""What operators and the launcher ask of the scheduler model, and what it answers: lines of JSON on its
control socket (`wires.control`).
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

log = logging.getLogger("gapless.scheduler")

AUTO = -1
# yields what is still missing while the order is carried out; returns its result; raises RefusedOrderError
Progress = Generator[str, None, Any]
Answer = dict[str, Any]  # has "missing", "done" or "refused"


@dataclass(frozen=True, slots=True)
class Order:
    """What is asked. "status" changes nothing; "close" ends the requests that are open."""

    what: Literal["status", "move", "drain", "restore", "scale", "close"]
    instance: int = -1  # to drain, to restore, or where the request is to go
    request: int = -1  # to move
    number: int = AUTO  # scale: this many instances should run; AUTO: the load or the settings decide
    client_id: str = ""  # status: names the requests that their client calls so; empty: those that came first


class RefusedOrderError(Exception):
    """An order is not carried out, or not in time. The text says why."""


def read_order(line: bytes) -> Order:
    """Raises RefusedOrderError."""
    try:
        return msgspec.json.decode(line, type=Order)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RefusedOrderError(f"not an order: {error}") from error


def next_answer(progress: Progress) -> Answer:
    """More follow only after a "missing"."""
    try:
        return {"missing": next(progress)}
    except StopIteration as end:
        return {"done": end.value}
    except RefusedOrderError as error:
        return {"refused": str(error)}
    except Exception as error:
        log.exception("an order could not be carried out")
        return {"refused": f"the order could not be carried out: {error!r}"}
