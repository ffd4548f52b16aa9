"""An engine that records its plans and outputs, for `gpu/steps.py` and `token_gap/loop.py`."""

from __future__ import annotations

from dataclasses import dataclass, field

from python_backends.engine.protocol import Engine
from python_backends.nouns.request import ModelLimits
from python_backends.nouns.step import StepOutput, StepPlan


@dataclass(slots=True)
class RecordedEngine:
    engine: Engine
    limits: ModelLimits
    plans_steps: bool = False
    plans: list[StepPlan] = field(default_factory=list)
    outputs: list[StepOutput] = field(default_factory=list)

    @property
    def steps(self) -> list[tuple[StepPlan, StepOutput]]:
        """The plans and outputs of the steps that have been read."""
        return list(zip(self.plans, self.outputs, strict=False))

    def launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self.engine.launch(plan)

    def collect(self) -> StepOutput:
        output = self.engine.collect()
        self.outputs.append(output)
        return output

    def close(self) -> None:
        self.engine.close()
