"""Two files of the run directory, by which `launcher.control` and the scheduler model know of each other:
which instances are to be empty, and what each instance carries.

Each is replaced as a whole, so a reader never sees half of one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ORDERS, STATUS = "cluster-orders.json", "cluster-status.json"


class ClusterOrders:
    """Written by `launcher.control`, read by the scheduler model."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / ORDERS

    def read(self) -> frozenset[int]:
        """The instances that are to be empty. Raises ValueError if the file is damaged."""
        try:
            return frozenset(int(number) for number in json.loads(self._path.read_text())["draining"])
        except FileNotFoundError:
            return frozenset()
        except (KeyError, TypeError) as error:
            raise ValueError(f"{self._path} has no list of instances: {error}") from error

    def write(self, draining: frozenset[int]) -> None:
        _replace(self._path, {"draining": sorted(draining)})


class ClusterStatus:
    """Written by the scheduler model about once a second, read by `launcher.control`."""

    def __init__(self, run_directory: Path) -> None:
        self._path = run_directory / STATUS

    def read(self) -> dict[str, Any]:
        """As `write` was given it. Raises OSError if there is none: the server starts, or has 1 instance."""
        status: dict[str, Any] = json.loads(self._path.read_text())
        return status

    def write(self, status: dict[str, Any]) -> None:
        _replace(self._path, status)


def _replace(path: Path, content: dict[str, Any]) -> None:
    """Raises OSError."""
    written = path.with_suffix(".new")
    written.write_text(json.dumps(content))
    written.replace(path)
