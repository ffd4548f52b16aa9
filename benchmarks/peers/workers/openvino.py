"""OpenVINO GenAI's continuous batching over the checkpoint as optimum-intel converts it, with weights as they
are, or rounded by NNCF; runs in the environment of the same name.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common.scored_text import Scores
from benchmarks.common.work import KV_POOL_GIB, PEER_TOKEN_BUDGET, Job, Timing, Work, closed_loop, num_cores

DTYPES = {"bfloat16": "bf16", "float32": "f32"}
# of NNCF; with 4 bits embedding and head are int8. Groups of 128 divide neither SmolLM2's width nor M's
ROUNDED: dict[str, dict[str, Any]] = {
    "int8": {"mode": "INT8_SYM"},
    "int4": {"mode": "INT4_ASYM", "group_size": 64, "ratio": 1.0},
}
MODEL = "openvino_model.xml"


def converted(directory: Path, weights: str) -> Path:
    return directory / f"openvino-{weights}"


def prepare(directory: Path, weights: str) -> None:
    """Converts the checkpoint, in its folder; weights that are not rounded keep their type."""
    plain, rounded = converted(directory, "same"), converted(directory, weights)
    if not plain.exists():
        from optimum.exporters.openvino import main_export

        main_export(str(directory), plain, task="text-generation-with-past", convert_tokenizer=False)
    if not rounded.exists():
        import nncf
        import openvino

        options = ROUNDED[weights] | {"mode": nncf.CompressWeightsMode[ROUNDED[weights]["mode"]]}
        model = nncf.compress_weights(openvino.Core().read_model(plain / MODEL), **options)
        shutil.copytree(plain, rounded, ignore=shutil.ignore_patterns("openvino_model.*"))
        openvino.save_model(model, rounded / MODEL, compress_to_fp16=False)


class Engine:
    """Computation in `dtype` where the processor multiplies it, else in float32; KV as well unless it is left
    to OpenVINO. All requests share one pipeline.
    """

    def __init__(
        self,
        directory: Path,
        dtype: str,
        in_flight: int,
        _max_model_tokens: int,
        default_kv_precision: bool = False,
        weights: str = "same",
    ) -> None:
        import openvino
        import openvino_genai

        has_bfloat16 = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        precision = DTYPES[dtype] if has_bfloat16 else "f32"  # KV in bfloat16 is refused there
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.max_num_batched_tokens = PEER_TOKEN_BUDGET
        scheduler.max_num_seqs = in_flight
        scheduler.cache_size = KV_POOL_GIB
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = False
        self._properties = {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": num_cores()}
        if not default_kv_precision:
            self._properties["KV_CACHE_PRECISION"] = precision
        self._model = converted(directory, weights)
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(
            str(self._model), scheduler, "CPU", self._properties
        )
        self._answers: dict[int, Any] = {}
        self._num_asked = 0

    def run(self, work: Work) -> list[Timing]:
        return closed_loop(work, self._submit, self._step)

    def score(self, texts: Sequence[Sequence[int]]) -> list[Scores]:
        """By the model without the pipeline, which tells no likeliest tokens of prompts."""
        import openvino

        model = openvino.Core().compile_model(self._model / MODEL, "CPU", self._properties)
        return [scores_of(model, text) for text in texts]

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


def scores_of(model: Any, text: Sequence[int]) -> Scores:
    size = len(text)
    request = model.create_infer_request()
    request.reset_state()
    found = request.infer(
        {
            "input_ids": np.array([text], np.int64),
            "attention_mask": np.ones((1, size), np.int64),
            "position_ids": np.arange(size, dtype=np.int64)[None],
            "beam_idx": np.zeros(1, np.int32),
        }
    )
    logits = found["logits"][0, :-1].astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    chosen = logits[np.arange(size - 1), text[1:]] - np.log(np.exp(logits).sum(-1))
    return Scores(chosen.tolist(), logits.argmax(-1).tolist())
