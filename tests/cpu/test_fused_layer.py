"""Our operation for layers that follow each other: its results compared with torch's, and the engine with and
without it.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from openvino import opset15 as ops
from torch import Tensor
from torch.nn import functional

from python_backends.engine.model.description import (
    Activation,
    Attention,
    FeedForward,
    Heads,
    Layer,
    Linear,
    Norm,
    NormKind,
    Rotary,
)
from python_backends.engine.model.loading import facts_of
from python_backends.engine.openvino import BLOCK_TOKENS, fused_fetch, fused_graph, fused_layer, known_fault
from python_backends.engine.openvino import engine as openvino_engine
from python_backends.engine.openvino.fused_fetch import DEPTH, PIECE, ROWS
from python_backends.engine.openvino.fused_graph import (
    PANEL,
    READ,
    FusedGraph,
    FusedLayers,
    FusedOperation,
    fits,
)
from python_backends.engine.openvino.fused_layer import Kind
from python_backends.engine.openvino.graph import Graph, Node, floats
from python_backends.engine.openvino.inputs import StepInputs
from python_backends.engine.openvino.known_fault import AMX
from python_backends.engine.openvino.weight_memory import WeightMemory
from python_backends.instance import build as instance_build
from python_backends.linux.processor import processor_flags
from python_backends.settings import SettingsError
from tests.support.emulated_tiles import compiled_with_emulated_tiles
from tests.support.tiny_models import (
    BFLOAT16_REGRET,
    BY_TORCH_ALONE,
    RELATIVES,
    TINY,
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

wanted = pytest.mark.skipif(
    fused_layer.library() is None, reason="wants a C++ compiler, and AVX512_BF16 or AMX"
)


def random_linear(outputs: int, inputs: int, bias: bool) -> Linear:
    weight = torch.randn(outputs, inputs) / inputs**0.5
    return Linear(weight.bfloat16(), torch.randn(outputs).bfloat16() if bias else None)


def random_norm(width: int = HIDDEN) -> Norm:
    return Norm(NormKind.RMS, torch.rand(width) + 0.5, None, 1e-5)


def random_layer(
    heads: Heads,
    *,
    bias: bool = False,
    norms: bool = False,
    window: int | None = None,
    turns: bool = True,
    gelu: bool = False,
    normed_before: bool = True,
    normed_after: bool = False,
    residual_scale: float = 1,
) -> Layer:
    """`norms`: of queries and keys; `normed_before` and `normed_after`: attention and feed-forward."""
    attention = Attention(
        random_linear(heads.query_width + 2 * heads.kv_width, HIDDEN, bias),
        random_linear(HIDDEN, heads.query_width, bias),
        random_norm(heads.head_dim) if norms else None,
        random_norm(heads.head_dim) if norms else None,
        0 if turns else None,
        window,
        None,
    )
    up, down = random_linear(2 * GATED, HIDDEN, bias), random_linear(HIDDEN, GATED, bias)
    feed_forward = FeedForward(up, down, Activation.GELU_TANH if gelu else Activation.SILU, gated=True)
    return Layer(
        attention,
        feed_forward,
        random_norm() if normed_before else None,
        random_norm() if normed_after else None,
        random_norm() if normed_before else None,
        random_norm() if normed_after else None,
        parallel=False,
        residual_scale=residual_scale,
    )


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


def linear(x: Tensor, by: Linear) -> Tensor:
    return functional.linear(x, by.weight.float(), None if by.bias is None else by.bias.float())


def normed(x: Tensor, norm: Norm | None) -> Tensor:
    return x if norm is None else functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps)


class Model:
    """Layers with random weights, sequences whose tokens are partly in KV blocks, and what torch computes."""

    def __init__(self, heads: Heads, layers: list[Layer]) -> None:
        self.heads, self.layers = heads, layers
        self.norm, self.head = random_norm(), random_linear(VOCABULARY, HIDDEN, bias=False)
        self.rotary = Rotary(ROTARY.frequencies[: heads.head_dim // 2], ROTARY.scale)
        # of each layer and span, all that is in KV blocks: [2, kv_heads, tokens, dim]
        self.past = [
            [rounded(torch.randn(2, heads.num_kv_heads, past, heads.head_dim)) for past, _, _ in SPANS]
            for _ in layers
        ]
        self.x = [torch.randn(tokens, HIDDEN) for _, tokens, _ in SPANS]

    def expected(self, span: int) -> Tensor:
        """x [tokens, hidden] of a span after all layers, by torch in float32, rounded to bfloat16 where the
        operation rounds.
        """
        x = self.x[span]
        for index, layer in enumerate(self.layers):
            scale, feed_forward = layer.residual_scale, layer.feed_forward
            attended = linear(self._attended(x, span, index), layer.attention.output)
            x = x + scale * normed(attended, layer.attention_output_norm)
            gate, up = linear(rounded(normed(x, layer.feed_forward_norm)), feed_forward.up).chunk(2, -1)
            is_silu = feed_forward.activation == Activation.SILU
            gate = functional.silu(gate) if is_silu else functional.gelu(gate, approximate="tanh")
            fed = linear(rounded(gate * up), feed_forward.down)
            x = x + scale * normed(fed, layer.feed_forward_output_norm)
        return x

    def logits(self, x: Tensor) -> Tensor:
        return linear(rounded(normed(x, self.norm)), self.head)

    def _attended(self, x: Tensor, span: int, index: int) -> Tensor:
        heads, attention, past = self.heads, self.layers[index].attention, SPANS[span][0]
        qkv = rounded(linear(rounded(normed(x, self.layers[index].attention_norm)), attention.qkv))
        q, k, v = (
            part.unflatten(-1, (-1, heads.head_dim)).transpose(0, 1)
            for part in qkv.split([heads.query_width, heads.kv_width, heads.kv_width], -1)
        )
        q = rounded(self._turned(normed(q, attention.q_norm), past, attention))
        k = rounded(self._turned(normed(k, attention.k_norm), past, attention))
        k, v = torch.cat([self.past[index][span], torch.stack([k, v])], 2).repeat_interleave(heads.group, 1)
        distance = past + torch.arange(len(x))[:, None] - torch.arange(k.shape[1])
        is_seen = (distance >= 0) & (distance < (attention.window or k.shape[1]))
        attended = functional.scaled_dot_product_attention(q, k, v, is_seen, scale=heads.scale)
        return rounded(attended.transpose(0, 1).flatten(1))

    def _turned(self, x: Tensor, past: int, attention: Attention) -> Tensor:
        if attention.rotary is None:
            return x
        cos, sin = (table[past : past + x.shape[1]] for table in self.rotary.tables(POSITIONS))
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Computed:
    """A model by the operation, of all rows or the logits of the sampled ones."""

    def __init__(
        self, operation: FusedOperation, model: Model, *, to_logits: bool = False, state_layer: int = 0
    ) -> None:
        self._model = model
        self._parameters: list[Node] = []
        x = self._input("x", [-1, 1, HIDDEN], ov.Type.f32)
        inputs = [self._input(name, [-1], ov.Type.i32) for name in READ]
        tables = [floats(table) for table in model.rotary.tables(POSITIONS)]
        layers = FusedLayers(model.heads, inputs, tables, WeightMemory())
        shape = [-1, model.heads.num_kv_heads, BLOCK_TOKENS, model.heads.head_dim]
        for index, layer in enumerate(model.layers):
            caches = [self._input(f"{index}.{part}", shape, ov.Type.bf16) for part in ("key", "value")]
            layers.add(layer, caches)
            if index + 1 == state_layer:
                layers.give_states()
        nodes = (
            operation.scores(x, layers, model.norm, model.head) if to_logits else operation.after(x, layers)
        )
        whole = ov.Model([ops.result(node) for node in nodes], self._parameters, "one operation")
        options = {"INFERENCE_PRECISION_HINT": "bf16"}
        self._request = ov.Core().compile_model(whole, "CPU", options).create_infer_request()

    def __call__(self, spans: list[int]) -> Tensor:
        """[rows, width] of the spans of SPANS. Where a KV block holds no token, it holds no numbers."""
        past, tokens = ([SPANS[span][part] for span in spans] for part in (0, 1))
        counts = [-(-(SPANS[span][0] + SPANS[span][1]) // BLOCK_TOKENS) for span in spans]
        ends = np.cumsum(tokens)
        blocks = torch.randperm(sum(counts) + 3)[: sum(counts)]
        values = {
            "past_lens": past,
            "subsequence_begins": [0, *ends],
            "block_indices": blocks.tolist(),
            "block_indices_begins": [0, *np.cumsum(counts)],
            "sampling_rows": [end - 1 for end, span in zip(ends, spans, strict=True) if SPANS[span][2]],
        }
        self._put("x", torch.cat([self._model.x[span] for span in spans])[:, None].numpy())
        for name, value in values.items():
            self._put(name, np.array(value, np.int32))
        of_span, caches = blocks.split(counts), []  # the request reads the caches where they lie
        for index in range(len(self._model.layers)):
            for part, name in enumerate(("key", "value")):
                heads = self._model.heads
                cache = torch.full(
                    (sum(counts) + 3, heads.num_kv_heads, BLOCK_TOKENS, heads.head_dim), np.nan
                )
                for span, its_blocks in zip(spans, of_span, strict=True):
                    kept = self._model.past[index][span][part]
                    for place, block in enumerate(its_blocks):
                        tokens_of_it = kept[:, place * BLOCK_TOKENS : (place + 1) * BLOCK_TOKENS]
                        cache[block, :, : tokens_of_it.shape[1]] = tokens_of_it
                bits = cache.bfloat16().view(torch.int16).numpy()
                caches.append(bits)
                self._request.set_tensor(f"{index}.{name}", ov.Tensor(bits, list(bits.shape), ov.Type.bf16))
        self._request.infer()
        return self.output(0)

    def output(self, index: int) -> Tensor:
        return torch.from_numpy(np.array(self._request.get_output_tensor(index).data))[:, 0]

    def _input(self, name: str, shape: list[int], kind: ov.Type) -> Node:
        parameter = ops.parameter(shape, kind, name=name)
        parameter.output(0).get_tensor().set_names({name})
        self._parameters.append(parameter)
        return parameter

    def _put(self, name: str, value: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> None:
        self._request.set_tensor(name, ov.Tensor(value))


KINDS: list[str] = [*fused_layer.kinds_here(), "emulated tiles"] if fused_layer.kinds_here() else []


@pytest.fixture(scope="module", params=KINDS)
def fused_library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For everything that this processor can multiply with, and for tiles whether it has them or not."""
    if isinstance(request.param, Kind):
        return fused_layer.compiled(request.param)
    return compiled_with_emulated_tiles(tmp_path_factory.mktemp("tiles"))


