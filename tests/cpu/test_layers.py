"""The layers in C++: their results compared with torch's, and the engine with them."""

from __future__ import annotations

import copy
import ctypes
import logging
import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.cpu import fetch, library
from python_backends.engine.cpu.adapters import AdapterRows, Factors, PackedAdapter
from python_backends.engine.cpu.fetch import DEPTH, PIECE, ROWS
from python_backends.engine.cpu.library import Kind
from python_backends.engine.cpu.model import PackedModel, StepTable
from python_backends.engine.cpu.served import BLOCK_TOKENS, PANEL
from python_backends.engine.cpu.weight_memory import WeightMemory, packed
from python_backends.engine.kv.kv_cache import BlockShape, KVCache
from python_backends.engine.model.description import (
    Activation,
    Attention,
    FeedForward,
    Heads,
    Layer,
    Linear,
    Model,
    Norm,
    NormKind,
    Rotary,
)
from python_backends.engine.model.four_bits import GROUP, numbers
from python_backends.engine.model.quantised import AS_IT_IS, grouped, quantise
from python_backends.engine.slots.adapter_slots import AdapterSlots
from python_backends.engine.slots.allowed import Allowed
from python_backends.engine.slots.numbers import fail_others
from python_backends.engine.slots.sampler import GREEDY, SamplingRows, sample
from python_backends.engine.torch.attention import score_operator
from python_backends.engine.torch.operators import activation_operator
from python_backends.guides.matcher import WORD_BITS, num_words
from python_backends.nouns.request import AdapterVersion, Finish, Floats, Sampling
from python_backends.nouns.step import Admit
from tests.support.emulated_tiles import compiled_with_emulated_tiles
from tests.support.tiny_models import (
    BFLOAT16_REGRET,
    BY_LAYERS,
    Serving,
    TinyModel,
    random_requests,
)

HIDDEN, GATED, VOCABULARY, POSITIONS = 160, 224, 256, 256
ROTARY = Rotary(torch.tensor([1.0, 0.3, 0.1, 0.0]).repeat(8), 1.1)
# of the spans of a step: tokens in KV blocks, tokens to compute, whether the last one is sampled
SPANS = [
    (40, 1, True),
    (0, 1, True),
    (31, 1, True),
    (0, 70, False),
    (33, 35, True),
    (100, 5, True),
    (95, 33, True),
]

wanted = pytest.mark.skipif(library.library() is None, reason="wants a C++ compiler, and AVX2")
emulates_tiles = Kind.AVX512_BF16 in library.kinds_here()


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def rounded_groups(x: Tensor, group: int) -> Tensor:
    """To int8, with a scale for so many neighbours."""
    return torch.cat([_rounded_group(each) for each in x.split(group, -1)], -1)


