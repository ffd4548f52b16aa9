"""What the instance loop asks of an engine. The loop is written once, against this; `kinds` names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepOutput, StepPlan


class Engine(Protocol):
    """Runs step plans in the order of their launch.

    `launch` takes one plan and may return before its tokens are there; `collect` waits for the oldest
    launched step and gives its output. An engine keeps, per slot, everything but the waiting order: last
    token, position, block table row, sampling. A fault in either call means that the engine is dead: the
    instance process ends and is started again.

    An engine that `plans_steps` itself takes operations only: its plans have no spans, its own blocks are
    counted by ours and no more, `collect` gives a GatheredOutput soon, if only an empty one, and a slot is
    free when that says so.
    """

    limits: ModelLimits
    plans_steps: bool

    def launch(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepOutput: ...

    def close(self) -> None: ...


@runtime_checkable
class Announcing(Protocol):
    """An engine that can tell when a launched step is done, unless a thread
    is blocked in `launch` or `collect` for it.
    """

    def on_done(self, tell: Callable[[], None]) -> None:
        """`tell` is called by some thread."""
