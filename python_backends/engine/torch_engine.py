"""The torch engine: runs step plans with PyTorch's own operators, on a CPU or a CUDA device by the same code.

Owns model, KV cache and slot state; decides nothing. `launch` puts a whole step on the device (batch, forward pass, sampling, append),
`collect` reads its tokens. Nothing of a step needs the tokens of the one before on the host, so a step may be launched before the
last one was collected. A step in which all rows decode has a fixed shape on CUDA and is a captured graph (`decode_step`). Called by
the instance loop.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.config import Settings
from python_backends.engine.device import runs_kernels
from python_backends.engine.forward.attention_spans import CHUNK_ROWS
from python_backends.engine.forward.decode_step import DecodeSteps
from python_backends.engine.forward.decoder import Decoder
from python_backends.engine.forward.step_batch import StepBatcher
from python_backends.engine.kv_cache import KVCache
from python_backends.engine.model.checkpoint import block_shape, declared_tokens, load_model, model_limits, read_config
from python_backends.engine.model.quantised import kept
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.slots.log_probs import log_probs, row_log_probs
from python_backends.engine.slots.sampler import sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.step_timer import Seconds, StepTimer, cuda_timer
from python_backends.step import StepOutput, StepPlan


@dataclass(frozen=True, slots=True)
class _Launched:
    number: int
    order: NDArray[np.intp]  # [sampled] of the plan's spans that sample
    result: Tensor  # [2, sampled] tokens and finishes, on the host once `done`
    log_probs: Tensor | None  # [asking, …] as the device packed them, on the host once `done`
    asking: NDArray[np.intp]  # [asking] of the plan's spans that sample
    done: torch.cuda.Event | None
    times: Callable[[], Seconds]


class TorchEngine:
    plans_steps = False

    @torch.no_grad()
    def __init__(self, settings: Settings) -> None:
        set_threads(settings.engine.threads)
        config = read_config(settings)
        self.limits = model_limits(settings, config)
        self.device = torch.device(settings.model.device)
        model = load_model(settings, config)
        description = describe(model, declared_tokens(settings, config))
        graphs, on_gpu = settings.engine.cuda_graphs, self.device.type == "cuda"
        kernels = graphs != "off" and runs_kernels(self.device)
        layers, fused = kept(take_layers(model), settings.model.weights), kernels and settings.engine.fused_layers
        self.decoder = Decoder(description, layers, self.limits.max_model_tokens, fused)
        self.cache = KVCache(block_shape(settings, config), self.limits.num_blocks + 1, self.device)  # one for rows of padding
        self.state = SlotState(self.limits, self.device, kernels)
        self._batcher = StepBatcher(self.state, self.cache, self.decoder.windows, kernels, CHUNK_ROWS * fused)
        self._timer = cuda_timer() if on_gpu else StepTimer()
        self._launched: deque[_Launched] = deque()
        captures = graphs == "auto" and on_gpu and kernels
        parts = (self.decoder, self.state, self.cache, self._batcher)
        self._decode_steps = DecodeSteps(*parts, captures) if captures or graphs == "eager" else None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        self.state.apply(plan.operations)
        if not len(plan.slots):
            nothing = np.zeros(0, np.intp)
            tokens = torch.zeros((2, 0), dtype=torch.int64)
            self._launched.append(_Launched(plan.number, nothing, tokens, None, nothing, None, lambda: (0.0, 0.0)))
            return
        step = self._flat(plan) if self._decode_steps is None or len(plan.tokens) else self._decode(plan, self._decode_steps)
        self._launched.append(step if self.device.type == "cpu" else _sent(step))

    def _flat(self, plan: StepPlan) -> _Launched:
        batch = self._batcher.batch(plan)
        self._timer.begin()
        logits = self.decoder.forward(batch, self.cache)  # [sampled, vocabulary]
        return self._choose(plan, logits, batch.sampling_slots, batch.order)

    def _decode(self, plan: StepPlan, steps: DecodeSteps) -> _Launched:
        count, order = len(plan.slots), np.arange(len(plan.slots))
        bucket = steps.bucket(plan.slots)
        self._timer.begin()
        logits = steps.forward(bucket, int(plan.starts.max()) + 1)
        if not self.state.is_greedy(plan.slots):
            return self._choose(plan, logits[:count], bucket.slots[:count], order)
        result = steps.greedy(bucket)[:, :count]
        return _Launched(plan.number, order, result, None, order[:0], None, self._timer.end())

    def _choose(self, plan: StepPlan, logits: Tensor, slots: Tensor, order: NDArray[np.intp]) -> _Launched:
        """Samples and appends for `slots` [sampled], row i of which is the `order[i]`-th span of the plan that samples."""
        rows = self.state.sampling_rows(slots, plan, order)
        chosen = sample(logits, rows)
        times = self._timer.end()
        scores = log_probs(logits, chosen, rows.asks) if rows.asks is not None else None
        tokens, finishes = self.state.append(slots, chosen)
        asking = order[rows.asks.host_rows] if rows.asks is not None else order[:0]
        return _Launched(plan.number, order, torch.stack((tokens, finishes)), scores, asking, None, times)

    def collect(self) -> StepOutput:
        step = self._launched.popleft()
        if step.done is not None:
            step.done.synchronize()
        result = np.empty_like(step.result.numpy())
        result[:, step.order] = step.result.numpy()
        scores = None if step.log_probs is None else row_log_probs(step.log_probs.numpy(), step.asking)
        return StepOutput(step.number, result[0].astype(np.int32), result[1].astype(np.uint8), scores, *step.times())

    def close(self) -> None:
        self._launched.clear()


def _sent(step: _Launched) -> _Launched:
    """Starts the way of its result and log-probabilities to the host."""
    result, scores = _on_the_way(step.result), None if step.log_probs is None else _on_the_way(step.log_probs)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record()
    return replace(step, result=result, log_probs=scores, done=done)


def _on_the_way(tensor: Tensor) -> Tensor:
    """A copy on the host, complete once the device has come so far."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def set_threads(threads: int) -> None:
    """Once, at the start: torch takes no other number later.

    Each function of torch's vector library is called by one thread first: where two are the first, some values may be wrong by 1e-4
    (docs/log.md), and rotary embeddings would not be the same after a restart.
    """
    torch.set_num_threads(threads or len(os.sched_getaffinity(0)))
    for function in (torch.cos, torch.sin, torch.tanh, torch.exp):
        function(torch.zeros(8))
