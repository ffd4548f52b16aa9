"""How each slot's tokens are chosen: its parameters on the device, and what the host must know to leave work
out.

Owns the fractions (`shares`), biases, bad words and token history of all slots; counts and stop ids belong
to the slot state, which calls this. In the steps of a run nothing comes from the host; what no row of a step
asks for is not done in it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.device import to_device
from python_backends.engine.slots.allowed import Allowed
from python_backends.engine.slots.biases import Biases, SlotBiases
from python_backends.engine.slots.columns import Column, Share
from python_backends.engine.slots.guided import GuidedSlots
from python_backends.engine.slots.history import NO_TOKEN, BadWords, TokenHistory
from python_backends.engine.slots.log_probs import LogProbRows
from python_backends.engine.slots.penalties import Penalties
from python_backends.engine.slots.row_index import RowIndex
from python_backends.engine.slots.sampler import Draws, Restrictions, SamplingRows, SlotDraws
from python_backends.engine.slots.slot_writes import SlotWrites, Target
from python_backends.nouns.request import Ids, ModelLimits, Sampling
from python_backends.nouns.step import Admit

LEAST_POWER = 8  # penalties of up to 256 tokens a row are quick enough to be computed together


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The rows that sample in one step."""

    slots: Tensor  # [sampled]
    host: Ids  # [sampled] the same
    lengths: Ids  # [sampled] tokens so far, no less than those of the device
    table: Tensor  # [slots, columns] of the slot state
    stop_ids: Tensor  # [slots, most]

    def counts(self, column: Column) -> Tensor:  # [sampled]
        return self.table[self.slots, column]


class SamplingState:
    def __init__(self, limits: ModelLimits, device: torch.device, kernels: bool) -> None:
        self._limits, self._kernels = limits, kernels
        shape = (limits.num_slots + 1, len(Share))  # the last one is the dead slot, which is greedy
        self.shares = torch.ones(shape, dtype=torch.float32, device=device)
        self.shares[-1] = 0.0
        self._bad_words = BadWords(limits, device)
        self._biases = SlotBiases(limits, device)
        self.history = TokenHistory(limits, device)
        self.guided = GuidedSlots(limits, device)
        self._drawing, self._worded, self._scored = (RowIndex(device) for _ in range(3))
        self._biased, self._guided = RowIndex(device), RowIndex(device)
        # by the power of two above the rows' lengths
        self._penalized: defaultdict[int, RowIndex] = defaultdict(lambda: RowIndex(device))
        self._asked = _Asked(limits.num_slots)

    def admit(self, slots: NDArray[np.int64], admits: list[Admit], writes: SlotWrites) -> None:
        """`slots` [admits, 1] are their slots. What is to be written for them is added to `writes`."""
        shares = np.array([_shares(admit.sampling) for admit in admits], np.float32)
        writes.add(Target.SHARES, slots, np.arange(len(Share)), shares)
        self.history.admit(admits)
        self.guided.admit(admits)
        if any(admit.sampling.bad_words for admit in admits):
            self._bad_words.admit(
                to_device(slots[:, 0].copy(), self.shares.device),
                [admit.sampling.bad_words for admit in admits],
            )
        if any(admit.sampling.logit_bias for admit in admits):
            self._biases.admit(
                to_device(slots[:, 0].copy(), self.shares.device),
                [admit.sampling.logit_bias for admit in admits],
            )
        for admit in admits:
            self._asked.admit(admit, self._limits.max_model_tokens)

    def is_asked(self, host: Ids) -> bool:
        """Whether any of the slots `host` needs more than the most probable token."""
        return bool(self._asked.anything[host].any())

    def only_draws(self, host: Ids) -> bool:
        """Whether none of the slots `host` needs more than a draw."""
        return not self._asked.beyond_draws[host].any()

    def rows(self, batch: Batch) -> SamplingRows:
        """The parameters of the rows of `batch`; only those that some row needs."""
        asked, host = self._asked, batch.host
        return SamplingRows(
            draws=self._draws(batch, np.flatnonzero(asked.draws[host])),
            banned=self._banned(batch),
            penalties=self._penalties(batch, np.flatnonzero(asked.penalizes[host])),
            allowed=self._allowed(batch, np.flatnonzero(asked.guided[host])),
            asks=self._log_probs(batch, np.flatnonzero(asked.log_probs[host])),
            biases=self._biases_of(batch, np.flatnonzero(asked.biases[host])),
        )

    def _draws(self, batch: Batch, host_rows: NDArray[np.int64]) -> Draws | SlotDraws | None:
        if not len(host_rows):
            return None
        if self._kernels:
            return SlotDraws(batch.slots, batch.table, self.shares)
        rows = self._drawing.of(host_rows)
        slots = batch.slots[rows]
        shares, counts = self.shares[slots], batch.table[slots]
        restrictions = None
        if self._asked.restricts[batch.host[host_rows]].any():
            restrictions = Restrictions(
                counts[:, Column.TOP_K], shares[:, Share.TOP_P], shares[:, Share.MIN_P]
            )
        return Draws(
            rows,
            shares[:, Share.TEMPERATURE],
            counts[:, Column.SEED],
            counts[:, Column.OUTPUTS],
            restrictions,
        )

    def _banned(self, batch: Batch) -> Tensor | None:
        """[sampled, most] stop ids before min_tokens, and what would complete a bad word."""
        banned = []
        if (batch.lengths < self._asked.stop_from[batch.host]).any():
            early = batch.counts(Column.OUTPUTS) < batch.counts(Column.MIN_TOKENS)
            banned.append(torch.where(early[:, None], batch.stop_ids[batch.slots], NO_TOKEN))
        worded = np.flatnonzero(self._asked.bad_words[batch.host])
        if len(worded):
            banned.append(self._completing(batch, self._worded.of(worded)))
        return torch.cat(banned, 1) if banned else None

    def _completing(self, batch: Batch, rows: Tensor) -> Tensor:
        slots = batch.slots[rows]
        ids = self._bad_words.completing(slots, self.history, batch.table[slots, Column.LENGTH])
        return ids.new_full((len(batch.slots), ids.shape[1]), NO_TOKEN).index_copy_(0, rows, ids)

    def _penalties(self, batch: Batch, host_rows: NDArray[np.int64]) -> tuple[Penalties, ...]:
        """In groups by the power of two above a row's length, so that one long row costs the short ones
        nothing. Rows that grow into another group are sent to the device again.
        """
        if not len(host_rows):
            return ()
        powers = np.maximum(np.frexp(batch.lengths[host_rows])[1], LEAST_POWER)
        return tuple(
            self._penalties_of(batch, host_rows[powers == power], self._penalized[power])
            for power in np.unique(powers).tolist()
        )

    def _penalties_of(self, batch: Batch, host_rows: NDArray[np.int64], index: RowIndex) -> Penalties:
        rows = index.of(host_rows)
        slots, width = batch.slots[rows], int(batch.lengths[host_rows].max())
        lengths, outputs = batch.table[slots, Column.LENGTH], batch.table[slots, Column.OUTPUTS]
        places = torch.arange(width, device=slots.device)
        is_output = (places >= (lengths - outputs)[:, None]) & (places < lengths[:, None])
        shares = self.shares[slots]
        parts = (shares[:, share] for share in (Share.REPETITION, Share.PRESENCE, Share.FREQUENCY))
        return Penalties(rows, self.history.first(slots, lengths, width), is_output, *parts)

    def _biases_of(self, batch: Batch, host_rows: NDArray[np.int64]) -> Biases | None:
        if not len(host_rows):
            return None
        rows = self._biased.of(host_rows)
        return self._biases.of(rows, batch.slots[rows])

    def _allowed(self, batch: Batch, host_rows: NDArray[np.int64]) -> Allowed | None:
        if not len(host_rows):
            return None
        return self.guided.allowed(self._guided.of(host_rows), host_rows, batch.host[host_rows])

    def _log_probs(self, batch: Batch, host_rows: NDArray[np.int64]) -> LogProbRows | None:
        if not len(host_rows):
            return None
        num_top = int(self._asked.num_top[batch.host[host_rows]].max())
        return LogProbRows(self._scored.of(host_rows), host_rows, min(num_top, self._limits.vocab_size))


