"""Two files of the run directory, by which `launcher.control`, the scheduler model and the launcher know of
each other: what is ordered, and what each instance carries and which of them should run.

Each is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ORDERS, STATUS = "cluster-orders.json", "cluster-status.json"


@dataclass(frozen=True, slots=True)
class Orders:
    """What `launcher.control` wants of the instances."""

    draining: frozenset[int] = frozenset()  # are to be empty
    instances: int | None = None  # so many should run; None: as many as the load or the settings say


class ClusterOrders:
    """Written by `launcher.control`, read by the scheduler model."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / ORDERS

    def read(self) -> Orders:
        """Raises ValueError if the file is damaged."""
        try:
            written = json.loads(self._path.read_text())
            num_instances = written.get("instances")
            return Orders(
                frozenset(int(number) for number in written["draining"]),
                None if num_instances is None else max(1, int(num_instances)),
            )
        except FileNotFoundError:
            return Orders()
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} has no orders: {error!r}") from error

    def drain(self, draining: frozenset[int]) -> None:
        """These, and no others, are to be empty. Raises ValueError and OSError, as `scale` does."""
        self._write(replace(self.read(), draining=draining))

    def scale(self, num_instances: int | None) -> None:
        """So many should run; None: as many as the load or the settings say."""
        self._write(replace(self.read(), instances=num_instances))

    def _write(self, orders: Orders) -> None:
        written: dict[str, Any] = {"draining": sorted(orders.draining)}
        if orders.instances is not None:
            written["instances"] = orders.instances
        _replace(self._path, written)


class ClusterStatus:
    """Written by the scheduler model about once a second, read by `launcher.control` and the launcher."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / STATUS

    def read(self) -> dict[str, Any]:
        """As `write` was given it. Raises OSError if there is none: the server starts, or has 1 instance."""
        status: dict[str, Any] = json.loads(self._path.read_text())
        return status

    def read_wanted(self, most: int) -> frozenset[int] | None:
        """The instances that should run, of `most` that there can be. None if the file is missing or damaged,
        or does not say so.
        """
        try:
            wanted = self.read()["run"]
            is_good = all(type(number) is int and 0 <= number < most for number in wanted)
        except (OSError, ValueError, KeyError, TypeError):
            return None
        return frozenset(wanted) if wanted and is_good else None

    def write(self, status: dict[str, Any]) -> None:
        _replace(self._path, status)


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Raises OSError."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(content))
    written.replace(path)
