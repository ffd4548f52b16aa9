"""The whole of Gapless: launcher, Triton and instance, asked over HTTP, streaming, by a client on the same
processors.

A response may carry several tokens: all of them came when it came. The prompts are the work's own ids, as
text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.common.http_streams import EnsembleStreams
from benchmarks.common.models import num_tokens, text_of
from benchmarks.common.work import (
    BLOCK_TOKENS,
    PEER_TOKEN_BUDGET,
    Job,
    Timing,
    Work,
    kv_blocks,
)
from python_backends.linux.loop_processor import keep_off
from tests.support.server.serving import Gapless


class Engine:
    def __init__(
        self, directory: Path, dtype: str, in_flight: int, max_model_tokens: int, weights: str = "same"
    ) -> None:
        model = {
            "model.directory": directory,
            "model.dtype": dtype,
            "model.weights": weights,
            "model.max_model_tokens": max_model_tokens,
        }
        engine = {
            "engine.slots": in_flight,
            "engine.block_tokens": BLOCK_TOKENS,
            "engine.kv_blocks": kv_blocks(directory, dtype),
            "engine.token_budget": PEER_TOKEN_BUDGET,
        }
        self._served = Gapless(**model, **engine)
        self._streams = EnsembleStreams(
            self._served.http_port, in_flight, lambda event: num_tokens(event["text_output"])
        )
        self.pid = self._served.process.pid
        keep_off()  # as Triton does: a client elsewhere would take nothing of the loop's processor

    def run(self, work: Work) -> list[Timing]:
        return self._streams.run([body_of(job) for job in work.jobs])

    def close(self) -> None:
        self._streams.close()
        self._served.stop()


def body_of(job: Job) -> dict[str, Any]:
    """The request of `job`: its messages, or the text of its ids."""
    asked = {"messages": job.messages} if job.messages else {"text_input": text_of(job.prompt)}
    return {**asked, "max_tokens": job.max_tokens, "stream": True}
