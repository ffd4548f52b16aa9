"""Checks of correctness: greedy tokens in float32 compared with transformers' on tiny models of every
architecture, whole and resumed; the same seed alone and in a batch. Called by `gpu.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu_model import Measured
from benchmarks.gpu_report import Figure
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.description import Activation, Heads, Norm, NormKind
from python_backends.engine.slots.sampler import Restrictions, probabilities, restricted
from python_backends.engine.slots.slot_state import SlotState
from python_backends.engine.torch.attention import LayerAttention, attend, score_operator
from python_backends.engine.torch.attention_spans import PagedRows, chunk_rows
from python_backends.engine.torch.engine import TorchEngine
from python_backends.engine.torch.kernel_trial import runs_kernels
from python_backends.engine.torch.operators import ResidualNorm, gate_operator, place_operator
from python_backends.engine.torch.step_batch import StepBatcher
from python_backends.nouns.request import ModelLimits, Sampling
from python_backends.nouns.step import Admit, Grow, Release, StepPlan
from tests.cpu.tiny_models import TINY, Agreement, Serving, TinyModel, build, random_requests

WINDOWS_AND_CAPS = tuple(itertools.product((None, 16), (None, 8.0)))
QUICK = ("gemma2", "llama_grouped")  # a window, capped scores; grouped heads


def tokens(measured: Measured) -> Iterator[Figure]:
    torch.backends.cuda.matmul.allow_tf32 = False
    if runs_kernels(torch.device(measured.device)):
        for dtype, allowed in ((torch.float32, 1e-4), (torch.bfloat16, 0.02)):
            heads = Heads(32, 8, 128, 128**-0.5)
            for rows, error_of in (("decode rows", kernel_error), ("chunks", chunk_error)):
                error = max(error_of(heads, *case, dtype, measured.device) for case in WINDOWS_AND_CAPS)
                yield Figure(
                    "tokens",
                    f"attention of {rows} beside torch's, {dtype}, largest error",
                    error,
                    "",
                    f"<= {allowed}",
                )
            error = max(case() for case in fused_errors(heads, 4096, dtype, measured.device))
            yield Figure(
                "tokens",
                f"kernels between products beside torch's, {dtype}, largest error",
                error,
                "",
                f"<= {allowed}",
            )
        unlike = slots_written_otherwise(measured.device)
        yield Figure(
            "tokens", "tensors of the slot state written otherwise by the kernel", unlike, "", "<= 0", "of 4"
        )
        unlike = rows_kept_otherwise(128_256, measured.device)
        yield Figure(
            "tokens",
            "rows of which top_k, top_p, min_p keep others by the kernel",
            unlike,
            "",
            "<= 0",
            "of 27",
        )
    names, count = (QUICK, 4) if measured.quick else (tuple(sorted(TINY)), 16)
    for name in names:
        yield parity(name, measured, count)
    yield seeds(names[0], measured)


def capture(measured: Measured) -> Iterator[Figure]:
    """Checks that steps of kind `measured.cuda_graphs` run and give the right tokens."""
    figure = parity("llama_grouped", measured, 4)
    yield replace(figure, part="capture", what=f"{kind_of_step(measured)}: {figure.what}")


def kind_of_step(measured: Measured) -> str:
    return f"cuda_graphs = {measured.cuda_graphs}{', fused layers' * measured.fused_layers}"


def parity(name: str, measured: Measured, count: int) -> Figure:
    """Runs `count` requests on four slots, then each one again, resumed after its first ten tokens. The
    reference runs on the CPU.
    """
    directory = measured.directory / "tiny" / name
    tiny = TinyModel(directory, build(name), Agreement())
    tiny.model.save_pretrained(directory)
    engine, requests = _engine(tiny, measured), random_requests(count)
    whole, resumed = dict(Serving(engine).run(requests)), Serving(engine)
    for request in requests:
        resumed.submit(request, whole[request.request_id][:10])
    resumed.run()
    wrong, note = 0, ""
    for request in requests:
        for answer in (whole[request.request_id], resumed.answers[request.request_id]):
            try:
                tiny.check(request, answer)
            except AssertionError as error:
                wrong, note = wrong + 1, str(error).splitlines()[0]
    note = note or f"of {tiny.agreement.num_tokens} tokens, {tiny.agreement.num_ties} ties"
    return Figure("tokens", f"{name}: answers unlike transformers'", wrong, "", "<= 0", note)


def seeds(name: str, measured: Measured) -> Figure:
    engine = _engine(TinyModel(measured.directory / "tiny" / name, None, Agreement()), measured)
    requests = random_requests(8, temperature=1.0, top_k=40, top_p=0.9, seed=5)
    together = dict(Serving(engine).run(requests))
    unequal = sum(
        Serving(engine).run([request])[request.request_id] != together[request.request_id]
        for request in requests
    )
    return Figure(
        "tokens", "answers unlike the same seed's in a batch", unequal, "", "<= 0", f"of {len(requests)}"
    )


def _engine(tiny: TinyModel, measured: Measured) -> TorchEngine:
    return tiny.engine(
        device=measured.device,
        cuda_graphs=measured.cuda_graphs,
        fused_layers="on" if measured.fused_layers else "off",
    )


def kernel_error(
    heads: Heads,
    window: int | None,
    softcap: float | None,
    dtype: torch.dtype,
    device: str,
    num_rows: int = 5,
) -> float:
    """Returns the largest difference between the kernel's attention over scattered blocks and that of torch's
    operators over gathered blocks in float32.

    For `num_rows` rows, at most 5.
    """
    from python_backends.engine.torch.paged_attention import paged_attention  # needs the Triton language

    torch.manual_seed(0)
    lengths = [1, 5, 64, 77, 200][:num_rows]
    blocks = torch.randn((130, 3, 2, heads.num_kv_heads, 8, heads.head_dim), dtype=dtype, device=device)[:, 1]
    table = torch.randperm(130)[: 25 * num_rows].view(num_rows, 25).to(device)
    positions = torch.tensor(lengths, device=device) - 1
    q = torch.randn((num_rows, heads.query_width + 8), dtype=dtype, device=device)[
        :, : heads.query_width
    ]  # rows with a gap between them
    found = paged_attention(q, blocks, PagedRows(0, num_rows, table, positions, window), heads, softcap)
    keys, values = (
        blocks[table]
        .permute(2, 0, 3, 1, 4, 5)
        .reshape(2, num_rows, heads.num_kv_heads, -1, heads.head_dim)
        .float()
    )
    token = torch.arange(keys.shape[2], device=device)
    hidden = token > positions[:, None]
    if window is not None:
        hidden |= token <= positions[:, None] - window
    mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, float("-inf"))[:, None, None]
    rows = q.reshape(num_rows, heads.num_kv_heads, heads.group, heads.head_dim).float()
    wanted = score_operator(softcap)(rows, keys, values, attn_mask=mask, scale=heads.scale).reshape(
        num_rows, -1
    )
    return float((found.float() - wanted).abs().max())


def chunk_error(
    heads: Heads, window: int | None, softcap: float | None, dtype: torch.dtype, device: str
) -> float:
    """Like `kernel_error`, for chunks: whole prompts and ends of prompts, with fewer and more rows than a
    tile.
    """
    torch.manual_seed(0)
    starts, lengths = np.array([0, 0, 37, 90], np.int32), np.array([1, 70, 131, 40], np.int32)
    count, four, limits = int(lengths.sum()), np.arange(4, dtype=np.int32), ModelLimits(256, 100, 4, 128, 8)
    nothing = np.zeros(4, np.bool_)
    plan = StepPlan(
        0, (), four, four, starts, lengths, np.zeros(4, np.uint8), nothing, np.zeros(count, np.int32)
    )
    state = SlotState(limits, torch.device(device))
    state.table[:4] = torch.randperm(128).view(4, 32).to(device)
    layer = LayerAttention(1, heads, score_operator(softcap), softcap)
    caches = [
        KVCache(BlockShape(3, 8, heads.num_kv_heads, heads.head_dim, kind), 129, state.device)
        for kind in (dtype, torch.float32)
    ]
    caches[0].blocks.normal_()
    caches[1].blocks.copy_(caches[0].blocks)
    outs = []
    for cache, most_rows in zip(caches, (chunk_rows(dtype), 0), strict=True):
        batch = StepBatcher(state, cache, (window,), chunk_rows=most_rows).batch(plan)
        torch.manual_seed(1)
        qkv = torch.randn(
            (len(batch.tokens), heads.query_width + 2 * heads.kv_width), dtype=dtype, device=device
        ).to(cache.shape.dtype)
        place_operator(fused=False)(qkv, None, batch.write, 1, cache, heads)
        outs.append(attend(qkv, batch.spans[window], layer, cache)[:count].float())
    return float((outs[0] - outs[1]).abs().max())


def fused_errors(heads: Heads, width: int, dtype: torch.dtype, device: str) -> list[Callable[[], float]]:
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

    def place(turns: bool) -> float:
        shape = BlockShape(3, 8, heads.num_kv_heads, heads.head_dim, dtype)
        ours, exact = (
            KVCache(replace(shape, dtype=kind), 12, torch.device(device)) for kind in (dtype, torch.float32)
        )
        rows = exact.write_rows(
            torch.tensor([7, 0, 11, 11, 3], device=device), torch.tensor([0, 7, 1, 2, 3], device=device)
        )
        qkv = drawn(5, heads.query_width + 2 * heads.kv_width)
        wanted, half = qkv.to(torch.float32, copy=True), drawn(5, 1, heads.head_dim // 2)
        rotation = (
            (torch.cat((half.cos(), half.cos()), -1), torch.cat((-half.sin(), half.sin()), -1))
            if turns
            else None
        )
        place_operator(fused=False)(
            wanted, rotation and (rotation[0].float(), rotation[1].float()), rows, 1, exact, heads
        )
        place_operator(fused=True)(qkv, rotation, rows, 1, ours, heads)
        return max(_error(qkv, wanted), _error(ours.blocks, exact.blocks))

    torch.manual_seed(0)
    kinds = ((NormKind.RMS, None), (NormKind.LAYER, None), (NormKind.LAYER, drawn(width)))
    weights = (drawn(width), drawn(width, dtype=torch.float32))
    norms = [partial(residual, kind, bias, weight) for kind, bias in kinds for weight in weights]
    return [
        *norms,
        *(partial(gate, activation) for activation in Activation),
        *(partial(place, turns) for turns in (True, False)),
    ]


def slots_written_otherwise(device: str) -> int:
    """Returns in how many tensors the slot state of the kernel differs from that of torch after the same
    admissions, growth and releases.
    """
    states = [
        SlotState(ModelLimits(640, 100, 9, 400, 4), torch.device(device), kernels)
        for kernels in (True, False)
    ]
    generator = np.random.default_rng(0)
    for _ in range(30):
        slot, prompt = int(generator.integers(9)), int(generator.integers(1, 400))
        stop_ids = tuple(int(token) for token in generator.integers(0, 100, generator.integers(0, 7)))
        sampling = Sampling(
            9, temperature=generator.random(), top_p=generator.random(), seed=2**63 + 5, stop_ids=stop_ids
        )
        blocks = generator.integers(0, 400, -(-prompt // 4)).astype(np.int32)
        grown = Grow(slot, 1, len(blocks), generator.integers(0, 400, 3).astype(np.int32))
        for state in states:
            state.apply([Admit(slot, 1, sampling, prompt, 0, blocks), grown, Release((slot + 1) % 9, 1)])
    ours, wanted = ([state.table, state._counts, state.stop_ids, state._sampling.shares] for state in states)
    return sum(not torch.equal(one, other) for one, other in zip(ours, wanted, strict=True))


def rows_kept_otherwise(vocabulary: int, device: str) -> int:
    """Returns in how many rows, flat and steep ones, the kernel keeps other tokens than torch's operators."""
    limits = (
        (1, 1, 0),
        (40, 1, 0),
        (700, 1, 0),
        (0, 0, 0),
        (0, 0.3, 0),
        (0, 0.99, 0.001),
        (50, 0.9, 0.01),
        (999, 0.999, 0),
        (0, 1, 0.1),
    )
    top_k, top_p, min_p = torch.tensor(limits, dtype=torch.float32, device=device).unbind(1)
    restrictions = Restrictions(top_k.long(), top_p, min_p)
    torch.manual_seed(0)
    count = 0
    for steepness in (0.01, 1.0, 6.0):
        logits = torch.randn((len(limits), vocabulary), device=device) * steepness
        probs = probabilities(logits, torch.ones(len(limits), device=device))
        ours, wanted = (
            restricted(probs, replace(restrictions, by_kernel=by_kernel)) for by_kernel in (True, False)
        )
        count += int((ours != wanted).any(1).sum())
    return count


def _error(found: Tensor, wanted: Tensor) -> float:
    wanted = wanted.float()
    return float(((found.float() - wanted).abs() / wanted.abs().clamp(min=1)).max())
