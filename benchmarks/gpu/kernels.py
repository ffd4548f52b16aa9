"""Checks of our kernels: what each computes compared with torch's operators, on any device where they run.
Called by `checks.py`, and in the interpreter of the Triton language by the tests.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.report import Figure
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.description import Activation, Heads, Linear, Norm, NormKind
from python_backends.engine.model.quantised import quantise
from python_backends.engine.slots.columns import Column, Share
from python_backends.engine.slots.sampler import Draws, Restrictions, SamplingRows, sample
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.attention import attend, score_operator
from python_backends.engine.torch.attention_spans import AttentionSpans, LayerAttention, PagedSpans
from python_backends.engine.torch.experts import expert_products
from python_backends.engine.torch.operators import ResidualNorm, gate_operator
from python_backends.engine.torch.projection import MOST_KERNEL_ROWS, Int8Projection
from python_backends.engine.torch.step_batch import StepBatcher
from python_backends.nouns.request import ModelLimits, Sampling
from python_backends.nouns.step import Admit, Grow, Release, StepPlan

WINDOWS_AND_CAPS = tuple(itertools.product((None, 16), (None, 8.0)))
LIMITS = (  # temperature, top_k, top_p, min_p
    (1, 1, 1, 0),
    (1, 40, 1, 0),
    (0.7, 700, 1, 0),
    (1, 0, 1, 0),
    (1, 0, 0.3, 0),
    (2, 0, 0.99, 0.001),
    (1, 50, 0.9, 0.01),
    (0.5, 999, 0.999, 0),
    (1, 0, 1, 0.1),
    (0, 5, 0.5, 0),
)
DECODED = np.array([0, 4, 63, 76, 199], np.int32)  # where decode rows start: with one part and with several
CHUNKS = np.array([[0, 0, 37, 90], [1, 70, 131, 40]], np.int32)  # starts and lengths


def kernels(device: str) -> Iterator[Figure]:
    for dtype, allowed in ((torch.float32, 1e-4), (torch.bfloat16, 0.02)):
        heads = Heads(32, 8, 128, 128**-0.5)
        error = max(attention_error(heads, *case, dtype, device) for case in WINDOWS_AND_CAPS)
        yield Figure(
            "tokens",
            f"attention of our kernels compared with torch's, {dtype}, largest error",
            error,
            "",
            f"<= {allowed}",
        )
        error = max(case() for case in fused_errors(4096, dtype, device))
        yield Figure(
            "tokens",
            f"kernels between products compared with torch's, {dtype}, largest error",
            error,
            "",
            f"<= {allowed}",
        )
        error = max(int8_errors(dtype, device))
        yield Figure("tokens", f"product with int8, {dtype}, largest error", error, "", f"<= {allowed}")
        error = max(expert_errors(dtype, device))
        yield Figure("tokens", f"products of experts, {dtype}, largest error", error, "", f"<= {allowed}")
    unlike = slots_written_otherwise(device)
    yield Figure(
        "tokens", "tensors of the slot state written otherwise by the kernel", unlike, "", "<= 0", "of 5"
    )
    unlike = tokens_drawn_otherwise(128_256, device)
    yield Figure("tokens", "tokens drawn otherwise by the kernel", unlike, "", "<= 0", "of 240")


def attention_error(
    heads: Heads,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
    device: str,
    num_decodes: int = len(DECODED),
) -> float:
    """Returns the largest difference between the kernels' attention over scattered blocks and that of torch's
    operators in float32, in its results and in what both write to the cache.

    For `num_decodes` rows that decode, and chunks: whole prompts and ends of prompts, with fewer and more
    rows than a tile.
    """
    from python_backends.engine.torch.paged_attention import attend_paged  # needs the Triton language
    from python_backends.engine.torch.paged_batch import PagedBatcher

    torch.manual_seed(0)
    plan = _plan_of(num_decodes)
    count, state = plan.num_tokens, _state_of(plan, device)
    layer = LayerAttention(1, heads, score_operator(softcap), softcap)
    ours, exact = (
        KVCache(BlockShape(3, 8, heads.num_kv_heads, heads.head_dim, kind), 300, state.device)
        for kind in (dtype, torch.float32)
    )
    ours.blocks.normal_()
    exact.blocks.copy_(ours.blocks)
    angles = torch.randn((300, heads.head_dim // 2), device=device)
    cos, sin = (torch.cat(parts, 1).to(dtype) for parts in _tables(angles))
    batch = PagedBatcher(state, ours, heads, (window,)).batch(plan)
    wanted = StepBatcher(state, exact, (window,)).batch(plan)
    assert torch.equal(batch.positions, wanted.positions)
    width = heads.query_width + 2 * heads.kv_width
    qkv = torch.randn((len(batch.tokens), width), dtype=dtype, device=device)
    rotation = (cos[batch.positions, None].float(), sin[batch.positions, None].float())
    given = qkv.to(torch.float32, copy=True)
    gathered, spans = wanted.spans[window], batch.spans[window]
    assert isinstance(gathered, AttentionSpans)
    assert isinstance(spans, PagedSpans)
    expected = attend(given, rotation, gathered, layer, exact)
    found = [attend_paged(qkv.clone(), (cos, sin), spans, layer, ours) for _ in range(2)]
    assert torch.equal(found[0][:count], found[1][:count])  # nothing of the first is left for the second
    return max(_error(found[0][:count], expected[:count]), _error(ours.blocks[:299], exact.blocks[:299]))


def _tables(angles: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """cos and sin as `rotary_tables` has them."""
    return (angles.cos(), angles.cos()), (-angles.sin(), angles.sin())


def _plan_of(num_decodes: int) -> StepPlan:
    decoded = DECODED[len(DECODED) - num_decodes :]
    starts = np.concatenate([decoded, CHUNKS[0]])
    lengths = np.concatenate([np.ones_like(decoded), CHUNKS[1]])
    slots = np.arange(len(starts), dtype=np.int32)
    samples, tokens = np.ones(len(slots), np.bool_), np.zeros(int(CHUNKS[1].sum()), np.int32)
    return StepPlan(0, (), slots, slots, starts, lengths, num_decodes, samples, tokens)


def _state_of(plan: StepPlan, device: str) -> SlotState:
    """Every slot has blocks of its own, scattered; each sequence is as long as `plan` says."""
    state = SlotState(ModelLimits(256, 100, len(plan.slots), 299, 8), torch.device(device), kernels=True)
    blocks = torch.randperm(len(plan.slots) * 32).view(-1, 32).to(device)
    state.table[: len(plan.slots)] = blocks
    ends = torch.from_numpy((plan.starts + plan.lengths).astype(np.int64)).to(device)
    state._counts[: len(plan.slots), Column.LENGTH] = ends
    return state


def fused_errors(width: int, dtype: torch.dtype, device: str) -> list[Callable[[], float]]:
    """Returns functions, each of which returns the largest difference between a fused kernel and torch's
    operators in float32; relative for values above 1.
    """

    def drawn(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=device)

    def residual(kind: NormKind, bias: Tensor | None, weight: Tensor) -> float:
        x, y = drawn(5, width), drawn(5, width)
        norm, exact = (
            Norm(kind, weight, bias, 1e-5),
            Norm(kind, weight.float(), None if bias is None else bias.float(), 1e-5),
        )
        summed = (x.float() + 0.5 * y.float()).to(dtype)
        normed = ResidualNorm(norm, dtype, fused=True).after(x, y, 0.5)
        return max(
            _error(x, summed),
            _error(normed, ResidualNorm(exact, torch.float32, fused=False).of(summed.float())),
        )

    def gate(activation: Activation) -> float:
        up = drawn(5, 2 * width)
        return _error(
            gate_operator(activation, fused=True)(up), gate_operator(activation, fused=False)(up.float())
        )

    torch.manual_seed(0)
    kinds = ((NormKind.RMS, None), (NormKind.LAYER, None), (NormKind.LAYER, drawn(width)))
    weights = (drawn(width), drawn(width, dtype=torch.float32))
    norms = [partial(residual, kind, bias, weight) for kind, bias in kinds for weight in weights]
    return [
        *norms,
        *(partial(gate, activation) for activation in Activation),
    ]


def int8_errors(dtype: torch.dtype, device: str) -> list[float]:
    """Returns the largest differences between the product with int8 by the kernel and by torch in float32,
    compared with the largest value, for one row, few, and as many as the kernel takes.
    """
    errors = []
    for rows, outputs, inputs in ((1, 96, 64), (5, 70, 300), (MOST_KERNEL_ROWS, 33, 128)):
        weight = torch.randint(-127, 128, (outputs, inputs), dtype=torch.int8, device=device)
        scale = torch.rand(outputs, device=device).to(dtype)
        x, bias = (torch.randn(shape, device=device).to(dtype) for shape in ((rows, inputs), (outputs,)))
        found = Int8Projection(weight, scale, bias, kernels=True).forward(x).float()
        exact = (x.float() @ weight.float().T) * scale.float() + bias.float()
        errors.append(float((found - exact).abs().max() / exact.abs().max()))
    return errors


def expert_errors(dtype: torch.dtype, device: str) -> list[float]:
    """Returns the largest differences between the products of rows with their experts by the kernel and by
    torch in float32, compared with the largest value, for few rows and many, with float weights and int8.
    """
    errors = []
    for counts in ([0, 1, 0], [3, 0, 65, 1, 0], [0] * 99 + [130, 2]):
        weight = torch.randn((len(counts), 70, 96), device=device).to(dtype)
        x = torch.randn((sum(counts), 96), device=device).to(dtype)
        for linear in (Linear(weight, None), quantise(Linear(weight, None))):
            found = expert_products(linear, kernels=True)(x, torch.tensor(counts, device=device).cumsum(0))
            exact = linear.weight.float()
            if linear.scale is not None:
                exact *= linear.scale.float()[..., None]
            own = exact.repeat_interleave(torch.tensor(counts, device=device), 0)  # of each row
            expected = torch.einsum("ri,roi->ro", x.float(), own)
            errors.append(float((found.float() - expected).abs().max() / expected.abs().max()))
    return errors


def slots_written_otherwise(device: str) -> int:
    """Returns in how many tensors the slot state of the kernels differs from that of torch after the same
    admissions, growth, releases and appended tokens, among them what is known of the tokens.
    """
    states = [
        SlotState(ModelLimits(640, 100, 9, 400, 4), torch.device(device), kernels)
        for kernels in (True, False)
    ]
    generator = np.random.default_rng(0)
    found: list[list[Tensor]] = [[], []]
    for _ in range(30):
        slot, prompt = int(generator.integers(9)), int(generator.integers(1, 400))
        stop_ids = tuple(int(token) for token in generator.integers(0, 100, generator.integers(0, 7)))
        sampling = Sampling(
            9, temperature=generator.random(), top_p=generator.random(), seed=2**63 + 5, stop_ids=stop_ids
        )
        blocks = generator.integers(0, 400, -(-prompt // 4)).astype(np.int32)
        grown = Grow(slot, 1, len(blocks), generator.integers(0, 400, 3).astype(np.int32))
        rows = torch.from_numpy(np.append(generator.permutation(9)[:5], [9, 9])).to(device)  # the dead slot
        for state, kept in zip(states, found, strict=True):
            state.apply([Admit(slot, 1, sampling, prompt, 0, blocks), grown, Release((slot + 1) % 9, 1)])
            for token in (3, *stop_ids[:1]):
                kept.append(state.append(rows, torch.full_like(rows, token)))
            kept += state.decode_inputs(rows)
    ours, wanted = (
        [
            state.table,
            state._counts,
            state.stop_ids,
            state._sampling.shares,
            torch.cat([*map(torch.flatten, kept)]),
        ]
        for state, kept in zip(states, found, strict=True)
    )
    return sum(not torch.equal(one, other) for one, other in zip(ours, wanted, strict=True))


def tokens_drawn_otherwise(vocabulary: int, device: str) -> int:
    """Returns how many tokens of 240 the kernel draws otherwise than torch's operators, for flat and steep
    rows and several limits.
    """
    from python_backends.engine.slots.draw_kernel import draw  # needs the Triton language

    torch.manual_seed(0)
    generator, seeds = np.random.default_rng(0), 8
    limits = np.repeat(np.array(LIMITS, np.float32), seeds, 0)
    rows = len(limits)
    counts = torch.zeros((rows, len(Column)), dtype=torch.int64)
    shares = torch.ones((rows, len(Share)))
    counts[:, Column.SEED] = torch.from_numpy(generator.integers(-(2**63), 2**63 - 1, rows))
    counts[:, Column.OUTPUTS] = torch.from_numpy(generator.integers(0, 5000, rows))
    counts[:, Column.TOP_K] = torch.from_numpy(limits[:, 1].astype(np.int64))
    for share, column in ((Share.TEMPERATURE, 0), (Share.TOP_P, 2), (Share.MIN_P, 3)):
        shares[:, share] = torch.from_numpy(limits[:, column].copy())
    counts, shares, slots = counts.to(device), shares.to(device), torch.arange(rows, device=device)
    drawing = slots[shares[:, Share.TEMPERATURE] > 0]
    of_slots, parts = counts[drawing], shares[drawing]
    draws = Draws(
        drawing,
        parts[:, Share.TEMPERATURE],
        of_slots[:, Column.SEED],
        of_slots[:, Column.OUTPUTS],
        Restrictions(of_slots[:, Column.TOP_K], parts[:, Share.TOP_P], parts[:, Share.MIN_P]),
    )
    unlike = 0
    for steepness in (0.01, 1.0, 6.0):
        logits = torch.randn((rows, vocabulary), device=device) * steepness
        wanted = sample(logits, SamplingRows(draws))
        unlike += int((draw(logits, slots, counts, shares) != wanted).sum())
    return unlike


def _error(found: Tensor, wanted: Tensor) -> float:
    wanted = wanted.float()
    return float(((found.float() - wanted).abs() / wanted.abs().clamp(min=1)).max())
