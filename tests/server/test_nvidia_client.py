"""Clients of TensorRT-LLM's ensemble: the calls of NVIDIA's own client, and that client itself if it is at
hand.

GAPLESS_NVIDIA_CLIENT names its file: `inflight_batcher_llm/client/end_to_end_grpc_client.py` of the
repository triton-inference-server/tensorrtllm_backend, for example at commit 0ec6c0c. It runs unchanged;
there is no copy here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import np_to_triton_dtype

from tests.server.test_serving import some_word
from tests.support.server.expected import PROMPT, Expected
from tests.support.server.serving import Gapless

NAME = "GAPLESS_NVIDIA_CLIENT"
FILE = os.environ.get(NAME, "")
GREEDY = {"beam_width": np.int32(1), "temperature": np.float32(0)}
nvidia = pytest.mark.skipif(not FILE, reason=f"{NAME} names no file of NVIDIA's client")


def ask(gapless: Gapless, prompt: str, **inputs: Any) -> list[Any]:
    """All responses to one request, asked as that client does: values of
    shape [1, 1]; the stream is closed first.
    """
    inputs = {"text_input": prompt.encode(), **GREEDY, **inputs}
    tensors = []
    for name, value in inputs.items():
        array = np.array([[value]], object if isinstance(value, bytes) else None)
        tensors.append(triton.InferInput(name, array.shape, np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    news: SimpleQueue[tuple[Any, Any]] = SimpleQueue()
    with triton.InferenceServerClient(f"127.0.0.1:{gapless.grpc_port}") as client:
        client.start_stream(lambda result, error: news.put((result, error)))
        client.async_stream_infer("ensemble", tensors, request_id="")
        client.stop_stream()
    answers = [news.get() for _ in range(news.qsize())]
    assert [error for _, error in answers if error is not None] == []
    return [result for result, _ in answers]


@pytest.mark.parametrize("streams", [True, False])
def test_outputs_have_tensorrt_llms_shapes(gapless: Gapless, expected: Expected, streams: bool) -> None:
    counts = {"return_num_input_tokens": np.bool_(True), "return_num_output_tokens": np.bool_(True)}
    limits = {"max_tokens": np.int32(40), "min_tokens": np.int32(40)}
    results = ask(gapless, PROMPT, **limits, stream=np.bool_(streams), **counts)
    texts = [result.as_numpy("text_output") for result in results]
    assert {text.shape for text in texts} == {(1,)}
    whole = expected.text(PROMPT, max_tokens=40, min_tokens=40)
    assert "".join(text[0].decode("utf-8") for text in texts) == whole
    assert [result.as_numpy("batch_index")[0][0] for result in results] == [0] * len(results)
    assert (len(results) > 1) == streams
    for name in ("num_input_tokens", "num_output_tokens"):
        arrays = [result.as_numpy(name) for result in results]
        assert {(array.shape, array.dtype.name) for array in arrays} == {((1, 1), "int32")}
    assert {result.as_numpy("num_input_tokens")[0][0] for result in results} == {len(expected.ids(PROMPT))}
    assert sum(result.as_numpy("num_output_tokens")[0][0] for result in results) == 40


@pytest.mark.parametrize("streams", [True, False])
def test_each_response_counts_its_own_tokens(gapless: Gapless, expected: Expected, streams: bool) -> None:
    """Triton's OpenAI front end adds them up. The answer ends with a stop word."""
    word = some_word(expected.text(PROMPT, max_tokens=60, min_tokens=1))
    asked = {"max_tokens": 60, "min_tokens": 1, "stop_words": [word], "return_num_output_tokens": True}
    count = gapless.generate(text_input=PROMPT, **asked)["num_output_tokens"]
    limits = {"max_tokens": np.int32(60), "min_tokens": np.int32(1), "stop_words": word.encode()}
    counts = {"return_num_output_tokens": np.bool_(True)}
    results = ask(gapless, PROMPT, stream=np.bool_(streams), **limits, **counts)
    assert sum(result.as_numpy("num_output_tokens")[0][0] for result in results) == count
    tokens = expected.tokens(PROMPT, max_tokens=60, min_tokens=1)[:count]
    assert word in expected.decode(tokens)
    assert word not in expected.decode(tokens[:-1])


def run(gapless: Gapless, prompt: str, *options: str) -> str:
    """What NVIDIA's client prints, once all is well."""
    url = f"127.0.0.1:{gapless.grpc_port}"
    command = [sys.executable, FILE, "-u", url, "-p", prompt, "--temperature", "0", *options]
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(command, capture_output=True, encoding="utf-8", env=environment, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@nvidia
def test_nvidias_client_prints_an_answer(gapless: Gapless, expected: Expected) -> None:
    assert Path(FILE).is_file()
    assert run(gapless, PROMPT, "-o", "40") == f"0: {expected.text(PROMPT, max_tokens=40)}\n"


@nvidia
def test_nvidias_client_streams_an_answer(gapless: Gapless, expected: Expected) -> None:
    text = expected.text(PROMPT, max_tokens=60)
    printed = run(gapless, PROMPT, "-o", "60", "--streaming")
    assert printed.endswith(f"\n{text}\n")
    assert printed.count("[[0]] [b") > 3, "it shows every response"


@nvidia
def test_nvidias_client_asks_one_prompt_after_the_other(gapless: Gapless, expected: Expected) -> None:
    prompts = [f"{PROMPT} {n}" for n in range(3)]
    printed = run(gapless, json.dumps(prompts), "-o", "20")
    assert printed == "".join(f"0: {expected.text(each, max_tokens=20)}\n" for each in prompts)


@nvidia
def test_nvidias_client_passes_its_options_on(gapless: Gapless, expected: Expected) -> None:
    text = expected.text(PROMPT, max_tokens=60)
    word = some_word(text)
    printed = partial(run, gapless, PROMPT, "-o", "60")
    assert printed("--stop-words", "never there", word) == f"0: {text.split(word)[0]}\n"
    ended = expected.text(PROMPT, max_tokens=60, stop_ids=(0, 3))
    assert printed("--end-id", "3", "--pad-id", "0") == f"0: {ended}\n"
    penalties = ("--repetition-penalty", "1.0", "--presence-penalty", "0", "--frequency-penalty", "0")
    assert printed(*penalties) == f"0: {text}\n"
    assert "beam_width = 2: not supported yet" in printed("--beam-width", "2")
