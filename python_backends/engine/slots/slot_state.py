"""What the device holds of each slot: last token, counts, limits, stop ids, its row of the block table, and
how its tokens are chosen.

Owns these tensors, the last kind in `SamplingState`. What the slot operations of a plan change is gathered
and written at once. After sampling, tokens are appended and ends are detected here, on the device, for all
rows at once: the next step's inputs are this step's outputs. A row that ended stays as it is, so a step
launched before its end was read does no harm. Called by the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from python_backends.engine.slots.appending import PlainRun, appended
from python_backends.engine.slots.columns import Column
from python_backends.engine.slots.history import NO_TOKEN
from python_backends.engine.slots.numbers import fail_others
from python_backends.engine.slots.sampler import GREEDY, SamplingRows, SlotDraws, sample
from python_backends.engine.slots.sampling_state import Batch, SamplingState
from python_backends.engine.slots.slot_writes import SlotWrites, Target
from python_backends.guides.guides import Guides
from python_backends.nouns.request import Finish, Ids, ModelLimits
from python_backends.nouns.step import Admit, Grow, Release, SlotOperation, StepPlan


class Choice(Enum):
    """What a step asks of the sampler, if nothing else is asked: the host need not know the tokens."""

    GREEDY = auto()
    DRAWN = auto()  # by temperature, top_k, top_p and min_p, where kernels run


class SlotState:
    def __init__(
        self,
        limits: ModelLimits,
        device: torch.device,
        kernels: bool = False,
        most_stop_ids: int | None = None,
    ) -> None:
        """`kernels`: ours run there, and rows that draw need ask nothing on the host.

        `most_stop_ids`: no slot will have more of them, and their tensor is always the same one; None: it
        grows with them.
        """
        # the last one is the dead slot
        slots, self._limits, self.device = limits.num_slots + 1, limits, device
        max_blocks = -(-limits.max_model_tokens // limits.block_tokens)
        self.table = torch.zeros((slots, max_blocks), dtype=torch.int64, device=device)
        self._counts = torch.zeros((slots, len(Column)), dtype=torch.int64, device=device)
        self.table[-1] = limits.num_blocks
        self._counts[-1, Column.LENGTH] = self._counts[-1, Column.ENDED] = 1
        self._most_stop_ids = most_stop_ids
        # [slots, most stop ids]
        self.stop_ids = torch.full((slots, most_stop_ids or 1), NO_TOKEN, dtype=torch.int64, device=device)
        self._sampling = SamplingState(limits, device, kernels)
        self._writes = SlotWrites(kernels)
        self._kernels = kernels
        self._run: PlainRun | None = None
        self._appended = -1  # run of the last plain step

    def follow(self, guides: Guides) -> None:
        """Sequences with guides may be admitted from now on."""
        self._sampling.guided.follow(guides)

    @property
    def dead_slot(self) -> int:
        """Pads a batch of fixed shape: it has ended, and its one token is read from and written to a block of
        its own, after all others.
        """
        return self._limits.num_slots

    def choice(self, slots: Ids) -> Choice | None:
        """How the tokens of all `slots` are chosen; None: some need more than that, or ask the host."""
        if not self._sampling.is_asked(slots):
            return Choice.GREEDY
        return Choice.DRAWN if self._kernels and self._sampling.only_draws(slots) else None

    def choose(self, logits: Tensor, slots: Tensor, choice: Choice) -> Tensor:
        """Chooses the next tokens of `slots` [rows] for `logits` [rows, vocabulary] and appends them; as
        `append`.
        """
        draws = SlotDraws(slots, self._counts, self._sampling.shares) if choice is Choice.DRAWN else None
        rows = GREEDY if draws is None else SamplingRows(draws)
        tokens = sample(logits, rows)
        return fail_others(self.append_greedy(slots, tokens), logits, tokens, rows)

    @property
    def last_tokens(self) -> NDArray[np.int64]:
        """[slots] On a CPU."""
        self.book_run()
        return self._counts.numpy()[:, Column.LAST_TOKEN]

    def apply(self, operations: Sequence[SlotOperation]) -> None:
        """Applies the operations of one plan, in order. If the plan releases a slot and admits another
        sequence to it, only the last operation takes effect.
        """
        self._gather_blocks(operations)
        self._gather_lives(operations)
        self._writes.write(self.table, self._counts, self.stop_ids, self._sampling.shares)

    def _gather_blocks(self, operations: Sequence[SlotOperation]) -> None:
        blocks: dict[int, list[tuple[int, Ids]]] = {}
        for operation in operations:
            if isinstance(operation, Grow):
                blocks.setdefault(operation.slot, []).append((operation.first, operation.blocks))
            else:
                blocks[operation.slot] = [(0, operation.blocks)] if isinstance(operation, Admit) else []
        self._write_table(blocks)

    def _gather_lives(self, operations: Sequence[SlotOperation]) -> None:
        lives = {operation.slot: operation for operation in operations if not isinstance(operation, Grow)}
        if lives:
            self.book_run()
        self._admit([life for life in lives.values() if isinstance(life, Admit)])
        self._release([slot for slot, life in lives.items() if isinstance(life, Release)])

    def decode_inputs(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Last tokens and their positions, each [rows], of `slots` [rows].

        A row that ended gives its last token again and again: what a step launched before the end was read
        writes is the KV that belongs there, in blocks that are still its own.
        """
        self.book_run()
        if self._kernels:
            tokens, positions = torch.empty_like(slots), torch.empty_like(slots)
            self.fill_decode_inputs(slots, tokens, positions, len(slots))
            return tokens, positions
        counts = self._counts[slots]
        return counts[:, Column.LAST_TOKEN], counts[:, Column.LENGTH] - 1

    def fill_decode_inputs(self, slots: Tensor, tokens: Tensor, positions: Tensor, count: int) -> None:
        """The same where kernels run, for the first `count` of `slots` [rows], into the first of `tokens` and
        `positions` [rows].
        """
        from python_backends.engine.slots.token_kernels import last_tokens  # brings Triton's language

        last_tokens(self._counts, slots, tokens, positions, count)

    def sampling_rows(
        self, slots: Tensor, plan: StepPlan, order: NDArray[np.intp] | None = None
    ) -> SamplingRows:
        """The parameters of the rows that sample, in the order of `slots` [sampled]; only those that some row
        needs.

        Row i is the `order[i]`-th span of `plan` that samples; without `order` the i-th.
        """
        host = plan.slots[plan.samples]
        host = host if order is None else host[order]
        if not self._sampling.is_asked(host):
            return GREEDY
        self.book_run()
        lengths = (plan.starts + plan.lengths)[plan.samples]
        lengths = lengths if order is None else lengths[order]
        return self._sampling.rows(Batch(slots, host, lengths, self._counts, self.stop_ids))

    def append(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """Appends `tokens` [sampled] to `slots` and ends those that are done. [2, sampled] tokens and
        finishes; 0, RUNNING where a row had ended.
        """
        self.book_run()
        history = self._sampling.history
        if history.is_kept:
            history.append(slots, self._counts[slots, Column.LENGTH], tokens)
        result = self.append_greedy(slots, tokens)
        self._sampling.guided.append(result)
        return result

    def append_greedy(self, slots: Tensor, tokens: Tensor) -> Tensor:
        """The same for slots none of which looks back."""
        if self._kernels:
            from python_backends.engine.slots.token_kernels import append  # brings Triton's language

            out = torch.empty((2, len(slots)), dtype=torch.int64, device=self.device)
            append(self._counts, self.stop_ids, slots, tokens, out)
            return out
        tensors = (self._counts, self.stop_ids, slots, tokens)
        # by numpy, in the same memory: a small operation of torch takes as long as ten of these
        if self.device.type == "cpu":
            return torch.as_tensor(np.stack(appended(*(tensor.numpy() for tensor in tensors))))
        return torch.stack(appended(*tensors))

    def append_plain(
        self, number: int, slots: Tensor, tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same on a CPU for rows of which nothing is asked. Steps of one run,
        by its `number`, wait to be booked together.
        """
        run = self._run
        if run is not None and run.takes(number, tokens):
            run.num_steps += 1
            run.tokens = tokens
            return tokens, run.running
        self.book_run()
        arrays = (self._counts.numpy(), self.stop_ids.numpy(), slots.numpy(), tokens)
        result: tuple[NDArray[np.int64], NDArray[np.int64]] = appended(*arrays)
        if number == self._appended:
            self._run = self._run_of(number, slots)
        self._appended = number
        return result

    def _run_of(self, number: int, slots: Tensor) -> PlainRun | None:
        counts, stop_ids = self._counts.numpy()[slots.numpy()], self.stop_ids.numpy()[slots.numpy()]
        if counts[:, Column.ENDED].any():
            return None
        left = int((counts[:, Column.MAX_LENGTH] - counts[:, Column.LENGTH]).min()) - 1
        return PlainRun(
            number,
            slots,
            stop_ids if (stop_ids != NO_TOKEN).any() else None,
            left,
            np.full(len(slots), int(Finish.RUNNING)),
        )

    def book_run(self) -> None:
        """Books plain steps that wait for it, as all that needs the counts does first."""
        run, self._run = self._run, None
        if run is not None and run.tokens is not None:
            counts, slots = self._counts.numpy(), run.slots.numpy()
            counts[slots, Column.LAST_TOKEN] = run.tokens
            counts[slots, Column.LENGTH : Column.OUTPUTS + 1] += run.num_steps

    def _admit(self, admits: list[Admit]) -> None:
        if not admits:
            return
        slots = np.array([admit.slot for admit in admits])[:, None]
        self._writes.add(
            Target.COUNTS,
            slots,
            np.arange(len(Column)),
            np.array([self._row(admit) for admit in admits], np.int64),
        )
        self._write_stop_ids(slots, [self._known_ids(admit.sampling.stop_ids) for admit in admits])
        self._sampling.admit(slots, admits, self._writes)

    def _row(self, admit: Admit) -> list[int]:
        sampling, outputs = admit.sampling, admit.num_output_tokens
        length = admit.num_prompt_tokens + outputs
        max_length = self._limits.most_tokens(admit.num_prompt_tokens, sampling.max_tokens)
        top_k = min(sampling.top_k, self._limits.vocab_size)
        last_token = int(admit.tokens[-1]) if len(admit.tokens) else 0
        seed = _as_int64(sampling.seed)
        return [last_token, length, outputs, max_length, sampling.min_tokens, seed, top_k, 0]

    def _known_ids(self, stop_ids: tuple[int, ...]) -> list[int]:
        return [stop for stop in stop_ids if 0 <= stop < self._limits.vocab_size]

    def _write_stop_ids(self, slots: NDArray[np.int64], stop_ids: list[list[int]]) -> None:
        width = max(map(len, stop_ids))
        missing = width - self.stop_ids.shape[1]
        if missing > 0 and self._most_stop_ids is not None:
            raise ValueError(
                f"{width} stop ids of one request: the engine was made for at most {self._most_stop_ids}"
            )
        if missing > 0:
            self.stop_ids = functional.pad(self.stop_ids, (0, missing), value=NO_TOKEN)
        width = self.stop_ids.shape[1]
        rows = [ids + [NO_TOKEN] * (width - len(ids)) for ids in stop_ids]
        self._writes.add(Target.STOP_IDS, slots, np.arange(width), np.array(rows, np.int64))

    def _release(self, slots: list[int]) -> None:
        if slots:
            self._sampling.history.release(slots)
            self._sampling.guided.release(slots)
            self._writes.add(Target.COUNTS, np.array(slots), np.array(Column.ENDED), np.array(1))

    def _write_table(self, blocks: dict[int, list[tuple[int, Ids]]]) -> None:
        entries = [
            np.stack([np.full(len(run), slot), first + np.arange(len(run)), run])
            for slot, runs in blocks.items()
            for first, run in runs
        ]
        if entries:
            self._writes.add(Target.TABLE, *np.concatenate(entries, axis=1))


def _as_int64(seed: int) -> int:
    """The low 64 bits of a seed of any size, with a sign."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)
