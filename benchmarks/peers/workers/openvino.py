"""OpenVINO GenAI's continuous batching over the checkpoint as optimum-intel converts it; runs in the
environment of the same name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.work import KV_POOL_GIB, PEER_TOKEN_BUDGET, Job, Timing, Work, closed_loop, num_cores

CONVERTED = "openvino"
DTYPES = {"bfloat16": "bf16", "float32": "f32"}


def prepare(directory: Path, _dtype: str) -> None:
    """Converts the checkpoint, in its folder; the weights keep their type."""
    if not (directory / CONVERTED).exists():
        from optimum.exporters.openvino import main_export

        main_export(
            str(directory), directory / CONVERTED, task="text-generation-with-past", convert_tokenizer=False
        )


class Engine:
    """Weights and computation in `dtype`, KV as well unless it is left to
    OpenVINO; all requests share one pipeline.
    """

    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        _max_model_tokens: int,
        token_budget: int = PEER_TOKEN_BUDGET,
        default_kv_precision: bool = False,
    ) -> None:
        import openvino_genai

        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = token_budget
        scheduler.max_num_seqs = in_flight
        scheduler.cache_size = KV_POOL_GIB
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        properties = {"INFERENCE_PRECISION_HINT": DTYPES[dtype], "INFERENCE_NUM_THREADS": num_cores()}
        if not default_kv_precision:
            properties["KV_CACHE_PRECISION"] = DTYPES[dtype]
        converted = str(directory / CONVERTED)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(converted, scheduler, "CPU", properties)
        self._answers: dict[int, Any] = {}
        self._num_asked = 0

    def run(self, work: Work) -> list[Timing]:
        return closed_loop(work, self._submit, self._step)

    def _submit(self, index: int, job: Job) -> None:
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.set_eos_token_id(0)
        config.ignore_eos, config.do_sample, config.max_new_tokens = True, False, job.max_tokens
        prompt = openvino.Tensor(np.array([job.prompt], np.int64))
        self._answers[index] = self._pipeline.add_request(self._num_asked, prompt, config)
        self._num_asked += 1

    def _step(self) -> Iterator[tuple[int, list[int]]]:
        import openvino_genai

        self._pipeline.step()
        for index, answer in list(self._answers.items()):
            while answer.can_read():
                yield index, [token for output in answer.read().values() for token in output.generated_ids]
            if answer.get_status() == openvino_genai.GenerationStatus.FINISHED:
                del self._answers[index]
