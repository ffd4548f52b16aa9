"""Two files of the run directory: the orders of `launcher.control`, and the status of the instances, with the
list of those that should run.

Each file is replaced as a whole, so a reader never reads an incomplete one.
Tested in tests/pure/triton_models/test_instance_watch.py.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ORDERS, STATUS = "cluster-orders.json", "cluster-status.json"


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
    move: MoveOrder | None = None  # the last one


class ClusterOrders:
    """The file of orders. `launcher.control` writes it, the scheduler model reads it."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / ORDERS

    def read(self) -> Orders:
        """Returns the orders; without a file, the defaults. Raises ValueError if the file is damaged."""
        try:
            written = json.loads(self._path.read_text())
            num_instances, move = written.get("instances"), written.get("move")
            return Orders(
                frozenset(int(number) for number in written["draining"]),
                None if num_instances is None else max(1, int(num_instances)),
                None if move is None else MoveOrder(*(int(move[name]) for name in MoveOrder.__slots__)),
            )
        except FileNotFoundError:
            return Orders()
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged, it has no valid orders: {error!r}") from error

    def drain(self, draining: frozenset[int]) -> None:
        """Orders exactly these instances to become empty. Raises ValueError and OSError, as `scale` does."""
        self._write(replace(self.read(), draining=draining))

    def scale(self, num_instances: int | None) -> None:
        """Orders this number of instances; None: the load or the settings decide."""
        self._write(replace(self.read(), instances=num_instances))

    def move(self, request_id: int, instance: int) -> int:
        """Orders this request to go to `instance`. Returns the number of the order."""
        order = MoveOrder(time.monotonic_ns(), request_id, instance)
        self._write(replace(self.read(), move=order))
        return order.number

    def _write(self, orders: Orders) -> None:
        written: dict[str, Any] = {"draining": sorted(orders.draining)}
        if orders.instances is not None:
            written["instances"] = orders.instances
        if orders.move is not None:
            written["move"] = asdict(orders.move)
        replace_json(self._path, written)


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
    written = path.with_suffix(".new")
    written.write_text(json.dumps(content))
    written.replace(path)
