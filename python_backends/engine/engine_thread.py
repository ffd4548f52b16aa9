"""A thread for an engine that computes in `launch`, as those on a CPU do: here `launch` returns at once.

The loop plans the next step while this thread computes one; the engine lives in this thread from its first breath to its last. A
fault in a step comes out of `collect`. Called by the instance loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from queue import SimpleQueue

from python_backends.engine.protocol import Engine
from python_backends.request import ModelLimits
from python_backends.step import StepOutput, StepPlan


class EngineThread:
    def __init__(self, make: Callable[[], Engine]) -> None:
        """Raises what `make` raises."""
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._outputs: SimpleQueue[ModelLimits | StepOutput | BaseException] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, args=[make], name="engine", daemon=True)
        self._thread.start()
        limits = self._next()
        assert isinstance(limits, ModelLimits)
        self.limits = limits

    def launch(self, plan: StepPlan) -> None:
        self._plans.put(plan)

    def collect(self) -> StepOutput:
        output = self._next()
        assert isinstance(output, StepOutput)
        return output

    def close(self) -> None:
        self._plans.put(None)
        self._thread.join()

    def _next(self) -> ModelLimits | StepOutput:
        result = self._outputs.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self, make: Callable[[], Engine]) -> None:
        try:
            engine = make()
            self._outputs.put(engine.limits)
            ended_s = time.monotonic()
            while (plan := self._plans.get()) is not None:
                started_s = time.monotonic()
                engine.launch(plan)
                output = engine.collect()
                gap_s, ended_s = started_s - ended_s, time.monotonic()
                self._outputs.put(replace(output, busy_s=ended_s - started_s, gap_s=gap_s))
            engine.close()
        except BaseException as fault:
            self._outputs.put(fault)
