"""The LLM of the stand-in: a thread that iterates over the requests
in its batch, as a worker process would.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from python_backends.nouns.request import Sampling
from tensorrt_llm.executor.result import GenerationResult, Logprob, RequestOutput, Response
from tensorrt_llm.executor.utils import EngineDeadError, RequestError
from tensorrt_llm.llmapi import CapacitySchedulerPolicy, KvCacheConfig, SchedulerConfig
from tensorrt_llm.manners import manners
from tensorrt_llm.sampling_params import SamplingParams
from tests.support.toy_engine import toy_log_probs, toy_next

API = json.loads((Path(__file__).resolve().parents[2] / "trtllm_api.json").read_text())
KNOWN = {name.split("=")[0] for name in API["tensorrt_llm.llmapi.TorchLlmArgs"]["params"]}


@dataclass(eq=False)
class Generation:
    """One request inside."""

    result: GenerationResult
    params: SamplingParams
    tokens: list[int]
    num_prompt: int
    max_tokens: int
    adapter: int
    response: Response = field(default_factory=Response)  # what the next response will bring
    is_cancelled: bool = False

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt


class LLM:
    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        tokenizer_mode: str = "auto",
        skip_tokenizer_init: bool = False,
        trust_remote_code: bool = False,
        tensor_parallel_size: int = 1,
        dtype: str = "auto",
        revision: str | None = None,
        tokenizer_revision: str | None = None,
        **kwargs: Any,
    ) -> None:
        unknown = sorted(set(kwargs) - KNOWN)
        if unknown:
            raise ValueError(f"{unknown[0]}: extra inputs are not permitted")
        lora = kwargs.get("lora_config")
        if lora is not None and len(lora.lora_dir) != 1:
            assert len(lora.lora_target_modules) >= 1, "Expecting at least one lora target module"
        self.arguments = kwargs
        self.vocab_size = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
        self.max_batch_size = kwargs.get("max_batch_size", 2048)
        self.max_seq_len = kwargs.get("max_seq_len") or 2048
        cache = kwargs.get("kv_cache_config") or KvCacheConfig()
        policy = (kwargs.get("scheduler_config") or SchedulerConfig()).capacity_scheduler_policy
        self._evicts = policy is CapacitySchedulerPolicy.MAX_UTILIZATION
        self._block_tokens = cache.tokens_per_block
        self.num_blocks = (cache.max_tokens or 1 << 20) // cache.tokens_per_block
        self.max_queued = 0  # the most requests that ever waited in here when an iteration began
        self.num_paused = 0
        self._num_iterations = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ids = itertools.count(1)
        self._queue: list[Generation] = []
        self._active: list[Generation] = []
        self._aborted: set[int] = set()
        # of the iteration before: they go out with this one
        self._late: list[tuple[GenerationResult, Response]] = []
        self._death: Exception | None = None
        self._is_broken = False
        self._stopping = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="stand-in", daemon=True)
        self._thread.start()

    def generate_async(
        self,
        inputs: list[int],
        sampling_params: SamplingParams | None = None,
        lora_request: Any = None,
        prompt_adapter_request: Any = None,
        streaming: bool = False,
        kv_cache_retention_config: Any = None,
        disaggregated_params: Any = None,
        trace_headers: Any = None,
        _postproc_params: Any = None,
        scheduling_params: Any = None,
        conversation_params: Any = None,
        cache_salt: Any = None,
        priority: float = 0.5,
    ) -> RequestOutput:
        self._check_thread()
        if self._death is not None:
            raise EngineDeadError(self._death)
        params = sampling_params or SamplingParams()
        if params.end_id is None:
            raise ValueError("tokenizer is required to reset end_id if it is None")
        if params.detokenize:
            raise ValueError("there is no tokenizer to detokenize with")
        if lora_request is not None and not self.arguments.get("enable_lora"):
            raise ValueError("LoRA is not enabled")
        result = RequestOutput(next(self._ids), inputs, self._abort)
        adapter = lora_request.lora_int_id if lora_request is not None else 0
        max_tokens = min(params.max_tokens, self.max_seq_len - len(inputs))
        with self._changed:
            self._queue.append(Generation(result, params, list(inputs), len(inputs), max_tokens, adapter))
            self._changed.notify()
        return result

    async def get_stats_async(self, timeout: float | None = 2) -> AsyncIterator[str]:
        """An iteration each, as text; the real one tells more of each."""
        self._check_thread()
        if manners.tells_stats and self.arguments.get("enable_iter_perf_stats"):
            for number in range(self._num_iterations):
                yield json.dumps({"iter": number, "kvCacheStats": {"maxNumBlocks": self.num_blocks}})
        else:
            await asyncio.sleep(timeout or 0)

    def shutdown(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(5)

    def _check_thread(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            raise RuntimeError(
                "generate_async was called where no event loop runs: its result could never be waited for"
            ) from error
        if self._loop not in (None, loop):
            raise RuntimeError("generate_async was called on another event loop than before")
        self._loop = loop

    def _abort(self, request_id: int) -> None:
        with self._changed:
            if manners.hears_aborts:
                self._aborted.add(request_id)

    # --- the worker's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._active or self._late or self._stopping):
                    self._changed.wait()
                if self._stopping:
                    return
                self._cancel()
                self._schedule()
            time.sleep(manners.step_ms / 1000)
            self._num_iterations += 1
            computed = list(self._active)
            self._is_broken |= any(
                each.tokens[each.num_prompt - 1] == manners.breaking_token for each in computed
            )
            for generation in computed:
                self._step(generation)
            self._publish(computed)

    def _cancel(self) -> None:
        """Those in the queue vanish without a word."""
        self._queue = [
            generation for generation in self._queue if generation.result.request_id not in self._aborted
        ]
        for generation in self._active:
            generation.is_cancelled |= generation.result.request_id in self._aborted
        self._aborted.clear()

    def _schedule(self) -> None:
        while self._queue and len(self._active) < self.max_batch_size and self._fits(self._queue[0]):
            self._active.append(self._queue.pop(0))
        while self._evicts and len(self._active) > 1 and sum(map(self._held, self._active)) > self.num_blocks:
            self._queue.insert(0, self._active.pop())
            self.num_paused += 1
        self.max_queued = max(self.max_queued, len(self._queue))

    def _fits(self, generation: Generation) -> bool:
        return sum(map(self._held, [*self._active, generation])) <= self.num_blocks

    def _held(self, generation: Generation) -> int:
        """Blocks that count as taken: to its end, or what it has and one token more."""
        end = len(generation.tokens) + 1 if self._evicts else generation.num_prompt + generation.max_tokens
        return -(-end // self._block_tokens)

    def _step(self, generation: Generation) -> None:
        last = generation.tokens[generation.num_prompt - 1]
        if last == manners.silent_token and generation.num_output >= 2 and not generation.is_cancelled:
            return
        if generation.is_cancelled:
            generation.response.finish_reason = "cancelled"
        elif last == manners.refused_token and generation.num_output >= 2:
            generation.response.error = RequestError("this request has gone wrong")
        elif self._is_broken:
            generation.response.error = RequestError("an illegal memory access was encountered")
        elif last == manners.fatal_token:
            self._death = self._death or RuntimeError("an illegal memory access was encountered")
        elif len(generation.result.prompt_token_ids) >= self.max_seq_len:
            generation.response.error = RequestError("the prompt is longer than max_seq_len")
        else:
            self._generate(generation)
        if generation.response.finish_reason or generation.response.error:
            self._active.remove(generation)

    def _generate(self, generation: Generation) -> None:
        params, response = generation.params, generation.response
        stop_ids = [] if params.end_id < 0 else [params.end_id]
        sampling = Sampling(
            max_tokens=generation.max_tokens,
            min_tokens=params.min_tokens or 0,
            temperature=params.temperature or 0.0,
            seed=params.seed or 0,
            stop_ids=tuple(stop_ids),
            bad_words=tuple((token,) for token in params.bad_token_ids or []),
        )
        token = toy_next(
            np.array(generation.tokens, np.int32), sampling, generation.num_output, self.vocab_size
        )
        token = (token + generation.adapter) % self.vocab_size
        generation.tokens.append(token)
        keeps = manners.keeps_stop_ids
        if token in stop_ids:
            response.finish_reason = "stop"
        elif token in (params.stop_token_ids or []):
            response.finish_reason, response.stop_reason = "stop", token
            keeps = keeps and params.include_stop_str_in_output
        elif generation.num_output == generation.max_tokens:
            response.finish_reason = "length"
        if keeps or response.finish_reason != "stop":
            response.tokens.append(token)
            if params.logprobs is not None:
                scores = toy_log_probs(token, params.logprobs, self.vocab_size)
                ranked = zip(scores.top_ids.tolist(), scores.top.tolist(), strict=True)
                response.logprobs.append(
                    {
                        item: Logprob(score, rank)
                        for rank, (item, score) in enumerate(ranked, 1)
                        if manners.scores_chosen or item != token
                    }
                )

    def _publish(self, computed: list[Generation]) -> None:
        """All responses of the iteration before, in one tick of the loop."""
        out, self._late = self._late, []
        for generation in computed:
            if _is_due(generation):
                self._late.append((generation.result, generation.response))
                generation.response = Response()
        if self._death is not None:
            out = [
                (generation.result, Response(error=self._death))
                for generation in [*self._active, *self._queue]
            ]
            self._active, self._queue, self._late = [], [], []
        if out and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_notify, out)


def _is_due(generation: Generation) -> bool:
    response = generation.response
    return bool(response.finish_reason or response.error or len(response.tokens) >= manners.tokens_a_response)


def _notify(out: list[tuple[GenerationResult, Response]]) -> None:
    for result, response in out:
        result._responses.put_nowait(response)