def _rounded_group(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127
    return (x / scale).round() * scale


def bytes_group(path: Path) -> int:
    """Neighbours for which a library rounds rows that weights of int8 multiply; 0: it does not."""
    return (64 if library.has_tiles(path) else 32) if library.multiplies_bytes(path) else 0


def random_linear(outputs: int, inputs: int, bias: bool) -> Linear:
    """Numbers that bfloat16 has; `of_type` gives them a type."""
    weight = torch.randn(outputs, inputs) / inputs**0.5
    return Linear(rounded(weight), rounded(torch.randn(outputs)) if bias else None)


def of_type(linear: Linear, dtype: torch.dtype) -> Linear:
    bias = None if linear.bias is None else linear.bias.to(dtype)
    if linear.scale is None:
        return Linear(linear.weight.to(dtype), bias)
    scale = linear.scale.to(dtype) if linear.scale.dim() == 1 else linear.scale
    return Linear(linear.weight, bias, scale, linear.minimum)


def random_norm(width: int = HIDDEN, kind: NormKind = NormKind.RMS, bias: bool = False) -> Norm:
    return Norm(kind, torch.rand(width) + 0.5, torch.randn(width) if bias else None, 1e-5)


def random_layer(
    heads: Heads,
    *,
    bias: bool = False,
    norms: bool = False,
    wide_norms: bool = False,
    window: int | None = None,
    turns: bool = True,
    softcap: float | None = None,
    activation: Activation = Activation.SILU,
    gated: bool = True,
    parallel: bool = False,
    shared: bool = False,
    kind: NormKind = NormKind.RMS,
    normed_before: bool = True,
    normed_after: bool = False,
    residual_scale: float = 1,
    int8: bool = False,
    int4: bool = False,
) -> Layer:
    """`norms`: of queries and keys, `wide_norms`: of all heads at once; `normed_before` and `normed_after`:
    attention and feed-forward; `shared`: the norm of both parallel halves. `bias`: of norms before, too.
    """
    query_width, kv_width = heads.query_width, heads.kv_width
    widths = (query_width, kv_width) if wide_norms else (heads.head_dim, heads.head_dim)
    kept = grouped if int4 else quantise if int8 else AS_IT_IS.product
    attention = Attention(
        kept(random_linear(query_width + 2 * kv_width, HIDDEN, bias)),
        kept(random_linear(HIDDEN, query_width, bias)),
        random_norm(widths[0]) if norms or wide_norms else None,
        random_norm(widths[1]) if norms or wide_norms else None,
        0 if turns else None,
        window,
        softcap,
    )
    up, down = random_linear((1 + gated) * GATED, HIDDEN, bias), random_linear(HIDDEN, GATED, bias)
    feed_forward = FeedForward(kept(up), kept(down), activation, gated)
    return Layer(
        attention,
        feed_forward,
        random_norm(kind=kind, bias=bias) if normed_before else None,
        random_norm() if normed_after else None,
        random_norm(kind=kind, bias=bias) if normed_before and not shared else None,
        random_norm() if normed_after else None,
        parallel=parallel,
        residual_scale=residual_scale,
    )


def linear(x: Tensor, by: Linear) -> Tensor:
    weight = by.weight.float()
    if by.scale is not None:
        by_groups = by.minimum is not None
        weight = numbers(by.weight, by.scale, by.minimum) if by_groups else weight * by.scale.float()[:, None]
    return functional.linear(x, weight, None if by.bias is None else by.bias.float())


def normed(x: Tensor, norm: Norm | None) -> Tensor:
    if norm is None:
        return x
    if norm.kind == NormKind.LAYER:
        return functional.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps)
    y = functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)
    return y if norm.bias is None else y + norm.bias


def heads_normed(x: Tensor, norm: Norm | None) -> Tensor:
    """[heads, tokens, dim], each head or all of them together."""
    if norm is None or len(norm.weight) == x.shape[-1]:
        return normed(x, norm)
    return normed(x.transpose(0, 1).flatten(1), norm).unflatten(-1, (-1, x.shape[-1])).transpose(0, 1)


