"""A device that computes after it was told, as a GPU does: a piece of training is as long as the device takes
for it, and no token is late because of it.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from python_backends.finetuning import jobs
from python_backends.finetuning.datasets import Example
from python_backends.finetuning.pieces import Kind
from python_backends.instance import training as module
from python_backends.instance.spare_time import SpareTime
from python_backends.instance.training import Training
from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import PROJECTIONS, Adam, LayerFacts, Tile
from python_backends.scheduling.state.blocks import BlockPool
from python_backends.scheduling.step_time import StepTime

NUM_LAYERS, CONTEXT, SLOTS = 32, 512, 8
TPOT_S, STEP_S = 0.045, 0.016
TOLD_S = 1e-5  # to tell a device of an operator


class Device:
    """Its clock is the only one: it goes on while the device is told of operators, and while someone
    waits.
    """

    def __init__(self) -> None:
        self.now_s = self._free_s = 100.0

    def clock(self) -> float:
        return self.now_s

    def told(self, num_operators: int, seconds: float = 0.0) -> None:
        """Of work that takes so long."""
        self.now_s += TOLD_S * num_operators
        self._free_s = max(self._free_s, self.now_s) + seconds

    def wait(self) -> None:
        self.now_s = max(self.now_s, self._free_s)


class FakeAdapter:
    """Of a model of Llama-3.1-8B's size: 3 ms for a tile of 512 tokens forward, 7 backward; to begin a pack
    keeps the host for 15 ms. It is a pack, too.
    """

    facts: ClassVar = tuple(LayerFacts(4096, 4096, 1024, 28672) for _ in range(NUM_LAYERS))
    targets: ClassVar = {layer: frozenset(PROJECTIONS) for layer in range(NUM_LAYERS)}
    state: ClassVar[dict[str, Any]] = {}
    tile_tokens = 2048

    def __init__(self, device: Device) -> None:
        self._device, self.wait = device, device.wait
        self.tiles: list[int] = []  # tokens of those backward

    def install(self, plans: Any) -> None: ...

    def num_blocks(self, pack: Any, plans: Any) -> int:
        return len(pack.tokens)

    def begin(self, *_: Any) -> FakeAdapter:
        self._device.told(1500)
        return self

    def forward(self, tile: Tile) -> None:
        self._device.told(60, 0.001 + 4e-6 * (tile.last - tile.first))

    def loss(self, first: int, last: int) -> float:
        self._device.told(50, 0.001 + 1e-5 * (last - first))
        self._device.wait()
        return 1.0

    def backward(self, tile: Tile) -> None:
        self.tiles.append(tile.last - tile.first)
        self._device.told(200, 0.001 + 1e-5 * (tile.last - tile.first))

    log_probs: ClassVar = np.zeros(1, np.float32)

    def keep_gradients(self) -> None: ...

    def clip(self, max_norm: float) -> float:
        self._device.told(600, 0.005)
        self._device.wait()
        return 1.0

    def update(self, layer: int, adam: Adam) -> None:
        self._device.told(40, 0.001)


def job(directory: Path) -> jobs.Job:
    examples = [Example(np.arange(CONTEXT, dtype=np.int32), np.ones(CONTEXT, np.bool_)) for _ in range(64)]
    options = {"suffix": "random", "rank": 16, "alpha": 32, "targets": ["q_proj"], "learning_rate": 1e-4}
    fields = {
        "model": "random",
        "hyperparameters": {"batch_size": 8},
        "seed": 1,
        "gapless": {**options, "steps": 10**6},
    }
    return jobs.create(directory, examples, fields)


def decodes(number: int) -> StepPlan:
    zeros, ones = np.zeros(SLOTS, np.int32), np.ones(SLOTS, np.int32)
    starts = np.full(SLOTS, CONTEXT, np.int32)
    slots = np.arange(SLOTS, dtype=np.int32)
    return StepPlan(number, (), slots, zeros, starts, ones, SLOTS, ones.astype(np.bool_), zeros[:0], number)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=device.clock))
    return device


@pytest.fixture
def adapter(device: Device) -> FakeAdapter:
    return FakeAdapter(device)


@pytest.fixture
def training(adapter: FakeAdapter, tmp_path: Path) -> Training:
    engine = SimpleNamespace(can_train=True, start_training=lambda: lambda *_: adapter)
    limits = SimpleNamespace(max_model_tokens=2 * CONTEXT, vocab_size=CONTEXT)
    made = Training(engine, limits, BlockPool(10_000, 32))  # type: ignore[arg-type]
    made.offer(job(tmp_path), ExitStack())
    return made


def gaps_s(device: Device, training: Training, seconds: float) -> list[float]:
    """From token to token, after 3 s in which there was no request."""
    spare, times = SpareTime([training], TPOT_S, clock=device.clock), StepTime()
    until_s = device.now_s + 3
    while device.now_s < until_s:
        spare.use(None, times, False)
    found, until_s, last_s = [], device.now_s + seconds, device.now_s
    while device.now_s < until_s:
        plan = decodes(len(found))
        spare.use(plan, times, False)
        began_s = device.now_s
        device.told(100, STEP_S)
        device.wait()
        times.observe(plan, device.now_s - began_s)
        found.append(device.now_s - last_s)
        last_s = device.now_s
    return found[8:]  # the times of steps are known


def test_in_the_slack_of_decodes_packs_are_trained_and_no_token_is_late(
    device: Device, adapter: FakeAdapter, training: Training
) -> None:
    found = gaps_s(device, training, 10.0)
    assert np.percentile(found, 99) <= TPOT_S
    assert sum(adapter.tiles) / NUM_LAYERS / (device.now_s - 100) > 1000, "tokens a second"


def test_a_piece_takes_until_the_device_is_done(device: Device, training: Training) -> None:
    gaps_s(device, training, 5.0)
    for kind, least_s in ((Kind.FORWARD, 0.001), (Kind.BACKWARD, 0.001), (Kind.UPDATE, 0.001)):
        assert training._times[kind].expected_s((1, 256, 256 * 128.0)) >= least_s, kind
