"""A thread for an engine that computes in `launch`, as those on a CPU do: here `launch` returns at once.

The loop plans the next step while this thread computes one; the engine lives in this thread from its first breath to its last. A
fault in a step comes out of `collect`. Called by the instance loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from python_backends.engine.protocol import Engine
from python_backends.request import ModelLimits
from python_backends.step import StepOutput, StepPlan


class EngineThread:
    plans_steps = False

    def __init__(self, make: Callable[[], Engine]) -> None:
        """Raises what `make` raises."""
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._outputs: SimpleQueue[ModelLimits | StepOutput | BaseException] = SimpleQueue()
        self._call: Callable[[], None] = _nothing
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

    def on_done(self, call: Callable[[], None]) -> None:
        self._call = call

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
            while (plan := self._plans.get()) is not None:
                engine.launch(plan)
                self._outputs.put(engine.collect())
                self._call()
            engine.close()
        except BaseException as fault:
            self._outputs.put(fault)
            self._call()


def _nothing() -> None: ...
