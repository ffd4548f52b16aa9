"""A real server is trained and sampled from step by step, as Tinker's SDK asks, while it serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from front.tinker.proto import FLOAT32, INT64, ForwardBackwardOutput, ForwardBackwardRequest
from tests.support.server.serving import Gapless, wait_for
from tests.support.tinker_bodies import Opened, said

RATE = {"learning_rate": 5e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12, "weight_decay": 0.0}
STEPS = 8


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def gapless(tmp_path_factory: pytest.TempPathFactory, adapters: Path) -> Iterator[Gapless]:
    with Gapless(
        **{
            "model.dtype": "float32",
            "engine.kind": "torch",
            "engine.threads": 1,
            "finetuning.directory": tmp_path_factory.mktemp("finetuning"),
            "adapters.directory": adapters,
        }
    ) as served:
        yield served


@pytest.fixture(scope="module")
def front(gapless: Gapless) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{gapless.front_port}", timeout=120) as client:
        yield client


@pytest.fixture
def opened(gapless: Gapless, front: httpx2.Client) -> Iterator[Opened]:
    with httpx2.Client(base_url=f"http://127.0.0.1:{gapless.front_port}/api/v1/", timeout=120) as client:
        model = said(front.get("/v1/models"))["data"][0]["id"]
        yield Opened(client, model)


def tokens(front: httpx2.Client, text: str) -> list[int]:
    return said(front.post("/tokenize", json={"prompt": text}))["tokens"]  # type: ignore[no-any-return]


def examples(front: httpx2.Client) -> Any:
    """Of a task that the model has not learned: words are given back in capital letters."""
    request = ForwardBackwardRequest(loss_fn="cross_entropy")
    for word in ("river", "engine", "bread", "garden"):
        asked, answer = tokens(front, f"Shout: {word}"), tokens(front, word.upper())
        whole = np.array(asked + answer)
        weights = np.array([0.0] * (len(asked) - 1) + [1.0] * len(answer), np.float32)
        tensors = (("target_tokens", INT64, whole[1:].astype(np.int64)), ("weights", FLOAT32, weights))
        request.data.add(
            model_input=[{"encoded_text": {"tokens": whole[:-1].astype(np.int32).tobytes()}}],
            loss_fn_inputs=[
                {"key": name, "value": {"dense": values.tobytes(), "dtype": dtype}}
                for name, dtype, values in tensors
            ],
        )
    return request


def loss_of(opened: Opened, promise: httpx2.Response) -> float:
    found = ForwardBackwardOutput.FromString(opened.awaited(said(promise)).content)
    assert found.loss_fn_outputs[0].num_datums == 4
    return float(found.metrics[0].value)


def trained(opened: Opened, front: httpx2.Client) -> list[float]:
    """The losses of each step, which are asked for before the pass before has ended."""
    losses = []
    for step in range(STEPS):
        passed = opened.learn(2 * step + 1, examples(front))
        stepped = opened.asked("optim_step", 2 * step + 2, adam_params=RATE)
        losses.append(loss_of(opened, passed))
        assert opened.awaited(said(stepped)).json()["metrics"]["grad_norm"] > 0
    return losses


def test_the_loss_falls_and_samples_change_and_streams_beside_it_do_not(
    gapless: Gapless, front: httpx2.Client, opened: Opened, adapters: Path
) -> None:
    base = {"sampling_params": {"max_tokens": 8, "temperature": 0.0, "seed": 1}, "num_samples": 2}
    base["prompt"] = {"chunks": [{"type": "encoded_text", "tokens": tokens(front, "Shout: river")}]}
    before = opened.sampled(opened.sampler(), **base)
    asked = {"text_input": "def read_lines(self, size", "max_tokens": 40, "min_tokens": 40}
    wanted = gapless.generate(**asked)["text_output"]
    texts, over = list[str](), threading.Event()

    def stream() -> None:
        while not over.is_set():
            texts.append(gapless.generate(**asked)["text_output"])

    streams = [threading.Thread(target=stream) for _ in range(16)]
    for thread in streams:
        thread.start()
    try:
        losses = trained(opened, front)
    finally:
        over.set()
        for thread in streams:
            thread.join()
    assert set(texts) == {wanted}
    assert losses[-1] < losses[0] / 2
    saved = opened.awaited(said(opened.asked("save_weights_for_sampler", 2 * STEPS + 1)))
    after = opened.sampled(saved.json()["sampling_session_id"], **base)
    for found in (before, after):
        first, second = found.sequences
        assert first.tokens == second.tokens, "the most probable tokens, twice"
        assert len(first.logprobs) == len(first.tokens)
    assert after.sequences[0].tokens != before.sequences[0].tokens
    named = opened.asked("save_weights_for_sampler", 2 * STEPS + 2, path="shout")
    path = opened.awaited(said(named)).json()["path"]
    again = opened.sampled(opened.sampler(model_path=path), **base)
    assert again.sequences[0].tokens == after.sequences[0].tokens
    assert path.endswith("/shout@1")
    opened.finish()
    wait_for(lambda: sorted(each.name for each in adapters.iterdir()) == ["shout"], 30)
    assert said(front.get("/v1/fine_tuning/jobs"))["data"][0]["status"] == "cancelled"
    assert said(front.delete("/v1/models/shout@1"))["deleted"]
    wait_for(lambda: "shout" not in {each["id"] for each in said(front.get("/v1/models"))["data"]}, 30)


@pytest.mark.slow
def test_a_model_whose_instance_has_died_has_failed_and_another_goes_on_from_its_saved_state(
    gapless: Gapless, front: httpx2.Client, opened: Opened
) -> None:
    first = loss_of(opened, opened.learn(1, examples(front)))
    opened.awaited(said(opened.asked("optim_step", 2, adam_params=RATE)))
    saved = opened.awaited(said(opened.asked("save_weights", 3, path="kept"))).json()["path"]
    stepped = loss_of(opened, opened.learn(4, examples(front)))
    assert stepped < first
    gapless.kill(gapless.instance_pid())
    request = said(opened.asked("optim_step", 5))
    failed = opened.awaited(request).json()
    assert failed["category"] == "server"
    assert "the instance that trained it has ended" in failed["error"]
    opened.finish()
    other = Opened(opened.asks, said(front.get("/v1/models"))["data"][0]["id"])
    loaded = other.asked("load_weights", 1, path=saved, optimizer=True)
    assert other.awaited(said(loaded)).json()["type"] == "load_weights"
    assert loss_of(other, other.learn(2, examples(front))) == pytest.approx(stepped, rel=1e-4)
    other.finish()
