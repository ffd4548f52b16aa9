"""Two files of the run directory: the orders of `launcher.control`, and the status of the instances, with the
list of those that should run.

Each file is replaced as a whole, so a reader never reads an incomplete one.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ORDERS, STATUS = "cluster-orders.json", "cluster-status.json"
KEPT_NS = 60_000_000_000  # for so long an order to move stays in the file


@dataclass(frozen=True, slots=True)
class MoveOrder:
    """A request is to go to an instance. Later orders have larger numbers: monotonic nanoseconds."""

    number: int
    request_id: int
    instance: int


@dataclass(frozen=True, slots=True)
class MoveResult:
    """What became of the order to move a request, as a sentence."""

    number: int  # of the order
    is_done: bool
    text: str


@dataclass(frozen=True, slots=True)
class Orders:
    """The orders of `launcher.control`."""

    draining: frozenset[int] = frozenset()  # numbers of instances that should become and stay empty
    instances: int | None = None  # this many should run; None: the load or the settings decide
    moves: tuple[MoveOrder, ...] = ()  # of the last minute
    number: int = 0  # of the latest order


class ClusterOrders:
    """The file of orders. `launcher.control` writes it, the scheduler model reads it. Several commands may
    write at the same time: one changes it after the other. Each order has a number, which the status names
    once the scheduler model has read it.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / ORDERS

    def read(self) -> Orders:
        """Returns the orders; without a file, the defaults. Raises ValueError if the file is damaged."""
        try:
            written = json.loads(self._path.read_text())
            num_instances = written.get("instances")
            return Orders(
                frozenset(int(number) for number in written["draining"]),
                None if num_instances is None else max(1, int(num_instances)),
                tuple(
                    MoveOrder(*(int(move[name]) for name in MoveOrder.__slots__)) for move in written["moves"]
                ),
                int(written["number"]),
            )
        except FileNotFoundError:
            return Orders()
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged, it has no valid orders: {error!r}") from error

    def drain(self, instances: frozenset[int], takers: Collection[int] | None = None) -> int:
        """Orders these instances to become empty, too. Returns the number of the order, as the other orders
        do. Raises OSError, and ValueError if none of `takers` would get requests any more.
        """

        def drained(orders: Orders) -> Orders:
            draining = orders.draining | instances
            if takers is not None and draining.issuperset(takers):
                last = ", ".join(map(str, sorted(instances)))
                raise ValueError(f"instance {last} is the last one that gets requests: restore another first")
            return replace(orders, draining=draining)

        return self._change(drained)

    def restore(self, instances: frozenset[int]) -> int:
        """Orders that these instances get requests again."""
        return self._change(lambda orders: replace(orders, draining=orders.draining - instances))

    def scale(self, num_instances: int | None) -> int:
        """Orders this number of instances; None: the load or the settings decide."""
        return self._change(lambda orders: replace(orders, instances=num_instances))

    def move(self, request_id: int, instance: int) -> int:
        """Orders this request to go to `instance`."""

        def moved(orders: Orders) -> Orders:
            latest = (order for order in orders.moves if order.number > orders.number - KEPT_NS)
            return replace(orders, moves=(*latest, MoveOrder(orders.number, request_id, instance)))

        return self._change(moved)

    def _change(self, change: Callable[[Orders], Orders]) -> int:
        """Writes what `change` makes of the orders, which have the number of the new one already."""
        with self._path.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            orders = self.read()
            orders = change(replace(orders, number=max(time.monotonic_ns(), orders.number + 1)))
            replace_json(self._path, {**asdict(orders), "draining": sorted(orders.draining)})
        return orders.number


class ClusterStatus:
    """The file with the status. The scheduler model writes it about once a second, `launcher.control` and the
    launcher read it.
    """

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / STATUS

    def read(self) -> dict[str, Any]:
        """Returns what `write` was given. Raises OSError if there is no file: the server is starting, or has
        1 instance.
        """
        status: dict[str, Any] = json.loads(self._path.read_text())
        return status

    def read_wanted(self, most: int) -> frozenset[int] | None:
        """Returns the numbers of the instances that should run, all below `most`. None if the file is
        missing, damaged or without a valid list.
        """
        try:
            wanted = self.read()["run"]
            is_good = all(type(number) is int and 0 <= number < most for number in wanted)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return frozenset(wanted) if wanted and is_good else None

    def write(self, status: dict[str, Any]) -> None:
        replace_json(self._path, status)


def replace_json(path: Path, content: dict[str, Any]) -> None:
    """Writes the file as a whole, or leaves the one that was there. Raises OSError."""
    written = path.with_name(f"{path.name}.{secrets.token_hex(4)}")  # several processes may write at once
    try:
        written.write_text(json.dumps(content))
        written.replace(path)
    except OSError:
        written.unlink(missing_ok=True)
        raise