@pytest.fixture
def operation(fused_library: Path) -> FusedOperation:
    return FusedOperation(fused_library)


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
    {"gelu": True},
    {"normed_after": True, "residual_scale": 0.3},
    {"normed_after": True, "normed_before": False, "gelu": True},
]
TOGETHER: list[dict[str, Any]] = [
    {},
    {"bias": True, "norms": True, "window": 20},
    {"turns": False, "window": 64, "gelu": True, "normed_after": True},
]


@wanted
@pytest.mark.parametrize(
    ("name", "options"), [*product(["grouped"], ALONE), *product(HEADS, TOGETHER)], ids=str
)
def test_it_computes_what_torch_computes(
    operation: FusedOperation, name: str, options: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    model = Model(HEADS[name], [random_layer(HEADS[name], **options)])
    got = Computed(operation, model)(ALL)
    expected = torch.cat([model.expected(span) for span in ALL])
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=0.05)


@wanted
def test_the_sampled_rows_have_the_logits_of_all_layers(operation: FusedOperation) -> None:
    torch.manual_seed(2)
    heads = HEADS["grouped"]
    model = Model(heads, [random_layer(heads), random_layer(heads, window=32), random_layer(heads)])
    rows = [model.expected(span)[-1] for span in ALL if SPANS[span][2]]
    got = Computed(operation, model, to_logits=True)(ALL)
    torch.testing.assert_close(got, model.logits(torch.stack(rows)), rtol=2**-6, atol=0.1)


