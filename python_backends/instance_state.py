"""The state file of an instance: what launcher and tokenizer may know of it. Its time of change is the heartbeat."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict
from enum import Enum
from pathlib import Path

from python_backends.request import ModelLimits

DRAINING = "draining"  # a file of this name in the run directory: nobody new is let in


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    DEAD = "dead"


class StateFile:
    def __init__(self, run_directory: Path, number: int) -> None:
        self.path = run_directory / f"instance-{number}.json"

    def write(self, state: State, limits: ModelLimits | None = None) -> None:
        written = self.path.with_suffix(".new")
        written.write_text(json.dumps({"state": state.value, "pid": os.getpid(), "limits": limits and asdict(limits)}))
        written.replace(self.path)

    def beat(self) -> None:
        os.utime(self.path)

    def read(self) -> tuple[State, ModelLimits | None]:
        """DEAD if there is none."""
        try:
            written = json.loads(self.path.read_text())
        except FileNotFoundError:
            return State.DEAD, None
        return State(written["state"]), written["limits"] and ModelLimits(**written["limits"])

    def age_s(self) -> float:
        return time.time() - self.path.stat().st_mtime
