"""Sets when a thread gets a processor that other threads also need, and for how long.

A thread that passes a request on works for a tenth of a millisecond and sleeps again; an engine that computes
on a CPU never sleeps. Since Linux 6.12 a thread that asks for a short slice may interrupt one with a longer
slice at once, instead of waiting up to 3 ms at every process between client and engine. Other kernels ignore
this.

If an engine's threads yield their processor while they wait for each other (many times in each step), threads
with short slices need not interrupt them: they run at these times, and no step waits for an interrupted
thread.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

SHORT_NS = 100_000  # the least that the kernel takes
USUAL_NS = 0  # the kernel's own default
LOW = 15  # nice value: 3 % of a processor that another thread would have alone

# the number of sched_setattr(2), for which there is no function in C libraries
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
# size, policy, flags, nice, priority, runtime, deadline, period, least and most utilisation
_LAYOUT = "IIQiIQQQII"


def take_short_turns(interrupting: bool) -> None:
    """Gives this thread, and all threads and processes that it starts from now on, short slices. With
    `interrupting` they may interrupt the thread that has the processor.

    A thread that does not interrupt gets a processor when another one yields it, or with the kernel's next
    tick: 1 to 4 ms.
    """
    _set_attributes(os.SCHED_OTHER if interrupting else os.SCHED_BATCH, SHORT_NS)


def take_usual_turns() -> None:
    """Gives this thread, and all that it starts from now on, the usual policy and slice. Keeps the nice
    value.
    """
    _set_attributes(os.SCHED_OTHER, USUAL_NS)


def stand_back() -> None:
    """Makes this thread, and all that it starts from now on, interrupt no other thread (SCHED_BATCH) and get
    little of a processor that others need.
    """
    os.setpriority(os.PRIO_PROCESS, 0, max(LOW, os.getpriority(os.PRIO_PROCESS, 0)))
    _set_attributes(os.SCHED_BATCH, USUAL_NS)


def _set_attributes(policy: int, nanoseconds: int) -> None:
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is None:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    attributes = struct.pack(_LAYOUT, struct.calcsize(_LAYOUT), policy, 0, nice, 0, nanoseconds, 0, 0, 0, 0)
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)
