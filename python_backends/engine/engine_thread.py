"""A thread for an engine that computes in `launch`, as those on a CPU do: here `launch` returns at once.

The loop plans the next step while this thread computes one; the engine is made, used and closed in this
thread, except for copies of its KV blocks. A fault in a step comes out of `collect`. Called by the instance
loop. Tested in tests/pure/test_instance.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from numpy.typing import NDArray

from python_backends.engine.launched_steps import LaunchedSteps
from python_backends.engine.protocol import Engine, ExportsBlocks, TakesAdapters
from python_backends.nouns.request import Ids
from python_backends.nouns.step import StepOutput, StepPlan


class EngineThread:
    plans_steps = False

    def __init__(self, make: Callable[[], Engine]) -> None:
        """Raises what `make` raises."""
        self._plans: SimpleQueue[StepPlan | None] = SimpleQueue()
        self._outputs: SimpleQueue[Engine | StepOutput | BaseException] = SimpleQueue()
        self._steps = LaunchedSteps()
        self.on_done = self._steps.on_done
        self._thread = threading.Thread(target=self._run, args=[make], name="engine", daemon=True)
        self._thread.start()
        engine = self._next()
        assert not isinstance(engine, StepOutput)
        self.limits = engine.limits
        if isinstance(engine, ExportsBlocks):
            self._exporting: ExportsBlocks = engine
            self.kv_format, self.block_bytes = engine.kv_format, engine.block_bytes
            self.export_blocks, self.import_blocks = engine.export_blocks, self._import_blocks

        if isinstance(engine, TakesAdapters):
            self.read_adapter, self.install_adapter = engine.read_adapter, engine.install_adapter
            self.drop_adapter = engine.drop_adapter

    def launch(self, plan: StepPlan) -> None:
        self._steps.launched()
        self._plans.put(plan)

    def collect(self) -> StepOutput:
        output = self._next()
        assert isinstance(output, StepOutput)
        return output

    def close(self) -> None:
        self._plans.put(None)
        self._thread.join()

    def _import_blocks(self, blocks: Ids, data: memoryview | NDArray[Any]) -> None:
        self._steps.wait()
        self._exporting.import_blocks(blocks, data)

    def _next(self) -> Engine | StepOutput:
        with self._steps.awaited():
            result = self._outputs.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def _run(self, make: Callable[[], Engine]) -> None:
        try:
            engine = make()
            self._outputs.put(engine)
            while (plan := self._plans.get()) is not None:
                engine.launch(plan)
                output = engine.collect()
                self._steps.ended()
                self._outputs.put(output)
            engine.close()
        except BaseException as fault:
            self._steps.signal()
            self._outputs.put(fault)
        finally:
            self._steps.stop()
