"""The operators between the matrix products of a layer, as kernels in the Triton language: fewer launches on
a GPU.

Each does in one pass what torch's operators do in several, and in float32: `place`, `gate_operator` and
`ResidualNorm` of `operators` say what that is. Owns nothing; imported only where it runs (see
`kernel_trial`), called by these and by `paged_attention`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from python_backends.engine.model.description import Activation, Heads, Norm, NormKind
from python_backends.engine.torch.attention_spans import PagedSpans, Rotation

HEADS = 16  # of a token in a program
TILE = 1024  # of a gate's columns in a program


def place(qkv: Tensor, rotation: Rotation | None, spans: PagedSpans, blocks: Tensor, heads: Heads) -> None:
    """The chunks among qkv [tokens, (heads + 2 kv_heads) · dim], rotated in place by tables [positions, dim];
    keys and values also to the `blocks` [blocks, 2, kv_heads, tokens, dim] of one layer.
    """
    cos, sin = rotation or (qkv, qkv)
    num_heads, half = heads.num_query_heads + 2 * heads.num_kv_heads, heads.head_dim // 2
    _place[(spans.num_rows - spans.num_decodes, triton.cdiv(num_heads, HEADS))](
        qkv,
        cos,
        sin,
        spans.positions,
        spans.slots,
        spans.table,
        blocks,
        spans.num_decodes,
        qkv.stride(0),
        spans.table.stride(0),
        blocks.stride(0),
        blocks.stride(1),
        NUM_QUERY=heads.num_query_heads,
        NUM_KV=heads.num_kv_heads,
        HALF=half,
        PADDED=triton.next_power_of_2(half),
        HEADS=HEADS,
        BLOCK_TOKENS=blocks.shape[3],
        TURNS=rotation is not None,
    )


def gated(up: Tensor, activation: Activation) -> Tensor:
    """up [tokens, 2 · width], gates first → activation(gate) · up [tokens, width]."""
    width = up.shape[1] // 2
    out = torch.empty((len(up), width), dtype=up.dtype, device=up.device)
    _gated[(len(up), triton.cdiv(width, TILE))](up, out, width, ACTIVATION=str(activation), TILE=TILE)
    return out


def add_and_norm(x: Tensor, y: Tensor, scale: float, norm: Norm) -> Tensor:
    """x [tokens, width] += scale · y, in place; the norm of that."""
    out, width = torch.empty_like(x), x.shape[1]
    bias = norm.weight if norm.bias is None else norm.bias
    _add_and_norm[(len(x),)](
        x,
        y,
        norm.weight,
        bias,
        out,
        scale,
        norm.eps,
        WIDTH=width,
        PADDED=triton.next_power_of_2(width),
        CENTRES=norm.kind == NormKind.LAYER,
        HAS_BIAS=norm.bias is not None,
    )
    return out


@triton.jit(do_not_specialize=["first_row"])  # type: ignore[untyped-decorator]
def _place(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    qkv,
    cos,
    sin,
    positions,
    slots,
    table,
    blocks,
    first_row,
    qkv_stride,
    table_stride,
    block_stride,
    values_offset,
    NUM_QUERY: tl.constexpr,  # noqa: N803
    NUM_KV: tl.constexpr,  # noqa: N803
    HALF: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    HEADS: tl.constexpr,  # noqa: N803
    BLOCK_TOKENS: tl.constexpr,  # noqa: N803
    TURNS: tl.constexpr,  # noqa: N803
):
    """Some heads of one token."""
    row, head = first_row + tl.program_id(0), tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    pair, position = tl.arange(0, PADDED), tl.load(positions + row)
    is_pair = pair < HALF
    is_here = (head < NUM_QUERY + 2 * NUM_KV)[:, None] & is_pair
    here = qkv + row.to(tl.int64) * qkv_stride + head[:, None] * (2 * HALF) + pair
    first, second = tl.load(here, mask=is_here, other=0.0), tl.load(here + HALF, mask=is_here, other=0.0)
    if TURNS:
        turns = is_here & (head < NUM_QUERY + NUM_KV)[:, None]
        c = tl.load(cos + position * (2 * HALF) + pair, mask=is_pair, other=1.0).to(tl.float32)
        s = tl.load(sin + position * (2 * HALF) + HALF + pair, mask=is_pair, other=0.0).to(tl.float32)
        x, y = first.to(tl.float32), second.to(tl.float32)
        first = tl.where(turns, x * c - y * s, x).to(first.dtype)
        second = tl.where(turns, y * c + x * s, y).to(second.dtype)
        tl.debug_barrier()  # threads that hold the same values have all read them
        tl.store(here, first, mask=turns)
        tl.store(here + HALF, second, mask=turns)
    block = tl.load(table + tl.load(slots + row) * table_stride + position // BLOCK_TOKENS)
    kept = head - NUM_QUERY  # all keys, then all values
    is_value = kept >= NUM_KV
    place = (tl.where(is_value, kept - NUM_KV, kept) * BLOCK_TOKENS + position % BLOCK_TOKENS) * (2 * HALF)
    there = blocks + block * block_stride + (place + is_value * values_offset)[:, None] + pair
    is_kept = is_here & (kept >= 0)[:, None]
    tl.store(there, first, mask=is_kept)
    tl.store(there + HALF, second, mask=is_kept)


@triton.jit  # type: ignore[untyped-decorator]
def _gated(up, out, width, ACTIVATION: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    token, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = column < width
    gate = tl.load(up + token * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(up + (token * 2 + 1) * width + column, mask=inside, other=0.0).to(tl.float32)
    if ACTIVATION == "silu":
        gate = gate * tl.sigmoid(gate)
    elif ACTIVATION == "gelu":
        gate = gate * 0.5 * (1.0 + tl.erf(gate * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        gate = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    elif ACTIVATION == "relu":
        gate = tl.maximum(gate, 0.0)
    else:
        tl.static_assert(ACTIVATION == "relu_squared")
        gate = tl.maximum(gate, 0.0) * tl.maximum(gate, 0.0)
    tl.store(out + token * width + column, (gate * value).to(out.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_and_norm(  # type: ignore[no-untyped-def]  # noqa: PLR0913
    x,
    y,
    weight,
    bias,
    out,
    scale,
    eps,
    WIDTH: tl.constexpr,  # noqa: N803
    PADDED: tl.constexpr,  # noqa: N803
    CENTRES: tl.constexpr,  # noqa: N803
    HAS_BIAS: tl.constexpr,  # noqa: N803
):
    """One token; the sum is rounded as it is kept, and that is normed."""
    column = tl.arange(0, PADDED)
    inside = column < WIDTH
    place = tl.program_id(0).to(tl.int64) * WIDTH + column
    added = tl.load(y + place, mask=inside, other=0.0).to(tl.float32)
    summed = (tl.load(x + place, mask=inside, other=0.0).to(tl.float32) + scale * added).to(
        x.dtype.element_ty
    )
    tl.debug_barrier()  # threads that hold the same values have all read them
    tl.store(x + place, summed, mask=inside)
    value = summed.to(tl.float32)
    if CENTRES:
        value = tl.where(inside, value - tl.sum(value, 0) / WIDTH, 0.0)
    normed = (
        value
        * tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
        * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    )
    if HAS_BIAS:
        normed += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + place, normed.to(out.dtype.element_ty), mask=inside)
