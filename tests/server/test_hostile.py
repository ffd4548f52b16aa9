"""Hundreds of hostile requests while eight streams are open, four over HTTP and four over gRPC.

No text changes, no process dies, no slot is kept. `test_fuzz` draws most of its requests right or nearly
right; here none is meant well, and inner models, paths and bare sockets are asked as well.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.server.doors import GrpcDoor
from tests.support.server.expected import PROMPT, Expected
from tests.support.server.fuzzing import NUM_CONTROLS, Control, Report, pids_of
from tests.support.server.hostile import KINDS, Target, draw
from tests.support.server.serving import Gapless, wait_for

NUM_ATTACKERS = 12
COUNTS = {
    "drawn": 110,
    "inner": 80,
    "values": 60,
    "texts": 40,
    "fields": 30,
    "elsewhere": 30,
    "sockets": 40,
    "leaving": 30,
    "guides": 40,
}


@contextmanager
def controls_of(gapless: Gapless) -> Iterator[Report]:
    """Eight streams that ask the same again and again meanwhile, and what is wrong with their answers."""
    report, done = Report(), threading.Event()
    controls = [Control(gapless, number) for number in range(NUM_CONTROLS)]
    threads = [threading.Thread(target=control.keep_asking, args=[done, report]) for control in controls]
    for thread in threads:
        thread.start()
    try:
        yield report
    finally:
        done.set()
        for thread in threads:
            thread.join()


def attack(gapless: Gapless, kinds: list[str]) -> list[str]:
    """Fires one attack of each of `kinds`, many at a time; what was wrong with their outcomes."""
    numbered, lock, problems = iter(list(enumerate(kinds))), threading.Lock(), []

    def keep_attacking() -> None:
        with GrpcDoor(gapless.grpc_port) as door:
            while True:
                with lock:
                    number, kind = next(numbered, (-1, ""))
                if number < 0:
                    return
                made = draw(kind, random.Random(f"{kind} {number}"))
                try:
                    outcome = made.fire(Target(gapless.http_port, door))
                    wrong = made.verdict(outcome)
                except Exception as error:
                    outcome, wrong = None, f"{type(error).__name__}: {error}"
                if wrong:
                    with lock:
                        problems.append(f"request {number}, {made}: {wrong}; {str(outcome)[:300]}")

    attackers = [threading.Thread(target=keep_attacking) for _ in range(NUM_ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    for attacker in attackers:
        attacker.join()
    return problems


def test_every_kind_is_sent() -> None:
    assert set(COUNTS) == set(KINDS)


def test_hostile_requests_harm_nobody(gapless: Gapless, expected: Expected) -> None:
    shots = [kind for kind, count in COUNTS.items() for _ in range(count)]
    random.Random(1).shuffle(shots)
    wait_for(lambda: gapless.generate(text_input=PROMPT, max_tokens=4).get("text_output"), 60)
    before, losses = pids_of(gapless), gapless.metrics()["gapless_instance_losses_total"]
    with controls_of(gapless) as report:
        problems = attack(gapless, shots)
    assert problems == [], "\n".join([f"{len(problems)} problems", *problems[:10]])
    assert report.problems == []
    assert report.num_control_answers >= NUM_CONTROLS
    assert pids_of(gapless) == before, gapless.log[-2000:]
    wait_for(gapless.is_idle, 60)
    assert gapless.metrics()["gapless_instance_losses_total"] == losses
    answer = gapless.generate(text_input=PROMPT, max_tokens=20)
    assert answer["text_output"] == expected.text(PROMPT, max_tokens=20)
