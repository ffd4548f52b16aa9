"""What the page shows at one moment: made of the scheduler model's status and the launcher's counts. It has
no texts of requests and no names that clients gave them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from front.live.events import News, Status, happened, restarted
from front.live.rows import Rows

MOST_EVENTS = 20
OF_ROWS = (
    "request", "phase", "tokens", "max_tokens", "predicted_tokens", "predicted_range", "prompt_tokens",
    "cached_tokens", "age_s", "priority", "adapter", "life",
)  # fmt: skip
OF_WAITING = (
    "request",
    "waits_for",
    "place",
    "instance",
    "prompt_tokens",
    "predicted_tokens",
    "age_s",
    "life",
)
OF_INSTANCES = ("number", "state", "slots", "slots_busy", "waiting", "blocks", "blocks_used", "peak_blocks")


class Event(Struct):
    number: int  # events have numbers from 1 on
    time_s: float  # in Unix time
    kind: str  # restart, move or training
    text: str


class Snapshot(Struct):
    """Times are seconds. `None`: the look before is missing, or too old."""

    time_s: float  # in Unix time
    demo: bool  # whether a page may kill an instance
    answers: bool  # whether the scheduler model does
    open: int  # requests; `rows` and `waiting` have the first of them
    waits: dict[str, int]  # requests without a slot, by the reason
    queue_wait_s: float  # until the last request that waits is expected to have a slot
    tokens_per_s: float | None
    gap_s: float | None  # the longest idle time of a device between two steps, as a bound; 0: there was none
    late: dict[str, int] | None  # tokens that came late since the last snapshot, by cause
    step_s: float  # the longest of the instances
    instances: list[dict[str, Any]]
    rows: list[dict[str, Any]]  # requests that have a slot
    waiting: list[dict[str, Any]]  # the first of those that wait
    training: dict[str, Any] | None
    events: list[Event]  # the latest


class Snapshots:
    """Makes one after the other, and keeps the latest events."""

    def __init__(self, demo: bool = False, clock: Callable[[], float] = time.time) -> None:
        """`demo`: pages may kill an instance. `clock`: Unix time."""
        self._demo = demo
        self._clock = clock
        self._rows = Rows()
        self._events: deque[Event] = deque(maxlen=MOST_EVENTS)
        self._num_events = 0
        self._before: Status | None = None
        self._restarts: Mapping[str, int] | None = None
        self._time_s = 0.0

    def forget(self) -> None:
        """A look follows that is not compared with the last one."""
        self._before = self._restarts = None

    def next(self, status: Status, restarts: Mapping[str, int]) -> Snapshot:
        """`status` is the scheduler model's; empty if there is none. `restarts`: by process."""
        now_s, before = self._clock(), self._before
        news = [] if before is None else list(happened(before, status))
        if self._restarts is not None:
            news += restarted(self._restarts, restarts)
        self._add(news, now_s)
        made = self._made(status, before or {}, now_s)
        self._before, self._restarts, self._time_s = status, dict(restarts), now_s
        return made

    def _add(self, news: list[News], now_s: float) -> None:
        for kind, text in news:
            self._num_events += 1
            self._events.append(Event(self._num_events, round(now_s, 3), kind, text))

    def _made(self, status: Status, before: Status, now_s: float) -> Snapshot:
        requests, instances = status.get("requests", []), status.get("instances", [])
        rows = self._rows.of(requests, {each["number"]: each["slots"] for each in instances})
        is_pair = bool(status and before)
        return Snapshot(
            time_s=round(now_s, 3),
            demo=self._demo,
            answers=bool(status),
            open=status.get("open", 0),
            waits=status.get("waiting", {}),
            queue_wait_s=status.get("queue_wait_s", 0.0),
            tokens_per_s=_rate(before, status, now_s - self._time_s) if is_pair else None,
            gap_s=_longest_gap_s(before["gaps"], status["gaps"]) if is_pair else None,
            late=_more(before["late_tokens"], status["late_tokens"]) if is_pair else None,
            step_s=max((each["step_s"] for each in instances), default=0.0),
            instances=[{name: each[name] for name in OF_INSTANCES} for each in instances],
            rows=[
                {"instance": each["instance"], "row": rows[each["request"]], **_some(each, OF_ROWS)}
                for each in requests
                if each["request"] in rows
            ],
            waiting=[_some(each, OF_WAITING) for each in requests if each["place"]],
            training=status.get("training"),
            events=list(self._events),
        )


def _some(each: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: each[name] for name in names}


def _rate(before: Status, now: Status, seconds: float) -> float | None:
    """Tokens a second. None: the counting process is another one now."""
    count = now["generated_tokens"] - before["generated_tokens"]
    return round(count / seconds, 1) if seconds > 0 and count >= 0 else None


def _longest_gap_s(before: Mapping[str, Any], now: Mapping[str, Any]) -> float:
    """The bound that the longest of the gaps meanwhile is below; of those beyond all bounds, the last one."""
    bounds = [*now["bounds_s"], now["bounds_s"][-1]]
    counts = zip(bounds, before["counts"], now["counts"], strict=True)
    return max((bound for bound, old, new in counts if new > old), default=0.0)


def _more(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {
        cause: count - before.get(cause, 0) for cause, count in now.items() if count > before.get(cause, 0)
    }