class Random:
    """A model with random weights, sequences whose tokens are partly in KV blocks, and what torch computes.
    The tokens of SPANS are those of the vocabulary, one after the other.
    """

    def __init__(
        self, dtype: torch.dtype, heads: Heads, layers: list[Layer], vocabulary: int = VOCABULARY
    ) -> None:
        self.dtype, self.heads, self.layers = dtype, heads, layers
        self.norm, self.head = random_norm(), random_linear(vocabulary, HIDDEN, bias=False)
        self.embedding = rounded(torch.randn(vocabulary, HIDDEN))
        self.positions: Tensor | None = None
        self.embedding_scale, self.logit_scale, self.logit_softcap = 1.0, 1.0, None
        self.bytes_group = 0  # inputs for which rows are rounded that are multiplied by int8; 0: they are not
        self.rotary = Rotary(ROTARY.frequencies[: heads.head_dim // 2], ROTARY.scale)
        # of each layer and span, all that is in KV blocks: [2, kv_heads, tokens, dim]
        self.past = [
            [rounded(torch.randn(2, heads.num_kv_heads, past, heads.head_dim)) for past, _, _ in SPANS]
            for _ in layers
        ]
        # of spans that have one: its number, and of it, by layer, the factors of each product
        self.adapter_of: dict[int, int] = {}
        self.adapters: list[list[dict[str, Factors]]] = []
        lengths = [tokens for _, tokens, _ in SPANS]
        self.tokens = torch.arange(sum(lengths)).split(lengths)

    def expected(self, span: int) -> Tensor:
        """x [tokens, hidden] of a span after all layers, by torch, rounded where the layers round."""
        x = self.embedding_scale * self.embedding[self.tokens[span]]
        if self.positions is not None:
            x = x + self.positions[SPANS[span][0] :][: len(x)]
        for index, layer in enumerate(self.layers):
            scale, feed_forward = layer.residual_scale, layer.feed_forward
            attended = self._linear(self._attended(x, span, index), layer.attention.output, span, index, "o")
            after = x + scale * normed(attended, layer.attention_output_norm)
            if layer.parallel:
                before = normed(x, layer.feed_forward_norm or layer.attention_norm)
            else:
                before = normed(after, layer.feed_forward_norm)
            up = self._linear(self.rounded(before), feed_forward.up, span, index, "up")
            inner = self.rounded(activation_operator(feed_forward, False)(up))
            fed = self._linear(inner, feed_forward.down, span, index, "down")
            x = after + scale * normed(fed, layer.feed_forward_output_norm)
        return x

    def logits(self, x: Tensor) -> Tensor:
        logits = self.logit_scale * self._product(self.rounded(normed(x, self.norm)), self.head)
        cap = self.logit_softcap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def rounded(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).float()

    def described(self, rounds_head: bool = False) -> Model:
        """In its type."""
        own, is_tied = of_type(self.head, self.dtype), self.head.weight is self.embedding
        embedding = own.weight.clone() if is_tied else self.embedding.to(self.dtype, copy=True)
        head = replace(own, weight=embedding if is_tied else own.weight.clone())  # packing uses it up
        head = quantise(head) if rounds_head else head
        return Model(
            self.heads,
            (self.rotary,),
            len(self.layers),
            head.weight if is_tied else embedding,
            None if self.positions is None else self.positions.to(self.dtype),
            self.embedding_scale,
            self.norm,
            head,
            self.logit_scale,
            self.logit_softcap,
        )

    def described_layers(self) -> Iterator[Layer]:
        for layer in self.layers:
            attention, fed = layer.attention, layer.feed_forward
            assert isinstance(fed, FeedForward)
            qkv, output, up, down = (
                of_type(each, self.dtype) for each in (attention.qkv, attention.output, fed.up, fed.down)
            )
            yield replace(
                layer,
                attention=replace(attention, qkv=qkv, output=output),
                feed_forward=replace(fed, up=up, down=down),
            )

    def _attended(self, x: Tensor, span: int, index: int) -> Tensor:
        heads, attention, past = self.heads, self.layers[index].attention, SPANS[span][0]
        before = self.rounded(normed(x, self.layers[index].attention_norm))
        qkv = self.rounded(self._linear(before, attention.qkv, span, index, "qkv"))
        q, k, v = (
            part.unflatten(-1, (-1, heads.head_dim)).transpose(0, 1)
            for part in qkv.split([heads.query_width, heads.kv_width, heads.kv_width], -1)
        )
        q = self.rounded(self._turned(heads_normed(q, attention.q_norm), past, attention))
        k = self.rounded(self._turned(heads_normed(k, attention.k_norm), past, attention))
        k, v = torch.cat([self.past[index][span], torch.stack([k, v])], 2).repeat_interleave(heads.group, 1)
        distance = past + torch.arange(len(x))[:, None] - torch.arange(k.shape[1])
        is_seen = (distance >= 0) & (distance < (attention.window or k.shape[1]))
        hidden = torch.zeros(is_seen.shape).masked_fill(~is_seen, -torch.inf)
        attended = score_operator(attention.softcap)(q, k, v, attn_mask=hidden, scale=heads.scale)
        return self.rounded(attended.transpose(0, 1).flatten(1))

    def _linear(self, x: Tensor, by: Linear, span: int, index: int, name: str) -> Tensor:
        """With what the span's adapter adds."""
        y = self._product(x, by)
        if span not in self.adapter_of or name not in self.adapters[self.adapter_of[span]][index]:
            return y
        a, b = self.adapters[self.adapter_of[span]][index][name]
        return y + self.rounded(x @ a.T) @ b.T

    def _product(self, x: Tensor, by: Linear) -> Tensor:
        group = GROUP if by.minimum is not None else self.bytes_group if by.scale is not None else 0
        return linear(rounded_groups(x, group) if group and self.dtype == torch.bfloat16 else x, by)

    def _turned(self, x: Tensor, past: int, attention: Attention) -> Tensor:
        if attention.rotary is None:
            return x
        cos, sin = (table[past : past + x.shape[1]] for table in self.rotary.tables(POSITIONS))
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Computed:
    """A model by the layers: the logits of all rows or of the sampled ones, and their hidden states."""

    def __init__(
        self,
        path: Path,
        model: Random,
        *,
        state_layer: int = 0,
        threads: int = 2,
        rounds_head: bool = False,
    ) -> None:
        self._model = model
        heads = model.heads
        shape = BlockShape(len(model.layers), BLOCK_TOKENS, heads.num_kv_heads, heads.head_dim, model.dtype)
        self._cache = KVCache(shape, 32, torch.device("cpu"))
        multiplies_bytes = library.multiplies_bytes(path)
        described = PackedModel(
            model.described(rounds_head), model.dtype, POSITIONS, state_layer, multiplies_bytes
        )
        described.take(model.described_layers())
        self._open = described.open(path, self._cache, threads)
        gated = model.layers[0].feed_forward.gated
        self._adapters: AdapterSlots[PackedAdapter] = AdapterSlots()
        for number, layers in enumerate(model.adapters):
            typed = [
                {name: (a.to(model.dtype), b.to(model.dtype)) for name, (a, b) in layer.items()}
                for layer in layers
            ]
            self._adapters.install(f"{number}", PackedAdapter(typed, gated))
        for span, number in model.adapter_of.items():
            version = AdapterVersion("adapter", "1", f"{number}")
            self._adapters.apply([Admit(span, 0, Sampling(1), 1, 0, np.zeros(1, np.int32), adapter=version)])
        self.choose = self._open.choose
        self.meanwhile: Callable[[Floats], None] = lambda _: None  # what this thread does at the beginning
        self.states: Floats = np.zeros((0, HIDDEN), np.float32)

    def __call__(self, spans: list[int], sampled_alone: bool = False) -> Tensor:
        """[rows, vocabulary] of the spans of SPANS. Where a KV block holds no token, it holds no numbers."""
        past, tokens = ([SPANS[span][part] for span in spans] for part in (0, 1))
        counts = [-(-(SPANS[span][0] + SPANS[span][1]) // BLOCK_TOKENS) for span in spans]
        ends = np.cumsum(tokens)
        blocks = torch.randperm(sum(counts) + 3)[: sum(counts)]
        self._fill(spans, blocks.split(counts))
        sampled = [end - 1 for end, span in zip(ends, spans, strict=True) if SPANS[span][2]]
        arrays = {
            "tokens": torch.cat([self._model.tokens[span] for span in spans]).numpy(),
            "past": past,
            "begins": [0, *ends],
            "blocks": blocks.numpy(),
            "block_begins": [0, *np.cumsum(counts)],
            "sampled": sampled if sampled_alone else np.arange(ends[-1]),
        }
        given = {name: np.array(values, np.int32) for name, values in arrays.items()}
        num_sampled = len(given["sampled"])
        logits = np.full((num_sampled, len(self._model.head.weight)), np.nan, np.float32)
        self.states = np.full((num_sampled, HIDDEN), np.nan, np.float32)
        table = StepTable(num_spans=len(spans), num_sampled=num_sampled)
        for name, values in {**given, "logits": logits, "states": self.states}.items():
            setattr(table, name, values.ctypes.data)
        rows = AdapterRows(self._adapters)
        rows.put(table, np.array(spans, np.int32), np.array(tokens, np.int32))
        with self._open.computing(table):
            self.meanwhile(logits)
        return torch.from_numpy(logits)

    def _fill(self, spans: list[int], of_span: tuple[Tensor, ...]) -> None:
        self._cache.blocks.fill_(float("nan"))
        for span, its_blocks in zip(spans, of_span, strict=True):
            for index in range(len(self._model.layers)):
                kept = self._model.past[index][span]
                for place, block in enumerate(its_blocks):
                    tokens = kept[:, :, place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
                    self._cache.blocks[block, index, :, :, : tokens.shape[2]] = tokens.to(self._model.dtype)


# what multiplies, by which type
MADE: list[tuple[str, torch.dtype]] = [
    *product(library.kinds_here(), (torch.float32, torch.bfloat16)),
    *([("emulated tiles", torch.bfloat16)] if emulates_tiles else []),
]


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled_with_emulated_tiles(tmp_path_factory.mktemp("tiles"))


class Made:
    """A library and a type that it multiplies."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        self.path, self.dtype = path, dtype

    def model(self, name: str, *layers: dict[str, Any], vocabulary: int = VOCABULARY) -> Random:
        heads = HEADS[name]
        made = [random_layer(heads, **options) for options in layers]
        model = Random(self.dtype, heads, made, vocabulary)
        model.bytes_group = bytes_group(self.path)
        return model

    def computed(self, model: Random, **options: Any) -> Computed:
        return Computed(self.path, model, **options)

    def check(self, got: Tensor, expected: Tensor, least: float = 1.0) -> None:
        """`least`: the greatest number that there is, where it is more than 1."""
        exact = self.dtype == torch.float32
        torch.testing.assert_close(
            got, expected, rtol=1e-4 if exact else 2**-6, atol=least * (2e-4 if exact else 0.1)
        )


@pytest.fixture(params=MADE, ids=lambda made: f"{made[0]}, {made[1]}")
def made_here(request: pytest.FixtureRequest) -> Made:
    """For everything that this processor can multiply with, and for tiles whether it has them or not."""
    kind, dtype = request.param
    path = library.compiled(kind) if isinstance(kind, Kind) else request.getfixturevalue("emulated")
    return Made(path, dtype)


ALL = list(range(len(SPANS)))
HEADS = {
    "grouped": Heads(4, 2, 32, 32**-0.5),
    "padded": Heads(6, 2, 16, 0.3),  # a head is half of what is multiplied at once
    "odd": Heads(2, 1, 48, 48**-0.5),
    "wide": Heads(8, 8, 64, 0.1),
    "one of many": Heads(32, 1, 32, 0.2),
}


# alone with the usual heads, and several at once with each kind of heads
ALONE: list[dict[str, Any]] = [
    {"bias": True},
    {"norms": True},
    {"window": 20},
    {"window": 64},
    {"turns": False},
    *({"activation": activation} for activation in Activation),
    *({"activation": activation, "gated": False, "bias": True} for activation in Activation),
    {"kind": NormKind.LAYER},
    {"kind": NormKind.LAYER, "bias": True, "int8": True},
    {"parallel": True},
    {"parallel": True, "shared": True, "kind": NormKind.LAYER, "bias": True, "gated": False},
    {"wide_norms": True},
    {"softcap": 1.5},
    {"normed_after": True, "residual_scale": 0.3},
    {"normed_after": True, "normed_before": False},
    {"int8": True, "bias": True},
    {"int4": True, "bias": True},
    {"int4": True, "kind": NormKind.LAYER, "gated": False, "parallel": True},
]
TOGETHER: list[dict[str, Any]] = [
    {},
    {"bias": True, "norms": True, "window": 20},
    {"turns": False, "window": 64, "activation": Activation.GELU_TANH, "normed_after": True, "int8": True},
    {"wide_norms": True, "softcap": 3.0, "parallel": True, "gated": False, "kind": NormKind.LAYER},
]


def expected_logits(model: Random) -> Tensor:
    """Of all rows."""
    return model.logits(torch.cat([model.expected(span) for span in ALL]))


@wanted
@pytest.mark.parametrize(
    ("name", "options"), [*product(["grouped"], ALONE), *product(HEADS, TOGETHER)], ids=str
)
def test_they_compute_what_torch_computes(made_here: Made, name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = made_here.model(name, options)
    made_here.check(made_here.computed(model)(ALL), expected_logits(model))


@wanted
@pytest.mark.parametrize("vocabulary", [VOCABULARY, VOCABULARY + 13])
@pytest.mark.parametrize("rounds_head", [True, False])
@pytest.mark.parametrize("tied", [True, False])
def test_embedding_and_head_are_scaled_capped_and_may_be_one(
    made_here: Made, monkeypatch: pytest.MonkeyPatch, tied: bool, rounds_head: bool, vocabulary: int
) -> None:
    monkeypatch.setattr("python_backends.engine.cpu.model.HEAD_ROWS", 96)
    torch.manual_seed(6)
    model = made_here.model("grouped", {}, vocabulary=vocabulary)
    model.embedding_scale, model.logit_scale, model.logit_softcap = 1.5, 0.5, 2.0
    model.head = Linear(model.embedding if tied else model.head.weight, rounded(torch.randn(vocabulary)))
    got = made_here.computed(model, rounds_head=rounds_head)(ALL)
    if rounds_head:
        model.head = quantise(of_type(model.head, made_here.dtype))
        assert model.head.scale is not None
        model.embedding = model.head.weight * model.head.scale.float()[:, None] if tied else model.embedding
    made_here.check(got, expected_logits(model), model.logit_softcap)


def test_a_head_is_not_in_memory_twice_when_it_is_packed() -> None:
    """Pages of rows that lie packed are given back; other memory stays as it is."""
    model = Random(torch.float32, HEADS["grouped"], [], 4 * VOCABULARY)
    described = model.described()
    assert not described.is_tied
    embedding = described.embedding.clone()
    PackedModel(described, model.dtype, POSITIONS)
    assert described.head.weight.count_nonzero() * 4 < 2 * mmap.PAGESIZE
    assert torch.equal(described.embedding, embedding)


@wanted
def test_the_row_of_its_position_is_added_to_the_embedding_of_a_token(made_here: Made) -> None:
    torch.manual_seed(7)
    model = made_here.model("grouped", {})
    model.positions = rounded(torch.randn(POSITIONS, HIDDEN))
    made_here.check(made_here.computed(model)(ALL), expected_logits(model))


@wanted
def test_the_sampled_rows_have_the_logits_of_all_layers(made_here: Made) -> None:
    torch.manual_seed(2)
    model = made_here.model("grouped", {}, {"window": 32}, {"parallel": True})
    rows = [model.expected(span)[-1] for span in ALL if SPANS[span][2]]
    got = made_here.computed(model)(ALL, sampled_alone=True)
    made_here.check(got, model.logits(torch.stack(rows)))


@wanted
def test_the_others_compute_while_this_one_does_something_else(made_here: Made) -> None:
    torch.manual_seed(2)
    model = made_here.model("grouped", {})
    computed = made_here.computed(model)
    seen: list[Floats] = []

    def wait_for(logits: Floats) -> None:
        ends_s = time.monotonic() + 60
        while np.isnan(logits).any() and time.monotonic() < ends_s:
            time.sleep(0.001)
        seen.append(logits.copy())

    computed.meanwhile = wait_for
    got = computed(ALL)
    np.testing.assert_array_equal(seen[0], got.numpy())
    made_here.check(got, expected_logits(model))


NAN, INF = float("nan"), float("inf")


@wanted
@pytest.mark.parametrize("vocabulary", [32, 200, 333])
def test_the_greatest_logit_of_those_that_may_come_is_chosen(made_here: Made, vocabulary: int) -> None:
    """As the sampler chooses and fails, row by row; among equals the first one."""
    random = np.random.default_rng(vocabulary)
    logits = random.integers(-9, 9, (40, vocabulary)).astype(np.float32)
    bits = random.random((30, num_words(vocabulary) * WORD_BITS)) < random.choice([0.02, 0.5, 1], (30, 1))
    bits[:, vocabulary:] = False
    bits[3] = False
    for row, bad in enumerate([NAN, INF, -INF, 3e38, -3e38, 1.0]):
        logits[row + 10, [row, -1]] = bad
        logits[row + 20] = bad
    masks = torch.from_numpy(np.packbits(bits, axis=1, bitorder="little"))
    allowed = Allowed(torch.arange(5, 35), masks)
    computed = made_here.computed(made_here.model("grouped", {}))
    for rows in (SamplingRows(allowed=allowed), GREEDY):
        tokens, are_good = computed.choose(logits, rows.allowed)
        expected = sample(torch.from_numpy(logits), rows)
        result = torch.zeros((2, len(logits)), dtype=torch.int64)
        fails = fail_others(result, torch.from_numpy(logits), expected, rows)[1].numpy() == Finish.ERROR
        np.testing.assert_array_equal(are_good, ~fails)
        assert 5 < fails.sum() < 20
        np.testing.assert_array_equal(tokens[are_good], expected.numpy()[are_good])


@wanted
@pytest.mark.parametrize(
    "options", [{}, {"gated": False, "parallel": True, "int8": True}, {"int4": True}], ids=str
)
def test_spans_have_what_their_adapters_add(made_here: Made, options: dict[str, Any]) -> None:
    """Two adapters of other ranks, one of which changes some products only, and spans without one."""
    torch.manual_seed(9)
    model = made_here.model("odd", options, options)
    model.adapters = [
        [random_factors(layer, 40) for layer in model.layers],
        [
            {name: each for name, each in random_factors(layer, 5).items() if name != "o"}
            for layer in model.layers
        ],
    ]
    model.adapter_of = {0: 0, 1: 1, 3: 1, 4: 0, 5: 0}
    made_here.check(made_here.computed(model)(ALL), expected_logits(model))
    rows = [model.expected(span)[-1] for span in ALL if SPANS[span][2]]
    sampled = made_here.computed(model)(ALL, sampled_alone=True)
    made_here.check(sampled, model.logits(torch.stack(rows)))


def in_eights(linear: Linear) -> Linear:
    """Other numbers, in groups of 16."""
    codes = torch.randint(-128, 128, linear.weight.shape, dtype=torch.int8)
    scales = torch.randn(len(codes), codes.shape[1] // 16) / 1000
    return Linear(codes, linear.bias, scales)


def in_fours(linear: Linear) -> Linear:
    """With scales and minima of float32, as a file has them: activations stay as they are."""
    made = grouped(linear)
    assert made.scale is not None
    assert made.minimum is not None
    return replace(made, scale=made.scale.float(), minimum=made.minimum.float())


def in_shifted_eights(linear: Linear) -> Linear:
    """Likewise, with minima, of so few bits that products of codes and scales are exact."""
    codes = torch.randint(-32, 32, linear.weight.shape, dtype=torch.int8)
    scales, minima = (torch.randn(2, len(codes), codes.shape[1] // 16) / 100).bfloat16().float()
    return Linear(codes, linear.bias, scales, minima)


@wanted
@pytest.mark.parametrize("by_group", [in_fours, in_eights, in_shifted_eights])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", library.kinds_here())
def test_weights_by_group_give_what_their_numbers_in_the_models_type_give_to_the_last_bit(
    kind: Kind, dtype: torch.dtype, by_group: Callable[[Linear], Linear], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the head has bytes and is the embedding."""
    monkeypatch.setattr("python_backends.engine.cpu.model.HEAD_ROWS", 96)
    torch.manual_seed(12)
    made = Made(library.compiled(kind), dtype)
    model = made.model("odd", {"bias": True}, {"gated": False, "parallel": True})
    model.layers = [with_products(layer, by_group) for layer in model.layers]
    if by_group != in_fours:
        model.head = by_group(model.head)
        model.embedding, model.embedding_scale = model.head.weight, 1.7
    of_numbers = copy.copy(model)
    of_numbers.layers = [with_products(layer, as_numbers) for layer in model.layers]
    of_numbers.head = as_numbers(model.head)
    if by_group != in_fours:
        of_numbers.embedding = of_numbers.head.weight
    for spans in (ALL, *([span] for span in ALL)):
        assert torch.equal(made.computed(model)(spans), made.computed(of_numbers)(spans))


def as_numbers(linear: Linear) -> Linear:
    if linear.scale is None:
        return linear
    if linear.minimum is not None:
        return Linear(numbers(linear.weight, linear.scale, linear.minimum), linear.bias)
    groups = linear.weight.unflatten(1, (-1, 16)) * linear.scale[..., None]
    return Linear(groups.flatten(1), linear.bias)


def with_products(layer: Layer, changed: Callable[[Linear], Linear]) -> Layer:
    attention, fed = layer.attention, layer.feed_forward
    assert isinstance(fed, FeedForward)
    return replace(
        layer,
        attention=replace(attention, qkv=changed(attention.qkv), output=changed(attention.output)),
        feed_forward=replace(fed, up=changed(fed.up), down=changed(fed.down)),
    )


def random_factors(layer: Layer, rank: int) -> dict[str, Factors]:
    products = {
        "qkv": layer.attention.qkv,
        "o": layer.attention.output,
        "up": layer.feed_forward.up,
        "down": layer.feed_forward.down,
    }
    factors = {}
    for name, each in products.items():
        outputs, inputs = each.weight.shape
        factors[name] = (
            rounded(torch.randn(rank, inputs) / inputs**0.5),
            rounded(torch.randn(outputs, rank) / rank),
        )
    return factors


@wanted
def test_a_step_that_samples_nothing_leaves_the_keys_for_the_next_one(made_here: Made) -> None:
    torch.manual_seed(2)
    compute = made_here.computed(made_here.model("grouped", {}, {}))
    assert compute([3], sampled_alone=True).shape == (0, VOCABULARY)
    written = compute._cache.blocks.isfinite().sum(dim=(0, 3, 4, 5))
    assert (written == 70 * 2 * 32).all(), "of each layer, keys and values of 70 tokens in two heads of 32"


@wanted
def test_the_sampled_rows_have_the_hidden_states_of_the_layers_asked_for(made_here: Made) -> None:
    torch.manual_seed(2)
    model = made_here.model("grouped", {}, {"window": 32}, {})
    whole, without = (made_here.computed(model, state_layer=layer) for layer in (2, 0))
    logits = [compute(ALL, sampled_alone=True) for compute in (whole, without)]
    assert torch.equal(*logits), "the logits are what they are without them"
    model.layers = model.layers[:2]
    rows = [model.expected(span)[-1] for span in ALL if SPANS[span][2]]
    made_here.check(torch.from_numpy(whole.states), torch.stack(rows))


@wanted
@pytest.mark.parametrize("options", [{}, {"int8": True}, {"int4": True}], ids=str)
def test_a_row_is_the_same_to_the_last_bit_in_any_company(made_here: Made, options: dict[str, Any]) -> None:
    torch.manual_seed(3)
    model = made_here.model("grouped", {"bias": True, **options}, {"window": 20, **options})
    computes = [made_here.computed(model, threads=threads) for threads in (1, 3)]
    together = computes[0](ALL)
    ends = np.cumsum([0, *(tokens for _, tokens, _ in SPANS)])
    for span, (begin, end) in enumerate(pairwise(ends)):
        for compute in computes:
            assert torch.equal(compute([span]), together[begin:end])


@wanted
def test_results_do_not_depend_on_the_cache_that_weights_are_fetched_into(made_here: Made) -> None:
    torch.manual_seed(6)
    compute = made_here.computed(made_here.model("grouped", {}))
    logits = []
    for cache in fetch.CACHES:
        ctypes.CDLL(str(made_here.path)).gapless_fetch_into(cache)
        torch.manual_seed(7)
        logits.append(compute(ALL))
    assert torch.equal(*logits)


@wanted
def test_the_product_by_which_the_cache_is_chosen_is_that_of_the_layers() -> None:
    torch.manual_seed(8)
    path = library.library()
    assert path is not None
    x, weight = torch.randn(ROWS, DEPTH), torch.randn(PIECE * PANEL, DEPTH)
    trial = fetch.Trial(path)
    trial.x.copy_(x)
    trial.weights[1].copy_(packed(weight, WeightMemory()).view(PIECE, -1))
    assert trial.multiply(1, 1) > 0
    sums = trial.sums.transpose(0, 1).reshape(ROWS, -1)
    torch.testing.assert_close(sums, x @ weight.T, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("faster", fetch.CACHES)
def test_weights_are_fetched_into_the_cache_with_which_products_are_faster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, faster: int
) -> None:
    used: list[int] = []

    class Trial:
        def __init__(self, path: Path) -> None:
            self.fetch_into = used.append

        def multiply(self, number: int, piece: int) -> float:
            return 0.001 if number == faster or piece in (4, 5) else 0.002

    monkeypatch.setattr(fetch, "Trial", Trial)
    with caplog.at_level(logging.INFO, "gapless.instance"):
        fetch.use_faster_cache(Path(f"faster with {faster}"))
        fetch.use_faster_cache(Path(f"faster with {faster}"))
    assert used == [faster], "it is tried once in a process"
    assert f"into cache {faster} of the processor: 1.00 ms instead of 2.00" in caplog.text


@wanted
@pytest.mark.parametrize("factor", [64, 2.0**50], ids=["some hundred", "their cubes are infinite"])
@pytest.mark.parametrize(
    "activation", [Activation.SILU, Activation.GELU, Activation.GELU_TANH, Activation.RELU]
)
def test_gates_far_from_zero_stay_numbers(made_here: Made, activation: Activation, factor: float) -> None:
    torch.manual_seed(4)
    model = made_here.model("grouped", {"activation": activation})
    model.layers[0].feed_forward.up.weight.mul_(factor)
    expected = expected_logits(model)
    made_here.check(made_here.computed(model)(ALL), expected, float(expected.abs().max()))


@wanted
def test_scores_far_from_zero_stay_numbers(made_here: Made) -> None:
    torch.manual_seed(5)
    model = made_here.model("grouped", {})
    model.heads = replace(model.heads, scale=40.0)  # one token has nearly all of the attention
    assert torch.isfinite(made_here.computed(model)(ALL)).all()


# --- the engine


@pytest.mark.parametrize("name", sorted(BY_LAYERS))
@wanted
def test_tokens_in_bfloat16_are_nearly_as_good_as_those_of_float32(
    tiny: Callable[[str], TinyModel], name: str
) -> None:
    model, requests = tiny(name), random_requests(24, seed=8)
    engine = model.layers_engine(dtype="bfloat16", slots=8)
    answers = Serving(engine).run(requests)
    model.check_rounding("bfloat16, layers in C++", requests, answers, BFLOAT16_REGRET)


@wanted
@pytest.mark.parametrize("kind", library.kinds_here())
@pytest.mark.parametrize("name", ["gemma3", "phi3"])
def test_any_instructions_give_the_tokens_of_transformers(
    monkeypatch: pytest.MonkeyPatch, tiny: Callable[[str], TinyModel], name: str, kind: Kind
) -> None:
    monkeypatch.setattr("python_backends.engine.torch.engine.library", lambda: library.compiled(kind))
    requests = random_requests(6, seed=9, max_tokens=20)
    tiny(name).check_all(requests, Serving(tiny(name).layers_engine()).run(requests))


@wanted
def test_steps_have_no_rows_of_padding(one: TinyModel) -> None:
    """The same tokens as with one slot, whatever the number of rows and of threads."""
    requests = random_requests(11, seed=12, max_tokens=20)
    many, alone = (
        Serving(one.layers_engine(slots=slots, threads=threads), token_budget=1000)
        for slots, threads in ((11, 3), (1, 1))
    )
    assert many.run(requests) == alone.run(requests)


@wanted
def test_the_engine_says_why_it_has_no_layers(
    tiny: Callable[[str], TinyModel], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "gapless.instance"):
        engine = tiny("qwen3_moe").engine(block_tokens=32)
    assert "no layers of ours: they don't compute mixtures of experts" in caplog.text
    assert engine._layer_steps is None
