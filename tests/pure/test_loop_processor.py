"""The loop has a processor to itself: shown in a process of its own, because a place is a thread's for good."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from python_backends.launcher.process_group import end_group, start_group
from python_backends.loop_processor import others

ROOT = Path(__file__).resolve().parents[2]
PLACED = """
import os, threading
from python_backends.loop_processor import LoopProcessor

def add(go=threading.Event()):
    threading.Thread(target=go.wait, daemon=True).start()

def places():
    of = {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
    return of.pop(os.getpid()), list(of.values())

everywhere = os.sched_getaffinity(0)
processor = LoopProcessor()
add()
processor.keep()
add()  # it inherits the loop's
assert places()[1].count(places()[0]) == 1
processor.keep()
own, rest = places()
assert own == {min(everywhere)} and rest == [everywhere - own] * 2, (own, rest)
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
def test_every_other_thread_stays_away_also_one_that_comes_later() -> None:
    subprocess.run([sys.executable, "-c", PLACED], check=True, cwd=ROOT)


def test_a_group_is_started_on_the_processors_that_it_may_use_and_its_starter_stays_where_it_was() -> None:
    before = os.sched_getaffinity(0)
    process = start_group(["sleep", "60"], dict(os.environ), others())
    try:
        assert os.sched_getaffinity(process.pid) == others()
        assert os.sched_getaffinity(0) == before
    finally:
        end_group(process, 0)