@pytest.mark.parametrize("to_logits", [True, False])
@wanted
def test_the_sampled_rows_have_the_hidden_states_of_the_layers_asked_for(
    operation: FusedOperation, to_logits: bool
) -> None:
    torch.manual_seed(2)
    heads = HEADS["grouped"]
    model = Model(heads, [random_layer(heads), random_layer(heads, window=32), random_layer(heads)])
    whole, without = (Computed(operation, model, to_logits=to_logits, state_layer=layer) for layer in (2, 0))
    assert torch.equal(whole(ALL), without(ALL)), "the result is what it is without them"
    model.layers = model.layers[:2]
    rows = [model.expected(span)[-1] for span in ALL if SPANS[span][2]]
    torch.testing.assert_close(whole.output(1), torch.stack(rows), rtol=2**-6, atol=0.1)


@wanted
def test_a_row_is_the_same_to_the_last_bit_in_any_company(operation: FusedOperation) -> None:
    torch.manual_seed(3)
    heads = HEADS["grouped"]
    compute = Computed(
        operation, Model(heads, [random_layer(heads, bias=True), random_layer(heads, window=20)])
    )
    together = compute(ALL)
    ends = np.cumsum([0, *(tokens for _, tokens, _ in SPANS)])
    for span, (begin, end) in enumerate(pairwise(ends)):
        assert torch.equal(compute([span]), together[begin:end])


