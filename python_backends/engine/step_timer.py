"""How long the device works on a step: from the start of its forward pass until its tokens are chosen. The
time between two steps is the token gap.

Owns the marks of the step before. Times are the host's, or CUDA events, which are read once the device has
passed them. Called by the engines.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable
from typing import Any

Mark = Any  # seconds, or an event
Seconds = tuple[float, float]


class StepTimer:
    def __init__(
        self, mark: Callable[[], Mark] = time.monotonic, between: Callable[[Mark, Mark], float] = operator.sub
    ) -> None:
        """`between` (later, earlier) gives seconds."""
        self._mark = mark
        self._between = between
        self._began: Mark = None
        self._ended: Mark = None

    def begin(self) -> None:
        self._began = self._mark()

    def end(self, ended: Mark = None) -> Callable[[], Seconds]:
        """Ends the step, now or at `ended`. What it returns gives its (busy_s, gap_s) as soon as the device
        has come so far.

        No gap before the first.
        """
        before, began, ended = self._ended, self._began, self._mark() if ended is None else ended
        self._ended = ended
        return lambda: (self._between(ended, began), 0.0 if before is None else self._between(began, before))


def cuda_timer(device: Any) -> StepTimer:
    """By events on the current stream of `device`, a torch.device."""
    import torch

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device))
        return event

    return StepTimer(mark, lambda later, earlier: float(earlier.elapsed_time(later)) / 1000)
