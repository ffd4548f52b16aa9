"""Counts what a step launches on a GPU, and the bytes and operations of each launch, on a machine without
one: the step's own code runs with tensors that have shapes and no memory (torch's device "meta").

torch's dispatcher shows every operator, Triton's language every kernel of ours; nothing is computed. On such
tensors the code takes the same branches as on a GPU: only a CPU has others. What a library launches for one
operator is taken to be one kernel; some products are two, which is not seen here. Called by `gpu_floor`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from python_backends.checkpoint.model_facts import ModelFacts, read_model_facts
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.loading import Weights
from python_backends.engine.model.random_source import RandomSource
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import StepTimer
from python_backends.engine.torch.adapters.slot_adapters import SlotAdapters
from python_backends.engine.torch.decode_step import Step
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.step_launcher import StepLauncher
from python_backends.nouns.request import ModelLimits, Sampling
from python_backends.nouns.step import Admit, StepPlan
from tests.support.model_source import ModelSource

Watch = Callable[..., object]  # with a kernel and the arguments of its launch

META = torch.device("meta")
BLOCK_TOKENS = 32
STOP_IDS = 20  # a row, as the engine has them with its default limits
CHUNK_TOKENS = 512  # of a prompt in a mixed step
DRAWN = Sampling(64, temperature=0.8, top_k=50, top_p=0.9, seed=3)
GREEDY = Sampling(64)

# operators that launch nothing: memory alone
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "_unsafe_view")
# operators that read or write some rows of a large tensor, and not all of it
READS_ROWS = ("embedding", "index", "index_select", "gather")
WRITES_ROWS = ("index_put_", "index_copy_", "scatter_", "_index_put_impl_")
PRODUCTS = ("mm", "addmm", "linear", "bmm")
# arguments of our kernels that are tables or pools, of which a launch reads some rows
POOLS = (
    *("blocks", "table", "cos", "sin", "weighted_parts", "maxima", "sums", "counts", "stop_ids", "shares"),
    *("first", "second", "third", "fourth"),
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel or a copy. `kind`: torch, ours, or copy (from the host)."""

    name: str
    kind: str
    num_bytes: int
    num_flops: int = 0
    is_captured: bool = False


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every launch, in order, and where the marks of the timer stand among them. `context_tokens`: that a
    decode row attends to.
    """

    def __init__(self, context_tokens: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._context_tokens = context_tokens
        self._is_captured = False
        self.launches: list[Launch] = []
        self.marks: list[int] = []
        self.num_replays = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        on_device = [each for each in tree_leaves(result) if isinstance(each, Tensor) and each.is_meta]
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        is_sent = any(not each.is_meta for each in inputs)  # counted by `copied`
        if on_device and not is_sent and not func.is_view and name not in ALLOCATIONS:
            self._add(_launch_of(name, inputs, on_device))
        return result

    def copied(self, tensor: Tensor) -> None:
        """A copy of `tensor` from the host."""
        self._add(Launch("copy from the host", "copy", _bytes(tensor)))

    def kernel(self, name: str, arguments: dict[str, Any]) -> None:
        """A launch of a kernel of ours."""
        moved = sum(
            _bytes(value)
            for argument, value in arguments.items()
            if isinstance(value, Tensor) and argument not in POOLS
        )
        kv_tokens, flops = self._attended(name, arguments)
        if "blocks" in arguments:
            blocks = arguments["blocks"]  # [blocks, 2, kv_heads, tokens, dim]
            moved += kv_tokens * 2 * blocks.shape[2] * blocks.shape[4] * blocks.element_size()
        self._add(Launch(name, "ours", moved, flops))

    def _attended(self, name: str, arguments: dict[str, Any]) -> tuple[int, int]:
        """KV tokens that an attention reads, and its operations."""
        if name == "_attend_chunk":  # each program reads what its tile sees; the device's cache serves heads
            tiles, rows = len(arguments["tiles"]), arguments["ROWS"]
            pairs = rows * sum(rows * (tile + 1) for tile in range(tiles))
            width = arguments["out"].shape[1]
            return sum(rows * (tile + 1) for tile in range(tiles)), 4 * pairs * width
        if name == "_attend_part":
            return len(arguments["arrived"]) * self._context_tokens, 0
        return 0, 0

    def _add(self, launch: Launch) -> None:
        self.launches.append(
            Launch(launch.name, launch.kind, launch.num_bytes, launch.num_flops, self._is_captured)
        )

    def capture(self, step: Step) -> Step:
        """`step` as if it were captured: its launches are one call of the host."""

        def replay() -> Tensor:
            self.num_replays += 1
            self._is_captured = True
            try:
                return step()
            finally:
                self._is_captured = False

        return replay

    def mark(self) -> float:
        """For a timer: where its marks stand."""
        self.marks.append(len(self.launches))
        return 0.0

    def forget(self) -> None:
        self.launches.clear()
        self.marks.clear()
        self.num_replays = 0


def _launch_of(name: str, inputs: list[Tensor], outputs: list[Tensor]) -> Launch:
    flops = 0
    if name in PRODUCTS:
        x, weight = inputs[-2:] if name != "linear" else inputs[:2]
        flops = 2 * x.shape[0] * weight.numel()
    if name in READS_ROWS:
        moved = 2 * sum(map(_bytes, outputs)) + sum(map(_bytes, inputs[1:]))
    elif name in WRITES_ROWS:
        moved = 2 * sum(map(_bytes, inputs[1:]))
    else:
        moved = sum(map(_bytes, inputs)) + sum(map(_bytes, outputs))
    return Launch(name, "torch", moved, flops)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextmanager
def recording(recorder: Recorder, watch: Watch | None = None) -> Iterator[None]:
    """Inside, kernels of ours are counted and not run. `watch` is called with each."""
    from triton.runtime.jit import JITFunction

    def launched(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        if watch is not None:
            watch(self, *args, grid=grid, **options)
        recorder.kernel(self.fn.__name__, dict(zip(self.arg_names, args, strict=False)) | options)

    def pinned(tensor: Tensor) -> Tensor:  # the first half of each copy to the device
        recorder.copied(tensor)
        return tensor

    with (
        patch.object(JITFunction, "run", launched),
        patch.object(Tensor, "pin_memory", pinned),
        torch.inference_mode(),
        recorder,
    ):
        yield


@dataclass(frozen=True, slots=True)
class Counted:
    """A step: its launches, and how many of them stand outside of the two marks of the step's timer."""

    launches: tuple[Launch, ...]
    num_before: int  # the first mark
    num_after: int  # the second mark
    num_replays: int


