"""The fused block, its attention and its products are those of transformers' modules."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM

from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.weights import describe, take_layers
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.decoder import Decoder, StepInputs, rotary_tables
from python_backends.engine.torch.projection import Projection, can_pack
from python_backends.engine.torch.step_batch import StepBatch, StepBatcher, group_ends
from python_backends.nouns.request import ModelLimits, Sampling
from python_backends.nouns.step import Admit, StepPlan
from tests.support.model_source import read_from
from tests.support.tiny_models import VOCABULARY, TinyModel

BLOCK_TOKENS = 4
LENGTHS = (5, 1, 13)


@torch.inference_mode()
def test_the_fused_block_is_the_block_of_transformers(each: TinyModel) -> None:
    """Three prompts in one flat batch, with exactly the hidden states that
    transformers' block gets, layer by layer.
    """
    model = copy.deepcopy(each.model)
    prompts = [
        torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))
        for length in LENGTHS
    ]
    states = [model.base_model(prompt, output_hidden_states=True).hidden_states for prompt in prompts]
    decoder = _decoder(model)
    batch, cache = _flat_batch(each, prompts, decoder.windows)
    step = StepInputs(batch, decoder.rotations(batch.positions), cache)
    num_padding = len(batch.tokens) - sum(LENGTHS)
    assert num_padding > 0
    # transformers gives the last block's output after the norm
    for index, (block, following) in enumerate(pairwise(decoder.blocks)):
        x = functional.pad(torch.cat([state[index][0] for state in states]), (0, 0, 0, num_padding))
        added = block.forward(x, None, step)
        normed = following.norm.after(x, added, block.residual_scale)
        expected = torch.cat([state[index + 1][0] for state in states])
        torch.testing.assert_close(x[: len(expected)], expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(normed, following.norm.of(x))


@torch.inference_mode()
def test_logits_are_those_of_transformers_and_only_of_rows_that_sample(each: TinyModel) -> None:
    prompts = [
        torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(length))
        for length in LENGTHS
    ]
    expected = torch.cat([each.model(prompt).logits[:, -1] for prompt in prompts])
    decoder = _decoder(copy.deepcopy(each.model))
    batch, cache = _flat_batch(each, prompts, decoder.windows)
    logits = decoder.forward(batch, cache)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_product_is_the_plain_one_and_the_plain_weight_comes_back(
    dtype: torch.dtype, bias: bool
) -> None:
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn((96, 64), generator=generator).to(dtype)
    offset = torch.randn(96, generator=generator).to(dtype) if bias else None
    projection = Projection(weight, offset)
    assert projection.is_packed == can_pack(weight)
    assert torch.equal(projection.weight, weight)
    for rows in (1, 7, 64):
        x = torch.randn((rows, 64), generator=generator).to(dtype)
        torch.testing.assert_close(projection.forward(x), torch.nn.functional.linear(x, weight, offset))


def test_rotary_tables_are_transformers_angles_with_the_first_half_of_sin_negated() -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 10_000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        num_hidden_layers=1,
        max_position_embeddings=256,
        rope_parameters=rope,
    )
    model = LlamaForCausalLM(config)
    cos, sin = rotary_tables(describe(*read_from(model), 256).rotaries[0], 256, torch.float32)
    expected_cos, expected_sin = model.model.rotary_emb(torch.zeros(1), torch.arange(256)[None])
    assert torch.equal(cos, expected_cos[0])
    assert torch.equal(torch.cat((-sin[:, :8], sin[:, 8:]), 1), expected_sin[0])


def test_rows_of_very_different_length_are_read_in_groups_of_their_own() -> None:
    assert group_ends(np.array([], np.int32)) == []
    assert group_ends(np.array([7], np.int32)) == [1]
    assert group_ends(np.array([90, 95, 100], np.int32)) == [3]
    assert group_ends(np.array([10, 20, 30, 400], np.int32)) == [3, 4]
    assert group_ends(np.array([10, 20, 30, 400, 410, 4000], np.int32)) == [3, 5, 6]


def _decoder(model: Any) -> Decoder:
    facts, weights = read_from(model)
    return Decoder(describe(facts, weights, 64), take_layers(facts, weights), 64)


def _flat_batch(
    tiny: TinyModel, prompts: list[Tensor], windows: tuple[int | None, ...]
) -> tuple[StepBatch, KVCache]:
    """A step that prefills all `prompts` at once into blocks that lie scattered."""
    facts, _ = read_from(tiny.model)
    shape = BlockShape(facts.num_layers, BLOCK_TOKENS, facts.num_kv_heads, facts.head_dim, torch.float32)
    limits = ModelLimits(64, VOCABULARY, len(prompts), 48, BLOCK_TOKENS)
    cache, state = (
        KVCache(shape, limits.num_blocks + 1, torch.device("cpu")),
        SlotState(limits, torch.device("cpu")),
    )
    blocks = np.random.default_rng(0).permutation(48).reshape(len(prompts), 16).astype(np.int32)
    lengths = np.array([prompt.shape[1] for prompt in prompts], np.int32)
    admits = tuple(
        Admit(slot, 1, Sampling(8), int(length), 0, blocks[slot]) for slot, length in enumerate(lengths)
    )
    state.apply(admits)
    count = len(prompts)
    plan = StepPlan(
        number=0,
        operations=admits,
        slots=np.arange(count, dtype=np.int32),
        slot_generations=np.ones(count, np.int32),
        first_starts=np.zeros(count, np.int32),
        lengths=lengths,
        num_decodes=0,
        samples=np.ones(count, np.bool_),
        tokens=torch.cat(prompts, 1)[0].numpy().astype(np.int32),
    )
    return StepBatcher(state, cache, windows).batch(plan), cache
