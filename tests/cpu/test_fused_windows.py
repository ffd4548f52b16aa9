"""Windows of training in the steps of requests: gradients are those of whole sequences, and requests get what
they get without a window.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.adapters.factors import Factors, LayerFactors
from python_backends.engine.torch.adapters.slot_adapters import SlotAdapters
from python_backends.engine.torch.decoder import Decoder
from python_backends.engine.torch.step_batch import StepBatch, StepBatcher
from python_backends.engine.torch.training.model import TrainedModel
from python_backends.engine.torch.training.trainable import Trainable
from python_backends.finetuning.cursor import PackCursor
from python_backends.finetuning.jobs import Job
from python_backends.finetuning.pruning import plans
from python_backends.nouns.request import BASE, AdapterVersion, Ids, ModelLimits, Sampling
from python_backends.nouns.step import Admit, StepPlan
from python_backends.nouns.training import Keep, Pack, Window
from python_backends.scheduling.piece_time import loads
from tests.cpu.test_coserving import Server, assert_like, served
from tests.cpu.test_coserving import undisturbed as undisturbed
from tests.cpu.test_finetuning import new_job
from tests.support.tiny_models import VOCABULARY, TinyModel
from tests.support.training_reference import (
    difference,
    drawn,
    every_module,
    random_pack,
    targets,
    transformed,
    whole,
)

CPU = torch.device("cpu")
LENGTHS = (23, 9, 20)
PROMPTS = (5, 21, 30)  # of the requests; the second one has an adapter
BLOCK_TOKENS, BLOCKS_A_PROMPT, NUM_BLOCKS = 16, 3, 400
NO_TOKENS: Ids = np.zeros(0, np.int32)


class Served:
    """A model in float64 that has computed three prompts, and can be trained in blocks of the same cache."""

    def __init__(self, name: str) -> None:
        transformer = transformed(name, torch.float64)
        description = describe(transformer, 384)
        trainable = Trainable(transformer, description)
        self.decoder = Decoder(description, trainable.watch(take_layers(transformer)), 384)
        heads, num_layers = trainable.heads, len(trainable.small)
        shape = BlockShape(num_layers, BLOCK_TOKENS, heads.num_kv_heads, heads.head_dim, torch.float64)
        self.cache = KVCache(shape, NUM_BLOCKS + 1, CPU)
        self.model = TrainedModel(trainable, self.decoder.twin(), self.cache.twin())
        self.state = SlotState(
            ModelLimits(384, VOCABULARY, len(PROMPTS), NUM_BLOCKS, BLOCK_TOKENS), CPU, False, None
        )
        adapters = SlotAdapters(CPU)
        self._batcher = StepBatcher(self.state, self.cache, self.decoder.windows, adapters=adapters)
        self._num_steps = 0
        adapters.install("aa", self._weights())
        admits = [admit(slot) for slot in range(len(PROMPTS))]
        self.state.apply(admits)
        adapters.apply(admits)
        prompts = np.random.default_rng(4).integers(0, VOCABULARY, sum(PROMPTS)).astype(np.int32)
        batch = self._batcher.batch(plan_of([0] * len(PROMPTS), PROMPTS, 0, prompts))
        self.append(batch, self.decoder.forward(batch, self.cache))

    def _weights(self) -> list[LayerFactors]:
        generator = torch.Generator().manual_seed(9)

        def factors(weight: Tensor) -> Factors:
            out, width = weight.shape
            a, b = (
                torch.randn(size, generator=generator, dtype=torch.float64) for size in ((4, width), (out, 4))
            )
            return Factors(0.1 * a, 0.1 * b)

        return [
            {name: factors(each.weight) for name, each in block.projections.items()}
            for block in self.decoder.blocks
        ]

    def next_batch(self) -> StepBatch:
        """All requests decode."""
        starts = [length + self._num_steps for length in PROMPTS]
        self._num_steps += 1
        return self._batcher.batch(plan_of(starts, [1] * len(PROMPTS), len(PROMPTS), NO_TOKENS))

    def append(self, batch: StepBatch, logits: Tensor) -> None:
        self.state.append(batch.sampling_slots, logits.argmax(1))

    def borrowed(self, num_blocks: int) -> Ids:
        """Blocks that no request has, in no order."""
        free = np.arange(BLOCKS_A_PROMPT * len(PROMPTS), NUM_BLOCKS, dtype=np.int32)
        assert num_blocks <= len(free)
        return np.random.default_rng(3).permutation(free)[:num_blocks]


def admit(slot: int) -> Admit:
    blocks = np.arange(BLOCKS_A_PROMPT, dtype=np.int32) + BLOCKS_A_PROMPT * slot
    adapter = AdapterVersion("law", "1", "aa") if slot == 1 else BASE
    return Admit(slot, 0, Sampling(max_tokens=100), PROMPTS[slot], 0, blocks, adapter=adapter)


def plan_of(starts: Any, lengths: Any, num_decodes: int, tokens: Ids) -> StepPlan:
    count = len(PROMPTS)
    slots, generations = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
    firsts, counts = (np.array(each, np.int32) for each in (starts, lengths))
    return StepPlan(0, (), slots, generations, firsts, counts, num_decodes, np.ones(count, bool), tokens)


def window_of(pack: Pack, first: int, last: int) -> Window:
    return Window(first, last, loads(pack, first, last))


@pytest.mark.parametrize("name", ["llama_grouped", "qwen3", "mistral", "gemma2", "gpt_neox", "phi3"])
def test_gradients_are_those_of_whole_sequences_and_logits_those_without_a_window(name: str) -> None:
    """In float64. The adapter in training changes no row of a request, and theirs none of the window; some
    windows are in steps, some are not.
    """
    pack, one = random_pack(LENGTHS), Served(name)
    adapter = drawn(one.model, every_module(one.model))
    trained_layers = targets(one.model, adapter)
    expected_loss, expected = whole(name, adapter, pack, torch.float64)
    chosen = plans(one.model.facts, trained_layers, Keep.PRODUCTS)
    one.model.install(adapter, chosen)
    one.model.begin(pack, pack.num_labels, one.borrowed(one.model.num_blocks(pack, chosen)))
    cursor, loss = PackCursor(len(pack.tokens), len(one.model.facts)), 0.0
    for size in (9, 4, 7, 1, 100):
        first, last = cursor.take_window(size)
        if size != 7:
            batch = one.next_batch()
            alone = one.decoder.forward(batch, one.cache)
            with torch.inference_mode():
                together = one.model.step(batch, window_of(pack, first, last), one.cache)
            assert float((together - alone).abs().max()) <= 1e-12 * float(alone.abs().max())
            one.append(batch, alone)
        one.model.window(first, last)
        while cursor.is_loss_due:
            loss += one.model.loss(*cursor.take_loss(5))
    while not cursor.is_done:
        one.model.backward(cursor.take_backward(8))
    assert abs(loss - expected_loss) <= 1e-12 * expected_loss
    assert difference(one.model.gradients(), expected) <= 1e-12


def test_the_adapters_of_the_test_change_what_they_should() -> None:
    """Without the adapter of the second request its logits are others: the comparison above would notice."""
    one = Served("llama_grouped")
    batch = one.next_batch()
    with_adapter = one.decoder.forward(batch, one.cache)
    assert len(batch.adapters) == 1
    without = one.decoder.forward(replace(batch, adapters=()), one.cache)
    changes = (without - with_adapter).abs().amax(1)
    order = [int(slot) for slot in batch.sampling_slots]
    assert [float(changes[order.index(slot)]) > 1e-3 for slot in range(len(PROMPTS))] == [False, True, False]


@pytest.fixture(scope="module")
def expected(tiny: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The answers without a job."""
    idle = Server(tiny("llama_grouped"), tmp_path_factory.mktemp("none"))
    answers = served(idle)
    idle.close()
    return answers


