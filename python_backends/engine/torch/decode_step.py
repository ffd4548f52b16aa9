"""The decode step of fixed shape: as many rows as a bucket has, padded with the dead slot, a function of one
list of slots.

Everything else a step needs lies in the slot state: tokens, positions and blocks are gathered inside, the
most probable tokens appended inside. On CUDA each bucket's step is captured once, at the start, as two graphs
that share one pool of memory: the forward pass to the logits, and the choice and append of tokens, one graph
for greedy rows and one for rows that draw. Where a row asks for more, the engine chooses tokens after the
first graph without the second. The same functions run uncaptured in the tests
(`engine.cuda_graphs = "eager"`). Called by the torch engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from python_backends.engine.device import send
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.slots.slot_state import Choice, SlotState
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.step_batch import Batcher
from python_backends.nouns.request import Ids

Step = Callable[[], Tensor]


@dataclass(slots=True)
class Bucket:
    slots: Tensor  # [rows] that sample, on the device; what pads it is the dead slot
    host: Ids = field(default_factory=lambda: np.zeros(0, np.int32))  # those that are not padding
    captured: Step | None = None  # the forward pass
    # captured, with `logits`
    choices: dict[Choice, Step] = field(default_factory=dict)
    logits: Tensor | None = None  # [rows, vocabulary] of the last step
    states: Tensor | None = None  # [rows, hidden] of it, as the decoder keeps them; None: it keeps none

    def forward(self, uncaptured: Step) -> Tensor:
        """The logits [rows, vocabulary]."""
        self.logits = (self.captured or uncaptured)()
        return self.logits

    def choose(self, state: SlotState, choice: Choice) -> Tensor:
        """Chooses and appends tokens after `forward`: [2, rows] tokens and finishes."""
        assert self.logits is not None
        captured = self.choices.get(choice)
        return captured() if captured else state.choose(self.logits, self.slots, choice)

    def capture(self, capture: Callable[[Step], Step], forward: Step, state: SlotState) -> None:
        """From now on `forward`, and each choice of tokens after it, are what `capture` makes of them."""
        forward()  # compiles kernels and makes the libraries' own memory
        self.captured = capture(forward)
        self.logits = self.captured()
        for choice in Choice:
            step = partial(state.choose, self.logits, self.slots, choice)
            step()
            self.choices[choice] = capture(step)


class Graphs:
    """Captures steps of one device as CUDA graphs, which share a pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._pool = device, torch.cuda.graph_pool_handle()

    def __call__(self, step: Step) -> Step:
        """`step` as a graph: what it returns is always the same memory, overwritten by each step."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize(self._device)
        with torch.cuda.graph(graph, pool=self._pool):
            out = step()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


class DecodeSteps:
    """Steps over 1, 2, 4 … and all slots. `capture` makes of each one what replays it, now; None: they are
    launched one kernel after the other.
    """

    def __init__(
        self,
        decoder: Decoder,
        state: SlotState,
        cache: KVCache,
        batcher: Batcher,
        capture: Callable[[Step], Step] | None,
    ) -> None:
        self._decoder, self._state, self._cache, self._batcher = decoder, state, cache, batcher
        sizes = bucket_sizes(state.dead_slot)
        self._buckets = {
            size: Bucket(torch.full((size,), state.dead_slot, device=state.device)) for size in sizes
        }
        if capture is not None:
            largest_first = sizes[::-1]  # the others fit into its memory
            for size in tqdm(largest_first, "capturing decode steps"):
                bucket = self._buckets[size]
                bucket.capture(capture, partial(self._forward, bucket, 1), state)

    def bucket(self, slots: Ids) -> Bucket:
        """The smallest bucket that holds `slots`, filled with them;
        nothing is sent if it already had them.
        """
        bucket = self._buckets[next(size for size in self._buckets if size >= len(slots))]
        if not np.array_equal(slots, bucket.host):
            rows = np.full(len(bucket.slots), self._state.dead_slot, np.int64)
            rows[: len(slots)] = slots
            send(rows, bucket.slots)
            bucket.host = slots
        return bucket

    def forward(self, bucket: Bucket, longest: int) -> Tensor:
        """The logits [rows, vocabulary] of a step whose sequences have at most `longest` tokens."""
        return bucket.forward(partial(self._forward, bucket, longest))

    def _forward(self, bucket: Bucket, longest: int) -> Tensor:
        width = 1 << (longest - 1).bit_length()  # a few shapes only
        batch = self._batcher.decodes(bucket.slots, width)
        logits, bucket.states = self._decoder.forward_with_states(batch, self._cache, slice(None))
        return logits


def bucket_sizes(num_slots: int) -> list[int]:
    """Powers of two below `num_slots`, and that."""
    return [1 << power for power in range((num_slots - 1).bit_length())] + [num_slots]
