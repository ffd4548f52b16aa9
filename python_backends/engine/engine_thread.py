"""A thread for an engine that computes in `launch`, as those on a CPU do: here `launch` returns at once.

The loop plans the next step while this thread computes one; the engine lives in this thread from its first
breath to its last. A fault in a step comes out of `collect`. Called by the instance loop.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from python_backends.engine.protocol import Engine
from python_backends.engine.step_end import StepEnd
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepOutput, StepPlan


class EngineThread:
    plans_steps = False

    def __init__(self, make: Callable[[], Engine]) -> None:
        """Raises what `make` raises."""
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._outputs: SimpleQueue[ModelLimits | StepOutput | BaseException] = SimpleQueue()
        self._step_end = StepEnd()
        self.on_done = self._step_end.on_done
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
        with self._step_end.awaited():
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
                output = engine.collect()
                self._step_end.came()
                self._outputs.put(output)
            engine.close()
        except BaseException as fault:
            self._step_end.came()
            self._outputs.put(fault)
