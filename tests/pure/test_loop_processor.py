"""The loop has a processor to itself: shown in a process of its
own, because a place is a thread's for good.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLACED = """
import os, threading
from python_backends.linux.loop_processor import LoopProcessor

def add(go=threading.Event()):
    threading.Thread(target=go.wait, daemon=True).start()

def places():
    of = {int(thread): os.sched_getaffinity(int(thread)) for thread in os.listdir("/proc/self/task")}
    return of.pop(os.getpid()), list(of.values())

everywhere = os.sched_getaffinity(0)
processor = LoopProcessor()
add()
ended = threading.Thread(target=(ends := threading.Event()).wait)
ended.start()
processor.keep()
ends.set()
ended.join()
add()  # it inherits the loop's, and there are as many threads as before
assert places()[1].count(places()[0]) == 1
processor.keep()
own, rest = places()
assert own == {min(everywhere)} and rest == [everywhere - own] * 2, (own, rest)
"""
KEPT_OFF = """
import os, subprocess, sys
from python_backends.linux.loop_processor import keep_off

everywhere = os.sched_getaffinity(0)
assert keep_off() == everywhere
command = [sys.executable, "-c", "import os; print(*os.sched_getaffinity(0))"]
started = subprocess.run(command, capture_output=True, text=True)
inherited = {int(each) for each in started.stdout.split()}
assert inherited == os.sched_getaffinity(0) == everywhere - {min(everywhere)}
"""
TAKEN_AWAY = """
import os, threading
from python_backends.linux.loop_processor import LoopProcessor

processor = LoopProcessor()
processor._all = frozenset({1000, 1001})  # that it had once
ends = threading.Event()
other = threading.Thread(target=ends.wait)
other.start()
before = os.sched_getaffinity(0)
processor.keep()
assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id) == before
ends.set()
"""


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one processor")
@pytest.mark.parametrize(
    "program",
    [PLACED, KEPT_OFF, TAKEN_AWAY],
    ids=["threads that come later too", "what a launcher starts", "not from what is left to all"],
)
def test_every_other_thread_stays_away(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)
