"""The stream that open pages read, and the button that kills an instance."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from front.errors import ProblemError
from front.keys import Keys
from front.live import glance
from front.live.glance import Glance
from tests.support.ensemble import ORIGIN, Ensemble, Front
from tests.support.front_wire import sent
from tests.support.status import Scheduler, instance, request, status, waiting

KILL = "/glance/kill"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "EVERY_S", 0.01)


class Asked:
    """Counts how often it was asked for a status."""

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = said
        self.count = 0

    async def __call__(self) -> dict[str, Any]:
        self.count += 1
        return self.said


def test_all_watchers_get_the_same_and_nothing_is_asked_while_there_is_none() -> None:
    asked = Asked(status(request(1)))
    made = Glance(asked, dict)

    async def watch(number: int) -> list[bytes]:
        async with contextlib.aclosing(made.watch()) as snapshots:
            return [await anext(snapshots) for _ in range(number)]

    async def main() -> None:
        await asyncio.sleep(0.05)
        assert asked.count == 0
        first, second = await asyncio.gather(watch(5), watch(3))
        assert second == first[:3], "one snapshot for both"
        assert len(set(first)) == 5, "each with its time"
        after = asked.count
        assert after <= 6
        await asyncio.sleep(0.05)
        assert asked.count == after, "it goes on although both have left"
        assert len(await watch(2)) == 2

    asyncio.run(main())


def test_who_reads_slowly_gets_the_latest_and_delays_no_other() -> None:
    made = Glance(Asked(status()), dict)

    async def main() -> None:
        async with contextlib.aclosing(made.watch()) as slow, contextlib.aclosing(made.watch()) as quick:
            await asyncio.gather(anext(slow), anext(quick))
            latest = [await anext(quick) for _ in range(5)][-1]
            assert time_of(await anext(slow)) > time_of(latest)

    asyncio.run(main())


def time_of(snapshot: bytes) -> float:
    return float(json.loads(snapshot.removeprefix(b"data: "))["time_s"])


def test_a_status_that_can_not_be_read_ends_the_streams_and_the_next_one_begins_again() -> None:
    asked = Asked({"requests": [{}]})
    made = Glance(asked, dict)

    async def main() -> None:
        for said, fails in (({"requests": [{}]}, True), (status(), False)):
            asked.said = said
            async with contextlib.aclosing(made.watch()) as snapshots:
                with pytest.raises(KeyError) if fails else contextlib.nullcontext():
                    await anext(snapshots)

    asyncio.run(main())


def test_there_is_a_most_of_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glance, "MOST_WATCHERS", 1)
    made = Glance(Asked(status()), dict)

    async def main() -> None:
        async with contextlib.aclosing(made.watch()) as snapshots:
            await anext(snapshots)
            with pytest.raises(ProblemError, match="1 pages are open"):
                made.watch()
        async with contextlib.aclosing(made.watch()) as snapshots:
            await anext(snapshots)

    asyncio.run(main())


def test_streams_end_with_their_process() -> None:
    made = Glance(Asked(status()), dict)

    async def main() -> None:
        first, second, busy = (made.watch() for _ in range(3))
        await asyncio.gather(anext(first), anext(second), anext(busy))
        waits = [asyncio.create_task(anext(each, None)) for each in (first, second)]
        await asyncio.sleep(0)
        made.end()
        assert await asyncio.gather(*waits, anext(busy, None)) == [None, None, None]
        made.end()

    asyncio.run(main())


# --- over HTTP


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path, status(request(1), waiting(2)))
    yield made
    made.close()


@pytest.fixture
def demo(ensemble: Ensemble, model: Path, tmp_path: Path) -> Iterator[Front]:
    made = Front(ensemble, model, tmp_path, Keys(()), demo=True)
    yield made
    made.close()


def test_a_watcher_sees_what_the_scheduler_model_says(front: Front, scheduler: Scheduler) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("GET", "/glance")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    shots = []
    while len(shots) < 3 or shots[-1]["waiting"]:
        line = answer.readline()
        if line.startswith(b"data: "):
            shots.append(json.loads(line[6:]))
            if len(shots) == 3:
                scheduler.said = status(request(1), request(2))
    connection.close()
    assert (shots[0]["answers"], shots[0]["demo"]) == (True, False)
    assert shots[0]["waiting"][0]["waits_for"] == "slot"
    assert [row["request"] for row in shots[-1]["rows"]] == [1, 2]


def test_without_a_scheduler_model_the_page_is_told_so(front: Front) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.request("GET", "/glance")
    line = connection.getresponse().readline()
    connection.close()
    assert not json.loads(line.removeprefix(b"data: "))["answers"]


# --- the button


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that is called like an instance."""
    code = "import setproctitle, time; setproctitle.setproctitle('gapless-instance-0'); print(flush=True);"
    command = [sys.executable, "-c", code + " time.sleep(600)"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as made:
        assert made.stdout is not None
        made.stdout.readline()
        yield made
        made.kill()


def here(pid: int, **changes: Any) -> dict[str, Any]:
    return status(instances=[instance(pid=pid, **{"host": platform.node(), **changes})])


def test_an_instance_is_killed_only_in_a_demo(
    front: Front, scheduler: Scheduler, victim: subprocess.Popen[bytes]
) -> None:
    scheduler.said = here(victim.pid)
    assert sent(front, KILL, {"instance": 0})[0] == 404
    assert victim.poll() is None


def test_the_button_kills_an_instance(
    demo: Front, scheduler: Scheduler, victim: subprocess.Popen[bytes]
) -> None:
    scheduler.said = here(victim.pid)
    status_code, _, body = sent(demo, KILL, {"instance": 0}, origin=demo.url)
    assert (status_code, json.loads(body)) == (200, {"killed": 0})
    assert victim.wait(30) == -9


@pytest.mark.parametrize(
    ("changes", "body", "headers", "expected"),
    [
        ({}, {"instance": 0}, {"origin": ORIGIN}, 403),
        ({}, {"instance": 0}, {"origin": "null"}, 403),
        ({}, {"instance": 1}, {}, 404),
        ({}, {"instance": "0"}, {}, 400),
        ({}, {"pid": 1}, {}, 400),
        ({"host": "another"}, {"instance": 0}, {}, 404),
        ({"state": "lost"}, {"instance": 0}, {}, 404),
        ({"number": 1}, {"instance": 1}, {}, 404),  # the process is called otherwise
    ],
)
def test_nothing_else_is_killed(
    demo: Front,
    scheduler: Scheduler,
    victim: subprocess.Popen[bytes],
    changes: dict[str, Any],
    body: Any,
    headers: dict[str, str],
    expected: int,
) -> None:
    scheduler.said = here(victim.pid, **changes)
    assert sent(demo, KILL, body, **headers)[0] == expected
    assert victim.poll() is None
