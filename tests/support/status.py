"""Statuses as the scheduler model says them, and a stand-in that answers with one on the control socket."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from python_backends.nouns.order import Order
from python_backends.wires.control import ControlEnd

NOWHERE = -1


def request(number: int, **changes: Any) -> dict[str, Any]:
    """One that decodes in instance 0, unless `changes` say otherwise."""
    return {
        "request": number, "id": f"theirs-{number}", "instance": 0, "prompt_tokens": 14, "cached_tokens": 8,
        "tokens": 20, "max_tokens": 256, "predicted_tokens": 60, "predicted_range": [40, 90], "priority": 0,
        "adapter": "", "age_s": 1.5, "phase": "decode", "life": 0, "waits_for": "", "place": 0, **changes,
    }  # fmt: skip


def waiting(number: int, place: int = 1, why: str = "slot", **changes: Any) -> dict[str, Any]:
    said = {"phase": "waits", "waits_for": why, "place": place, "tokens": 0, "predicted_range": None}
    return request(number, **{**said, **changes})


def instance(number: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "number": number, "pid": 0, "host": "here", "state": "ready", "slots_busy": 1, "slots": 4,
        "waiting": 0, "blocks_used": 5, "blocks": 100, "peak_blocks": 9, "evictions": 0, "step_s": 0.02,
        "freeness_tokens": None, **changes,
    }  # fmt: skip


def status(*requests: dict[str, Any], **changes: Any) -> dict[str, Any]:
    reasons = [each["waits_for"] for each in requests if each["waits_for"]]
    return {
        "policy": "", "ready": True, "open": len(requests),
        "waiting": {reason: reasons.count(reason) for reason in reasons}, "queue_wait_s": 2.5,
        "generated_tokens": 1000, "late_tokens": {"decode": 0, "host": 0},
        "gaps": {"bounds_s": [0.001, 0.01], "counts": [0, 0, 0]}, "training": None,
        "instances": [instance()], "migrations": {}, "requests": list(requests), **changes,
    }  # fmt: skip


class Scheduler:
    """A stand-in for the scheduler model, until it is closed. `said` is its status, `orders` what it got."""

    def __init__(self, run_directory: Path, said: dict[str, Any]) -> None:
        self.said = said
        self.orders: list[Order] = []
        self._control = ControlEnd(run_directory, lambda: None)
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._answer)
        self._thread.start()

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._control.close()

    def _answer(self) -> None:
        while not self._ending.wait(0.01):
            for each in self._control.take():
                self.orders.append(each.order)
                named = [one for one in self.said["requests"] if each.order.client_id in ("", one["id"])]
                each.say({"done": {**self.said, "requests": named}})
