"""vLLM's build for CPUs, compiled, its engine driven step by step;
runs in the environment of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common.scored_text import Scores
from benchmarks.common.work import PEER_TOKEN_BUDGET, Job, Timing, Work, closed_loop
from benchmarks.peers.workers.quantised_checkpoint import write_quantised


def prepare(directory: Path, weights: str) -> None:
    """Writes the checkpoint with weights of such a format, in its folder."""
    if weights != "same" and not (directory / weights).exists():
        write_quantised(directory, directory / weights, weights)


class Engine:
    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        max_model_tokens: int,
        weights: str = "same",
    ) -> None:
        from vllm.config import StructuredOutputsConfig
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.llm_engine import LLMEngine

        arguments = EngineArgs(
            model=str(directory if weights == "same" else directory / weights),
            dtype=dtype,
            max_model_len=max_model_tokens,
            max_num_seqs=in_flight,
            max_num_batched_tokens=PEER_TOKEN_BUDGET,
            enable_prefix_caching=False,
            structured_outputs_config=StructuredOutputsConfig(backend="xgrammar"),
        )
        self._engine = LLMEngine.from_engine_args(arguments)
        self._round = 0

    def close(self) -> None:
        """Ends the engine's process, where it has one of its own."""
        self._engine.engine_core.shutdown()

    def run(self, work: Work) -> list[Timing]:
        self._round += 1
        return closed_loop(work, self._submit, self._step)

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        from vllm import SamplingParams

        sampling = SamplingParams(max_tokens=1, prompt_logprobs=1, detokenize=False)
        found = []
        for index, text in enumerate(texts):
            self._engine.add_request(f"text-{index}", {"prompt_token_ids": list(text)}, sampling)
            while self._engine.has_unfinished_requests():
                for output in self._engine.step():
                    found += [scores_of(output.prompt_logprobs, text)] if output.finished else []
        return found

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


def scores_of(told: Any, text: Sequence[int]) -> Scores:
    """Of each token but the first vLLM tells its own and the most likely one's, with its rank."""
    places = list(zip(told[1:], text[1:], strict=True))
    return Scores(
        [place[token].logprob for place, token in places],
        [next(token for token, each in place.items() if each.rank == 1) for place, _ in places],
    )