class _Asked:
    """What the host knows of each slot: a step of plain greedy rows is one arg-max."""

    def __init__(self, num_slots: int) -> None:
        self.anything: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.beyond_draws: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.draws: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.restricts: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.penalizes: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.bad_words: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.biases: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.guided: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.log_probs: NDArray[np.bool_] = np.zeros(num_slots, np.bool_)
        self.num_top: Ids = np.zeros(num_slots, np.int32)
        # tokens, with the prompt, before which no stop id may come
        self.stop_from: Ids = np.zeros(num_slots, np.int32)

    def admit(self, admit: Admit, max_model_tokens: int) -> None:
        sampling, slot = admit.sampling, admit.slot
        self.draws[slot] = sampling.draws
        self.restricts[slot] = sampling.top_k > 0 or sampling.top_p < 1 or sampling.min_p > 0
        self.penalizes[slot] = sampling.penalizes
        self.bad_words[slot] = bool(sampling.bad_words)
        self.biases[slot] = bool(sampling.logit_bias)
        self.guided[slot] = bool(sampling.grammar)
        self.log_probs[slot] = sampling.log_probs
        self.num_top[slot] = sampling.num_top_log_probs
        early = admit.num_prompt_tokens + sampling.min_tokens if sampling.stop_ids else 0
        self.stop_from[slot] = min(early, max_model_tokens)
        waits = sampling.min_tokens > 0 and bool(sampling.stop_ids)
        follows = bool(sampling.logit_bias) or bool(sampling.grammar)
        chooses_otherwise = sampling.looks_back or follows or waits
        self.beyond_draws[slot] = chooses_otherwise or sampling.log_probs
        self.anything[slot] = sampling.draws or self.beyond_draws[slot]


def _shares(sampling: Sampling) -> tuple[float, ...]:
    """In the order of `Share`."""
    penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
    return (sampling.temperature, sampling.top_p, sampling.min_p, *penalties)