class CountedModel:
    """The torch engine's own steps for a model of `config` (transformers'), bfloat16, with random weights,
    without memory.
    """

    def __init__(
        self,
        config: Any,
        slots: int,
        max_model_tokens: int,
        context_tokens: int,
        watch: Watch | None = None,
    ) -> None:
        self._slots, self._context, self._watch = slots, context_tokens, watch
        self._recorder = Recorder(context_tokens)
        facts = read_model_facts(ModelSource(config.to_dict()))
        with recording(self._recorder, watch):
            weights = Weights(facts, RandomSource(facts, torch.bfloat16), torch.bfloat16, META)
            description = describe(facts, weights, max_model_tokens)
            layers = take_layers(facts, weights)
            decoder = Decoder(description, layers, max_model_tokens, kernels=True)
            self._launcher = self._made(decoder, facts, max_model_tokens)
            self._launcher.fix_shapes(self._recorder.capture, CHUNK_TOKENS)
        self.decoder = decoder

    def _made(self, decoder: Decoder, facts: ModelFacts, max_model_tokens: int) -> StepLauncher:
        dtype = decoder.embedding.dtype
        blocks = self._slots * (self._context // BLOCK_TOKENS + 64)
        limits = ModelLimits(max_model_tokens, facts.vocab_size, self._slots, blocks, BLOCK_TOKENS)
        shape = BlockShape(facts.num_layers, BLOCK_TOKENS, facts.num_kv_heads, facts.head_dim, dtype)
        cache = KVCache(shape, blocks + 1, META)
        state = SlotState(limits, META, kernels=True, most_stop_ids=STOP_IDS)
        launcher = StepLauncher(decoder, state, cache, SlotAdapters(META), kernels=True)
        launcher.timer = StepTimer(self._recorder.mark, lambda later, earlier: 0.0)
        return launcher

    @property
    def weight_bytes(self) -> int:
        """Of all products, the head among them: what each step must read."""
        decoder = self.decoder
        projections = [each for block in decoder.blocks for each in block.projections.values()]
        return sum(_bytes(each.weight) for each in [decoder.head, *projections])

    def decode(self, drawn: bool) -> Counted:
        """A steady step in which all slots decode, greedy or drawn with top_k and top_p."""
        admits = tuple(self._admit(slot, self._context, drawn) for slot in range(self._slots))
        first = _plan(admits, np.full(self._slots, self._context - 1), 0, 0)
        return self._steady(lambda number: first.next_in_run(number) if number else first)

    def mixed(self) -> Counted:
        """All slots but one decode greedily, and the last one computes a whole prompt."""
        decoding = self._slots - 1
        admits = tuple(self._admit(slot, self._context, False) for slot in range(decoding))
        starts = np.full(decoding, self._context - 1)

        def plan(number: int) -> StepPlan:
            admitted = self._admit(decoding, CHUNK_TOKENS, False)
            return _plan((*(admits if number == 0 else ()), admitted), starts + number, CHUNK_TOKENS, number)

        return self._steady(plan)

    def _steady(self, plan: Callable[[int], StepPlan]) -> Counted:
        """The third step: the first two send what later ones find on the device."""
        recorder = self._recorder
        with recording(recorder, self._watch):
            for number in range(3):
                recorder.forget()
                self._launcher.launch(plan(number))
        begin, end = recorder.marks
        launches = tuple(recorder.launches)
        return Counted(launches, begin, len(launches) - end, recorder.num_replays)

    def _admit(self, slot: int, tokens: int, drawn: bool) -> Admit:
        blocks = np.zeros(-(-tokens // BLOCK_TOKENS) + 1, np.int32)
        return Admit(slot, 0, DRAWN if drawn else GREEDY, tokens, 0, blocks)


def _plan(operations: tuple[Admit, ...], starts: Any, chunk_tokens: int, number: int) -> StepPlan:
    count, chunks = len(starts), int(chunk_tokens > 0)
    slots = np.arange(count + chunks, dtype=np.int32)
    firsts = np.concatenate([starts, np.zeros(chunks)]).astype(np.int32)
    lengths = np.array([1] * count + [chunk_tokens] * chunks, np.int32)
    samples, tokens = np.ones(count + chunks, np.bool_), np.zeros(chunk_tokens, np.int32)
    return StepPlan(number, operations, slots, np.zeros_like(slots), firsts, lengths, count, samples, tokens)
