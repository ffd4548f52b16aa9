"""What has happened between two looks at the server, in words, for the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

Status = Mapping[str, Any]  # the scheduler model's; empty: it does not answer
News = tuple[str, str]  # what kind of event, and its text

STATES = {
    "starting": "is being started",
    "ready": "is ready",
    "draining": "is being emptied",
    "lost": "is lost; its answers go on when an instance is ready",
}
JOBS = {
    "queued": "waits",
    "running": "is being trained",
    "succeeded": "has succeeded",
    "failed": "has failed",
    "cancelled": "was cancelled",
}


def happened(before: Status, now: Status) -> Iterator[News]:
    """Yields what differs between two statuses."""
    if bool(before) != bool(now):
        yield "restart", f"the scheduler model {'answers again' if now else 'does not answer'}"
    if before and now:
        yield from _instances(before, now)
        yield from _requests(before, now)
        yield from _jobs(before, now)


def restarted(before: Mapping[str, int], now: Mapping[str, int]) -> Iterator[News]:
    """Yields which processes the launcher has started again. Both: how often, by process."""
    for process, count in now.items():
        if count > before.get(process, 0):
            yield "restart", f"{process} was started again"


def _instances(before: Status, now: Status) -> Iterator[News]:
    known = {each["number"]: each for each in before["instances"]}
    for each in now["instances"]:
        number, old = each["number"], known.pop(each["number"], None)
        if old is None or old["state"] != each["state"]:
            yield "restart", f"instance {number} {STATES.get(each['state'], each['state'])}"
        elif each["evictions"] > old["evictions"]:
            count = each["evictions"] - old["evictions"]
            yield (
                "move",
                f"instance {number}: {_answers(count)} lost a slot for want of memory, and will go on",
            )
    for number in known:
        yield "restart", f"instance {number} has ended"


def _requests(before: Status, now: Status) -> Iterator[News]:
    """Requests that are in another instance now, or in another life of theirs."""
    known = {each["request"]: each for each in before["requests"]}
    moved: Counter[tuple[int, int]] = Counter()
    again: Counter[int] = Counter()
    for each in now["requests"]:
        old = known.get(each["request"])
        if old is None or each["instance"] < 0:
            continue
        if 0 <= old["instance"] != each["instance"]:
            moved[old["instance"], each["instance"]] += 1
        elif old["tokens"] and (each["life"] > old["life"] or (old["instance"] < 0 and old["life"])):
            # its instance was lost: since the last look, or before
            again[each["instance"]] += 1
    for (source, destination), count in moved.items():
        yield "move", f"{_answers(count)} moved from instance {source} to {destination}"
    for instance, count in again.items():
        verb = "goes" if count == 1 else "go"
        yield "move", f"{_answers(count)} {verb} on in instance {instance} from the last token that came"


def _jobs(before: Status, now: Status) -> Iterator[News]:
    known = before["training"] is not None
    old = (before["training"] or {}).get("jobs", {})
    for status, count in ((now["training"] or {}).get("jobs", {})).items():
        # where no job was known, an ended one is old: the scheduler model has only just heard of it
        if count > old.get(status, 0) and (known or status in ("queued", "running")):
            yield "training", f"a fine-tuning job {JOBS.get(status, status)}"


def _answers(count: int) -> str:
    return "one answer" if count == 1 else f"{count} answers"
