"""OpenVINO GenAI's continuous batching over the checkpoint as optimum-intel converts it; runs in the environment of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_work import PEER_TOKEN_BUDGET, Job, Timing, Work, closed_loop, num_cores

CACHE_GIB = 1
DTYPES = {"bfloat16": "bf16", "float32": "f32"}


class Engine:
    """Weights, computation and KV in `dtype`; all requests share one pipeline, which is driven step by step."""

    def __init__(self, directory: Path, dtype: str, in_flight: int) -> None:
        import openvino_genai

        converted = directory / "openvino"
        if not converted.exists():
            convert(directory, converted)
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = PEER_TOKEN_BUDGET
        scheduler.max_num_seqs = in_flight
        scheduler.cache_size = CACHE_GIB
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        precision = {"INFERENCE_PRECISION_HINT": DTYPES[dtype], "KV_CACHE_PRECISION": DTYPES[dtype]}
        properties = {**precision, "INFERENCE_NUM_THREADS": num_cores()}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(str(converted), scheduler, "CPU", properties)
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

    def _step(self) -> Iterator[tuple[int, int]]:
        import openvino_genai

        self._pipeline.step()
        for index, answer in list(self._answers.items()):
            while answer.can_read():
                yield index, sum(len(output.generated_ids) for output in answer.read().values())
            if answer.get_status() == openvino_genai.GenerationStatus.FINISHED:
                del self._answers[index]


def convert(checkpoint: Path, converted: Path) -> None:
    """The weights keep the checkpoint's type."""
    from optimum.exporters.openvino import main_export

    main_export(str(checkpoint), converted, task="text-generation-with-past", convert_tokenizer=False)