@wanted
def test_results_do_not_depend_on_the_cache_that_weights_are_fetched_into(fused_library: Path) -> None:
    torch.manual_seed(6)
    heads = HEADS["grouped"]
    compute = Computed(FusedOperation(fused_library), Model(heads, [random_layer(heads)]), to_logits=True)
    logits = []
    for cache in fused_fetch.CACHES:
        ctypes.CDLL(str(fused_library)).gapless_fetch_into(cache)
        torch.manual_seed(7)
        logits.append(compute(ALL))
    assert torch.equal(*logits)


@wanted
def test_the_product_by_which_the_cache_is_chosen_is_that_of_the_layers(fused_library: Path) -> None:
    torch.manual_seed(8)
    x, weight = torch.randn(ROWS, DEPTH).bfloat16(), random_linear(PIECE * PANEL, DEPTH, bias=False)
    (packed,) = fused_graph._packed("weight", weight, WeightMemory()).values()
    trial = fused_fetch.Trial(fused_library)
    trial.x.copy_(x)
    trial.weights[1].copy_(torch.from_numpy(packed.data.copy()).view(torch.bfloat16).view(PIECE, -1))
    assert trial.multiply(1, 1) > 0
    sums = trial.sums.transpose(0, 1).reshape(ROWS, -1)
    torch.testing.assert_close(sums, x.float() @ weight.weight.float().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("faster", fused_fetch.CACHES)
def test_weights_are_fetched_into_the_cache_with_which_products_are_faster(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, faster: int
) -> None:
    used: list[int] = []

    class Trial:
        def __init__(self, library: Path) -> None:
            self.fetch_into = used.append

        def multiply(self, number: int, piece: int) -> float:
            return 0.001 if number == faster or piece in (4, 5) else 0.002

    monkeypatch.setattr(fused_fetch, "Trial", Trial)
    with caplog.at_level(logging.INFO, "gapless.instance"):
        fused_fetch.use_faster_cache(Path(f"faster with {faster}"))
        fused_fetch.use_faster_cache(Path(f"faster with {faster}"))
    assert used == [faster], "it is tried once in a process"
    assert f"into cache {faster} of the processor: 1.00 ms instead of 2.00" in caplog.text


@wanted
@pytest.mark.parametrize("factor", [64, 2.0**50], ids=["some hundred", "their cubes are infinite"])
@pytest.mark.parametrize("gelu", [False, True])
def test_gates_far_from_zero_stay_numbers(operation: FusedOperation, gelu: bool, factor: float) -> None:
    torch.manual_seed(4)
    heads = HEADS["grouped"]
    model = Model(heads, [random_layer(heads, gelu=gelu)])
    model.layers[0].feed_forward.up.weight.mul_(factor)
    expected = torch.cat([model.expected(span) for span in ALL])
    atol = 2**-7 * float(expected.abs().max())
    torch.testing.assert_close(Computed(operation, model)(ALL), expected, rtol=2**-7, atol=atol)


@wanted
def test_scores_far_from_zero_stay_numbers(operation: FusedOperation) -> None:
    torch.manual_seed(5)
    heads = replace(HEADS["grouped"], scale=40.0)  # one token has nearly all of the attention
    model = Model(heads, [random_layer(heads)])
    got = Computed(operation, model)(ALL)
    assert torch.isfinite(got).all()


def spied_padding(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the steps of the engines that are made are padded."""
    pads: list[bool] = []

    def make(request: ov.InferRequest, dead_slot: int, wants_padding: bool) -> StepInputs:
        pads.append(wants_padding)
        return StepInputs(request, dead_slot, wants_padding)

    monkeypatch.setattr(openvino_engine, "StepInputs", make)
    return pads


@wanted
def test_steps_of_one_operation_have_no_rows_of_padding(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """11 rows would be padded to 12: the same tokens as with one slot, where there is nothing to pad."""
    pads = spied_padding(monkeypatch)
    requests = random_requests(11, seed=12, max_tokens=20)
    many, alone = (
        Serving(one.openvino_engine(dtype="bfloat16", fused_layers="on", slots=slots), token_budget=1000)
        for slots in (11, 1)
    )
    assert pads == [False, False]
    assert many.run(requests) == alone.run(requests)


@wanted
def test_what_a_graph_is_made_from_is_freed_before_it_is_compiled(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the weights would lie there as long as OpenVINO makes its own."""
    alive: list[int] = []
    compiled = openvino_engine._compiled

    def count_and_compile(*args: Any) -> ov.CompiledModel:
        gc.collect()
        alive.append(sum(issubclass(type(each), Graph | FusedLayers) for each in gc.get_objects()))
        return compiled(*args)

    monkeypatch.setattr(openvino_engine, "_compiled", count_and_compile)
    one.openvino_engine(dtype="bfloat16", fused_layers="on")
    assert alive == [0]


@pytest.mark.parametrize("refused", [{0}, {1}, {2}, {0, 2}])
@wanted
def test_layers_of_both_kinds_follow_each_other(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch, refused: set[int]
) -> None:
    asked = iter(range(3))
    monkeypatch.setattr(
        fused_graph, "fits", lambda layer, heads: next(asked) not in refused and fits(layer, heads)
    )
    requests = random_requests(24, seed=8)
    pads = spied_padding(monkeypatch)
    engine = one.openvino_engine(dtype="bfloat16", fused_layers="on", slots=8)
    assert pads == [True]
    assert next(asked, None) is None, "every layer was looked at"
    what = f"bfloat16, openvino, layers {refused} its own"
    one.check_rounding(what, requests, Serving(engine).run(requests), BFLOAT16_REGRET)


@wanted
def test_a_tied_embedding_is_the_head_of_layers_that_are_openvinos_own(
    tiny: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_graph, "fits", lambda layer, heads: False)
    made: list[FusedGraph] = []
    build = FusedGraph.build
    monkeypatch.setattr(FusedGraph, "build", lambda graph, layers: made.append(graph) or build(graph, layers))
    requests = random_requests(8, seed=9)
    tokens = [
        Serving(tiny("qwen2").openvino_engine(dtype="bfloat16", fused_layers=fused, slots=4)).run(requests)
        for fused in ("on", "off")
    ]
    assert made[0]._tied is not None
    assert tokens[0] == tokens[1]


@pytest.mark.parametrize("name", sorted((TINY | RELATIVES).keys() - BY_TORCH_ALONE))
@wanted
def test_its_tokens_are_nearly_as_good_as_those_of_float32(
    tiny: Callable[[str], TinyModel], name: str
) -> None:
    """Its own layers are OpenVINO's, of which those of the models that share mechanisms are alike."""
    model, requests = tiny(name), random_requests(24, seed=8)
    for fused in ("on", "off") if name in TINY else ("on",):
        engine = model.openvino_engine(
            dtype="bfloat16", fused_layers=fused, slots=8, threads=threads_for(fused)
        )
        answers = Serving(engine).run(requests)
        model.check_rounding(
            f"bfloat16, openvino, {'fused' if fused == 'on' else 'its own'} layers",
            requests,
            answers,
            BFLOAT16_REGRET,
        )


def threads_for(fused: str) -> int:
    """OpenVINO's own layers of Gemma want two where there is AMX."""
    return 2 if fused == "off" and processor_flags() >= AMX else 1


@wanted
def test_where_openvinos_own_layers_would_end_the_process_they_are_neither_made_nor_tried(
    tiny: Callable[[str], TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gemma in bfloat16 for one thread, on a processor that is said to have AMX."""
    monkeypatch.setattr(known_fault, "processor_flags", lambda: AMX)
    monkeypatch.setattr(instance_build, "with_faster_layers", lambda *_: pytest.fail("it is tried"))
    monkeypatch.setattr(openvino_engine, "_compiled", lambda *_: pytest.fail("it is compiled"))
    gemma = tiny("gemma3")
    with pytest.raises(SettingsError, match=r"engine\.threads = 1: .* give it two, or set"):
        gemma.openvino_engine(dtype="bfloat16", fused_layers="off")
    settings = gemma.settings(kind="openvino", dtype="bfloat16", block_tokens=32, fused_layers="auto")
    monkeypatch.undo()
    monkeypatch.setattr(known_fault, "processor_flags", lambda: AMX)
    monkeypatch.setattr(instance_build, "with_faster_layers", lambda *_: pytest.fail("it is tried"))
    scheduler, engine = instance_build.build(settings)
    assert scheduler.limits.num_slots == engine.limits.num_slots
    for other in ({"threads": 2}, {"dtype": "float32"}):
        settings = gemma.settings(**{"dtype": "bfloat16"} | other)
        known = known_fault.would_end_the_process(settings, facts_of(settings))
        assert not known or len(os.sched_getaffinity(0)) == 1


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where a processor that has what is needed would find it."""
    monkeypatch.setattr(fused_layer, "ROOT", tmp_path)
    monkeypatch.setattr(fused_layer, "processor_flags", lambda: fused_layer.VECTORS)
    fused_layer.library.cache_clear()
    yield tmp_path / "run" / "compiled"
    fused_layer.library.cache_clear()


@pytest.mark.usefixtures("nothing_compiled")
def test_without_a_compiler_it_says_so_and_serves(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO, "gapless.instance"):
        answers = Serving(one.openvino_engine(dtype="bfloat16", fused_layers="on")).run(random_requests(2))
    assert "no fused layers: a C++ compiler would make them" in caplog.text
    assert len(answers) == 2


@pytest.mark.usefixtures("nothing_compiled")
def test_where_openvino_is_installed_otherwise_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(fused_layer, "OPENVINO", tmp_path)
    with caplog.at_level(logging.INFO, "gapless.instance"):
        assert fused_layer.library() is None
    assert f"no fused layers: there is no {tmp_path}/libs/libopenvino.so.*" in caplog.text


def test_what_does_not_compile_is_shown_and_left_out(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "fused_layers.cpp"
    source.write_text("this is no C++")
    monkeypatch.setattr(fused_layer, "SOURCE", source)
    assert fused_layer.library() is None
    assert "this is no C++" in caplog.text
    assert list(nothing_compiled.iterdir()) == []


def test_an_older_compiler_makes_what_it_can(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """One that does not know tiles fails for these; the processor has vectors, too."""
    compiler = tmp_path / "g++-10"
    wants_output = (
        'while [ "$1" != -o ]; do case "$1" in -mamx*) echo "unrecognized option $1" >&2; exit 1 ;; esac;'
        " shift; done"
    )
    compiler.write_text(f'#!/bin/sh\n{wants_output}\necho made >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(fused_layer, "_obstacle", lambda path: "")
    monkeypatch.setattr(fused_layer, "kinds_here", lambda: list(Kind))
    made = fused_layer.library()
    assert made is not None
    assert made.name.startswith("fused-layer-vectors-")
    assert [path.name for path in nothing_compiled.iterdir()] == [made.name]


@pytest.fixture
def made(nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A library in its place, made under a umask that lets everybody write."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec g++ -shared -x c++ /dev/null -o "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    umask = os.umask(0)
    try:
        yield fused_layer.compiled(Kind.VECTORS)
    finally:
        os.umask(umask)


def test_nobody_else_may_write_what_is_made_whatever_the_umask(made: Path) -> None:
    assert [oct(path.stat().st_mode & 0o777) for path in (made.parent, made)] == ["0o755", "0o755"]
    made.parent.chmod(0o777)  # as an earlier version left it
    assert fused_layer.compiled(Kind.VECTORS) == made
    assert oct(made.parent.stat().st_mode & 0o777) == "0o755"


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "zeros"])
def test_a_library_that_cannot_be_loaded_is_compiled_again(made: Path, damage: str) -> None:
    whole = made.read_bytes()
    damaged = {"empty": b"", "cut": whole[: len(whole) // 2], "text": b"made", "zeros": bytes(len(whole))}
    made.unlink()  # this process has it loaded, and would die at its end if that file changed
    made.write_bytes(damaged[damage])
    made.chmod(0o755)
    assert fused_layer.library() == made
    ctypes.CDLL(str(made))


def test_a_library_that_this_host_cannot_load_is_compiled_again_and_left_out_if_that_does_not_help(
    made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that needs a newer library of C++ than there is."""

    def refuse(path: str) -> None:
        raise OSError("GLIBCXX_3.4.99 not found")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(fused_layer, "kinds_here", lambda: [Kind.VECTORS])
    assert made.exists()
    assert fused_layer.library() is None
    assert "is compiled again: GLIBCXX_3.4.99 not found" in caplog.text
    assert "no fused layers: " in caplog.text


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_library_that_others_may_write_is_not_run(
    made: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    made.chmod(mode)
    assert fused_layer.library() is None
    assert "other users may write it" in caplog.text


def test_a_library_of_somebody_else_is_not_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_layer, "trusted_owners", lambda: {4711})
    assert made.exists()
    assert fused_layer.library() is None


@pytest.mark.usefixtures("nothing_compiled")
def test_another_processor_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fused_layer, "processor_flags", lambda: {"avx2"})
    with caplog.at_level(logging.INFO, "gapless.instance"):
        assert fused_layer.library() is None
    assert "the processor has no avx512_bf16, avx512bw" in caplog.text


def test_layers_that_it_does_not_compute_are_openvinos() -> None:
    heads = HEADS["grouped"]
    layer = random_layer(heads, norms=True)
    assert fits(layer, heads)
    attention = layer.attention
    float32 = Linear(torch.zeros(HIDDEN, heads.query_width), None)
    others = [
        replace(layer, parallel=True),
        replace(layer, attention_norm=replace(random_norm(), kind=NormKind.LAYER)),
        replace(layer, feed_forward=replace(layer.feed_forward, activation=Activation.GELU)),
        replace(layer, feed_forward=replace(layer.feed_forward, gated=False)),
        replace(layer, attention=replace(attention, output=float32)),
        replace(layer, attention=replace(attention, output=random_linear(HIDDEN, 136, bias=False))),
        replace(layer, attention=replace(attention, softcap=30.0)),
        replace(layer, attention=replace(attention, q_norm=random_norm(heads.query_width))),
    ]
    assert not any(fits(other, heads) for other in others)
    assert not fits(layer, replace(heads, num_query_heads=2 * fused_graph.PANEL + 2))