def test_texts_and_losses_are_the_same_with_windows_in_steps(
    one: TinyModel, undisturbed: Job, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls, step = 0, TrainedModel.step

    def counted(model: TrainedModel, decodes: StepBatch, window: Window, cache: KVCache) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        return step(model, decodes, window, cache)

    monkeypatch.setattr(TrainedModel, "step", counted)
    server, job = Server(one, tmp_path, windows="fused"), new_job(tmp_path, steps=12)
    assert served(server) == expected
    assert len(job.losses) > 0, "it was trained while requests decoded"
    server.train(job)
    server.close()
    assert num_calls > 0
    assert server.scheduler.outlook.step_time.window_time.most_tokens > 16
    assert_like(job, undisturbed)


def test_a_window_that_can_not_be_computed_in_a_step_is_computed_alone(
    one: TinyModel, undisturbed: Job, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_calls = 0

    def broken(model: TrainedModel, decodes: StepBatch, window: Window, cache: KVCache) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        model.decoder.forward(decodes, cache)
        raise RuntimeError("no memory for a window")

    monkeypatch.setattr(TrainedModel, "step", broken)
    server, job = Server(one, tmp_path, windows="fused"), new_job(tmp_path, steps=12)
    assert served(server) == expected
    server.train(job)
    server.close()
    assert num_calls > 0
    assert_like(job, undisturbed)


def test_a_window_whose_blocks_were_taken_back_before_the_launch_is_left_out(
    one: TinyModel, undisturbed: Job, expected: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests' rows are computed; the mini-batch begins again."""
    server, job = Server(one, tmp_path, windows="fused"), new_job(tmp_path, steps=12)
    launch, num_revoked = server.engine.launch, 0

    def revoking(plan: StepPlan) -> None:
        nonlocal num_revoked
        blocks = server.scheduler.blocks
        if plan.window is not None and num_revoked < 2:
            num_revoked += 1
            blocks.drop(blocks.take(blocks.num_available))
        launch(plan)

    monkeypatch.setattr(server.engine, "launch", revoking)
    assert served(server) == expected
    server.train(job)
    server.close()
    assert num_revoked == 2
    assert_like(job, undisturbed)
