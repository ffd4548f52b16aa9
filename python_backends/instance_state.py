"""The state file of an instance: what launcher and tokenizer may know of it. Its time of change is the heartbeat."""

from __future__ import annotations

import json
import os
import time
from enum import Enum
from pathlib import Path
from typing import Any

from python_backends.request import ModelLimits

# files in the run directory by which the launcher speaks to the Triton models
DRAINING = "draining"  # nobody new is let in
CLOSING = "closing"  # whatever is still open ends now
KEY = "key"  # only who can read it may speak for another of our processes


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class StateFile:
    def __init__(self, run_directory: Path, number: int) -> None:
        self.path = run_directory / f"instance-{number}.json"

    def write_starting(self) -> None:
        """What an earlier life could take stays readable: the same settings give the same limits."""
        self.write(State.STARTING, self.read()[1])

    def write(self, state: State, limits: ModelLimits | None = None) -> None:
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({"state": state.value, "pid": os.getpid(), "limits": limits and limits.as_dict()}))
        written.replace(self.path)
        self.beat()

    def beat(self) -> None:
        now_ns = time.monotonic_ns()  # the wall clock jumps, after a suspend for one
        os.utime(self.path, ns=(now_ns, now_ns))

    def read(self) -> tuple[State, ModelLimits | None]:
        """DEAD if there is none."""
        try:
            written = json.loads(self.path.read_text())
        except FileNotFoundError:
            return State.DEAD, None
        return State(written["state"]), written["limits"] and _limits(written["limits"])

    def age_s(self) -> float:
        return (time.monotonic_ns() - self.path.stat().st_mtime_ns) / 1e9


def _limits(written: dict[str, Any]) -> ModelLimits:
    """JSON knows no tuples."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in written.items()}
    return ModelLimits(**values)
