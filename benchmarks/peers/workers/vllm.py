"""vLLM's build for CPUs, compiled, its engine driven step by step;
runs in the environment of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common.work import PEER_TOKEN_BUDGET, Job, Timing, Work, closed_loop


class Engine:
    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        max_model_tokens: int,
        token_budget: int = PEER_TOKEN_BUDGET,
        takes_schemas: bool = False,
    ) -> None:
        """`takes_schemas`: answers may follow some, by xgrammar; it wants the tokenizer."""
        from vllm.config import StructuredOutputsConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        backend: Any = "xgrammar" if takes_schemas else "auto"
        arguments = EngineArgs(
            model=str(directory),
            dtype=dtype,
            max_model_len=max_model_tokens,
            max_num_seqs=in_flight,
            max_num_batched_tokens=token_budget,
            enable_prefix_caching=False,
            skip_tokenizer_init=not takes_schemas,
            structured_outputs_config=StructuredOutputsConfig(backend=backend),
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._round = 0

    def close(self) -> None:
        """Ends the engine's process, where it has one of its own."""
        self._engine.engine_core.shutdown()

    def run(self, work: Work) -> list[Timing]:
        self._round += 1
        return closed_loop(work, self._submit, self._step)

    def _submit(self, index: int, job: Job) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        name = f"{self._round}-{index}"
        sampling: Any = SamplingParams(
            temperature=0,
            max_tokens=job.max_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
            structured_outputs=StructuredOutputsParams(json=job.schema) if job.schema else None,
        )
        self._engine.add_request(name, {"prompt_token_ids": job.prompt}, sampling)

    def _step(self) -> Iterator[tuple[int, list[int]]]:
        for output in self._engine.step():
            yield (
                int(output.request_id.partition("-")[2]),
                [token for each in output.outputs for token in each.token_ids],
            )
