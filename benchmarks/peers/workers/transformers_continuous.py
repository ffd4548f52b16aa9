"""transformers' own continuous batching, its loop on its own thread as
it comes; runs in the project's environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.common.work import (
    BLOCK_TOKENS,
    PEER_TOKEN_BUDGET,
    Job,
    Timing,
    Work,
    closed_loop,
    kv_blocks,
    num_cores,
)


class Engine:
    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        _max_model_tokens: int,
        token_budget: int = PEER_TOKEN_BUDGET,
    ) -> None:
        import torch
        from transformers import AutoModelForCausalLM, ContinuousBatchingConfig

        torch.set_num_threads(num_cores())
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype)).eval()
        batching = ContinuousBatchingConfig(
            **page_of(BLOCK_TOKENS),
            num_blocks=kv_blocks(directory, dtype),
            max_batch_tokens=token_budget,
            max_requests_per_batch=in_flight,
            allow_block_sharing=False,
        )
        self._batching = ContinuousBatching(model, batching)

    def run(self, work: Work) -> list[Timing]:
        return self._batching.run(work)


def page_of(num_tokens: int) -> dict[str, int]:
    """The option of a page's size, under the name that the installed version has for it."""
    from transformers import ContinuousBatchingConfig

    known = {each.name for each in fields(ContinuousBatchingConfig)}
    return {"page_size" if "page_size" in known else "block_size": num_tokens}


class ContinuousBatching:
    """The running loop over `model`, with transformers' own settings of it."""

    def __init__(self, model: Any, batching: Any) -> None:
        from transformers import GenerationConfig

        self._batching = model.init_continuous_batching(
            GenerationConfig(do_sample=False, eos_token_id=-1), batching
        )
        self._batching.start()
        self._num_read: dict[int, int] = {}

    def run(self, work: Work) -> list[Timing]:
        self._num_read.clear()
        return closed_loop(work, self._submit, self._step)

    def _submit(self, index: int, job: Job) -> None:
        self._num_read[index] = 0
        self._batching.add_request(
            job.prompt, str(index), max_new_tokens=job.max_tokens, streaming=True, eos_token_id=-1
        )

    def _step(self) -> Iterator[tuple[int, list[int]]]:
        answer = self._batching.get_result()
        if answer is None or answer.error:
            raise RuntimeError(answer.error if answer else "transformers' loop has ended")
        index = int(answer.request_id)
        yield index, [int(token) for token in answer.generated_tokens[self._num_read[index] :]]
        self._num_read[index] = len(answer.generated_tokens)

    def stop(self) -> None:
        self._batching.stop(block=False)
