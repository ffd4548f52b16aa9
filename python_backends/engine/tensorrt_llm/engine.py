"""The TensorRT-LLM engine: NVIDIA's LLM API on its PyTorch backend, driven through our slots.

TensorRT-LLM plans its own steps and owns its KV blocks. No other scheduler can plan its steps, so it is
driven by admission (`scheduling/self_planned.py`). This room translates: settings into its configuration, a
request into its sampling parameters, its results into tokens; `request_loop.py` keeps the requests under way.
All names of `tensorrt_llm` are here, their arguments spelled out, and a test compares them with
`tests/trtllm_api.json`. It is written for the TensorRT-LLM of the image that docs/tensorrt_llm.md names; what
another lacks is refused at the start. Made by the instance when `engine.kind = "tensorrt_llm"`, which alone
imports it.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.executor import LoRARequest
from tensorrt_llm.llmapi import (
    CapacitySchedulerPolicy,
    CudaGraphConfig,
    KvCacheConfig,
    RequestError,
    SchedulerConfig,
)
from tensorrt_llm.lora_helper import LoraConfig

from python_backends.engine.tensorrt_llm.limits import (
    adapter_paths,
    largest_rank,
    model_limits,
    modules_of,
    more_arguments,
)
from python_backends.engine.tensorrt_llm.open_request import News, Response, Token
from python_backends.engine.tensorrt_llm.request_loop import RequestLoop
from python_backends.nouns.request import LogProbs, Sampling
from python_backends.nouns.step import Admit, GatheredOutput, Release, RowLogProbs, SlotFailure, StepPlan
from python_backends.settings import Settings, SettingsError

log = logging.getLogger("gapless.engine")

WAIT_S = 0.002  # for tokens, before the loop looks for new requests
STATS_S = 2.0  # to wait for what an iteration was like
FIRST_REQUEST_S = 120.0  # with what TensorRT-LLM makes when it computes for the first time
# a request that asks for one token
ONE_TOKEN = Admit(0, 0, Sampling(max_tokens=1), 1, 0, np.zeros(0, np.int32))
NO_SCORE = (
    "TensorRT-LLM gives no log-probability of a token that it has chosen: ask without log-probabilities, or"
    " with temperature 0"
)
SPARE_BLOCKS = 1  # TensorRT-LLM pads the batch of a CUDA graph with a sequence of one token


class TensorRTLLMEngine:
    plans_steps = True
    request_errors: tuple[type[Exception], ...] = (RequestError,)

    def __init__(self, settings: Settings) -> None:
        """Raises SettingsError."""
        _check(settings)
        self.limits = model_limits(settings)
        self._adapters = adapter_paths(settings)
        self._try_parameters()
        self._llm = _load(
            settings, self.limits.max_model_tokens, self.limits.num_blocks + SPARE_BLOCKS, self._adapters
        )
        self._plans: deque[int] = deque()  # numbers of the launched ones
        self._requests = RequestLoop(self)
        self._check_pool()

    def launch(self, plan: StepPlan) -> None:
        self._plans.append(plan.number)
        self._requests.operate(plan.operations)

    def collect(self) -> GatheredOutput:
        return gathered(self._plans.popleft(), self._requests.collect(WAIT_S))

    def close(self) -> None:
        self._requests.close()
        self._llm.shutdown()

    # --- calls of the request loop, on its thread

    def submit(self, admit: Admit) -> Any:
        """Raises RequestError where TensorRT-LLM refuses the request at once."""
        try:
            return self._llm.generate_async(
                inputs=admit.tokens.tolist(),
                sampling_params=self._sampling_params(admit),
                lora_request=self._lora_request(admit.adapter.name),
                streaming=True,
            )
        except ValueError as error:
            raise RequestError(str(error)) from error

    def read(self, result: Any) -> Response:
        output = result.outputs[0]
        return Response(
            tokens=list(output.token_ids_diff),
            scores=list(output.logprobs_diff or []),
            is_last=bool(result.finished),
            reason=str(output.finish_reason or ""),
            stop_id=output.stop_reason if isinstance(output.stop_reason, int) else -1,
        )

    def abort(self, result: Any) -> None:
        result.abort()

    # --- inside

    def _sampling_params(self, admit: Admit) -> Any:
        """What is left of a request after the output of its earlier life. Greedy is top_k 1; None is
        TensorRT-LLM's default.

        Before `min_tokens` it bars `end_id` alone, so other stop ids are left to us then: they may come, and
        end nothing.
        """
        asked, num_output = admit.sampling, admit.num_output_tokens
        min_tokens = max(0, asked.min_tokens - num_output)
        return SamplingParams(
            end_id=asked.stop_ids[0] if asked.stop_ids else -1,
            stop_token_ids=list(asked.stop_ids[1:]) if not min_tokens else [],
            include_stop_str_in_output=True,
            max_tokens=asked.max_tokens - num_output,
            min_tokens=min_tokens or None,
            temperature=asked.temperature if asked.draws else None,
            top_k=asked.top_k if asked.draws else 1,
            top_p=asked.top_p if asked.draws else None,
            min_p=asked.min_p or None if asked.draws else None,
            seed=(asked.seed + num_output) % (1 << 64) if asked.draws else None,
            repetition_penalty=asked.repetition_penalty if asked.repetition_penalty != 1 else None,
            presence_penalty=asked.presence_penalty or None,
            frequency_penalty=asked.frequency_penalty or None,
            bad_token_ids=[word[0] for word in asked.bad_words] or None,
            logprobs=max(1, asked.num_top_log_probs) if asked.log_probs else None,
            n=1,
            detokenize=False,
            add_special_tokens=False,
        )

    def _try_parameters(self) -> None:
        """Better refused at start than with the first request. Raises SettingsError."""
        try:
            self._sampling_params(ONE_TOKEN)
            inspect.signature(LLM.generate_async).bind(
                self, inputs=[], sampling_params=None, lora_request=None, streaming=True
            )
        except TypeError as error:
            raise SettingsError(f"this TensorRT-LLM is not one that this engine knows: {error}") from error

    def _lora_request(self, name: str) -> Any:
        if not name:
            return None
        number = 1 + list(self._adapters).index(name)
        return LoRARequest(lora_name=name, lora_int_id=number, lora_path=self._adapters[name])

    def _check_pool(self) -> None:
        """TensorRT-LLM may have fewer blocks than were ordered. Raises
        SettingsError if it has fewer than we count with.
        """
        told = self._requests.run(self._first_stats(), FIRST_REQUEST_S)
        num_blocks = (told.get("kvCacheStats") or {}).get("maxNumBlocks")
        if num_blocks is None:
            log.warning(
                "TensorRT-LLM doesn't say how many KV blocks it has; if they are fewer than %d, requests"
                " wait",
                self.limits.num_blocks,
            )
        elif num_blocks < self.limits.num_blocks:
            self.close()
            raise SettingsError(
                f"engine.kv_blocks or engine.kv_memory_gib: {self.limits.num_blocks} KV blocks are wanted, "
                f"TensorRT-LLM had room for {num_blocks}"
            )

    async def _first_stats(self) -> dict[str, Any]:
        """Of an iteration, which say how many blocks there are: so a request of one token comes first. Empty
        if nothing is said.
        """
        params = self._sampling_params(ONE_TOKEN)
        async for _ in self._llm.generate_async(
            inputs=[0], sampling_params=params, lora_request=None, streaming=True
        ):
            pass
        async for stats in self._llm.get_stats_async(timeout=STATS_S):
            told: dict[str, Any] = json.loads(stats) if isinstance(stats, str) else stats
            return told
        return {}


def gathered(number: int, news: Sequence[News]) -> GatheredOutput:
    """What one call of `collect` gives, as arrays. A request that asks for log-probabilities fails at the
    first token that has none.
    """
    came = [item for item in news if isinstance(item, Token)]
    tokens = [item for item in came if not _lacks_score(item)]
    unscored = [SlotFailure(item.slot, item.slot_generation, NO_SCORE) for item in came if _lacks_score(item)]
    return GatheredOutput(
        number=number,
        tokens=np.array([item.token for item in tokens], np.int32),
        finishes=np.array([item.finish for item in tokens], np.uint8),
        log_probs=_log_probs(tokens),
        slots=np.array([item.slot for item in tokens], np.int32),
        slot_generations=np.array([item.slot_generation for item in tokens], np.int32),
        failures=(*unscored, *(item for item in news if isinstance(item, SlotFailure))),
        released=tuple(item for item in news if isinstance(item, Release)),
    )


def _lacks_score(token: Token) -> bool:
    """TensorRT-LLM gives a dict for each token: the most probable ids, among which one that was drawn may not
    be.
    """
    return token.score is not None and token.token not in token.score


def _log_probs(tokens: Sequence[Token]) -> RowLogProbs | None:
    asking = [row for row, item in enumerate(tokens) if item.score is not None]
    if not asking:
        return None
    num_top = max(tokens[row].num_top for row in asking)
    chosen, top_ids, top = [], [], []
    for row in asking:
        scores = {int(token): float(score.logprob) for token, score in tokens[row].score.items()}
        best = sorted(scores.items(), key=lambda item: -item[1])[:num_top]
        best += [(-1, np.nan)] * (num_top - len(best))
        chosen.append(scores[tokens[row].token])
        top_ids += [token for token, _ in best]
        top += [score for _, score in best]
    values = LogProbs(np.array(chosen, np.float32), np.array(top_ids, np.int32), np.array(top, np.float32))
    return RowLogProbs(np.array(asking, np.int32), values)


def _load(settings: Settings, max_model_tokens: int, num_blocks: int, adapters: dict[str, str]) -> Any:
    engine, chosen = settings.engine, settings.tensorrt_llm
    policies = CapacitySchedulerPolicy
    policy = (
        policies.MAX_UTILIZATION if chosen.capacity == "max_utilization" else policies.GUARANTEED_NO_EVICT
    )
    lora_config = _lora_config(adapters) if adapters else None
    graphs = CudaGraphConfig(max_batch_size=engine.slots, enable_padding=True)
    try:
        return LLM(
            model=str(settings.model_directory),
            skip_tokenizer_init=True,
            tensor_parallel_size=chosen.tensor_parallelism,
            dtype=settings.model.dtype,
            max_batch_size=engine.slots,
            max_seq_len=max_model_tokens,
            max_input_len=max_model_tokens,
            max_num_tokens=max(engine.token_budget, engine.slots + engine.block_tokens),
            max_beam_width=1,
            kv_cache_config=KvCacheConfig(
                enable_block_reuse=True,
                max_tokens=num_blocks * engine.block_tokens,
                tokens_per_block=engine.block_tokens,
            ),
            scheduler_config=SchedulerConfig(capacity_scheduler_policy=policy),
            # together with adapters they give other texts, as NVIDIA's own tests say
            cuda_graph_config=None if adapters else graphs,
            enable_chunked_prefill=True,
            stream_interval=1,
            enable_iter_perf_stats=True,  # what it costs has not been measured
            enable_lora=bool(adapters),
            lora_config=lora_config,
            **more_arguments(settings),
        )
    except (TypeError, ValueError) as error:
        raise SettingsError(f"TensorRT-LLM doesn't take this configuration: {error}") from error


def _lora_config(adapters: dict[str, str]) -> Any:
    """Raises SettingsError."""
    return LoraConfig(
        lora_dir=list(adapters.values()),
        max_lora_rank=largest_rank(adapters.values()),
        lora_target_modules=modules_of(adapters.values()),
        max_loras=len(adapters),
        max_cpu_loras=len(adapters),
    )


def _check(settings: Settings) -> None:
    """Raises SettingsError for what another engine can do."""
    model, graphs = settings.model, settings.engine.cuda_graphs
    if model.device != "cuda":
        raise SettingsError(
            f"model.device = {model.device!r}: engine.kind = 'tensorrt_llm' needs 'cuda';"
            " CUDA_VISIBLE_DEVICES says which GPUs"
        )
    if model.weights != "same":
        raise SettingsError(
            f"model.weights = {model.weights!r}: TensorRT-LLM serves checkpoints as they were quantised:"
            " 'same'"
        )
    if model.random_weights:
        raise SettingsError(
            "model.random_weights = true: for TensorRT-LLM set load_format to dummy in tensorrt_llm.arguments"
        )
    if graphs != "auto":
        raise SettingsError(f"engine.cuda_graphs = {graphs!r}: TensorRT-LLM makes graphs of its own: 'auto'")
