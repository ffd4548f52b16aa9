"""A slot scheduler without static slots, for `token_gap/loop.py`: what a step costs if the engine gets the
full state of every slot each time.
"""

from __future__ import annotations

from dataclasses import replace

from python_backends.nouns.step import Admit, StepPlan
from python_backends.scheduling.slot_scheduler import SlotScheduler


class ResendingScheduler(SlotScheduler):
    """For loops that launch no step ahead."""

    def plan(self) -> StepPlan | None:
        self._plans.end_run()
        plan = super().plan()
        return None if plan is None else replace(plan, operations=(*plan.operations, *self._all_slots()))

    def _all_slots(self) -> list[Admit]:
        """Every slot as it is before this step."""
        table, admits = self.slots, []
        for sequence in table.running():
            slot, known = sequence.slot, int(table.known[sequence.slot])
            admits.append(
                Admit(
                    slot=slot,
                    slot_generation=int(table.generations[slot]),
                    sampling=sequence.request.sampling,
                    num_prompt_tokens=sequence.num_prompt_tokens,
                    num_output_tokens=known - sequence.num_prompt_tokens,
                    blocks=sequence.blocks,
                    tokens=table.tokens[slot, :known].copy(),
                    adapter=sequence.request.adapter,
                )
            )
        return admits
