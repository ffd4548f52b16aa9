"""transformers' own continuous batching, its loop on its own thread as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from benchmarks.common.work import Job, Timing, Work, closed_loop


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
