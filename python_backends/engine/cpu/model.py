"""A described model as the library takes it: its weights packed, and the tables of `layers.h` that say where
they lie.

Owns the packed weights. Called by the torch engine at its start.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ctypes import POINTER, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.engine.cpu.weight_memory import (
    PANEL,
    WeightMemory,
    in_eights,
    in_panels,
    in_quads,
    packed_fours,
    tiled,
)
from python_backends.engine.kv.kv_cache import KVCache
from python_backends.engine.model.description import (
    Activation,
    FeedForward,
    Layer,
    Linear,
    Model,
    Norm,
    NormKind,
)
from python_backends.engine.model.used_rows import used_up
from python_backends.engine.slots.allowed import Allowed
from python_backends.nouns.request import Floats

# in the order of their numbers in layers.h
ACTIVATIONS = (
    Activation.SILU,
    Activation.GELU,
    Activation.GELU_TANH,
    Activation.RELU,
    Activation.RELU_SQUARED,
)
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
BYTES = 7  # of int8, with rows of bfloat16 rounded to it
FOURS = {torch.half: 3, torch.float32: 6}  # of uint8 by group, by the type of its scales
EIGHTS = {1: 4, 2: 5}  # of int8 by group, by how many numbers a group has: scale, or scale and minimum
HEAD_ROWS = 4096  # that are packed at a time; a multiple of PANEL


class Weight(ctypes.Structure):
    _fields_: ClassVar = [
        ("panels", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("outputs", c_int32),
        ("depth", c_int32),
        ("format", c_int32),
    ]


class NormTable(ctypes.Structure):
    _fields_: ClassVar = [
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("width", c_int32),
        ("centred", c_int32),
        ("eps", c_float),
    ]


class LayerTable(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, Weight) for name in ("qkv", "output", "up", "down")),
        *((name, NormTable) for name in ("attention_norm", "output_norm", "feed_forward_norm", "down_norm")),
        *((name, NormTable) for name in ("q_norm", "k_norm")),
        *((name, c_void_p) for name in ("keys", "values")),
        *((name, c_float) for name in ("residual_scale", "score_softcap")),
        *((name, c_int32) for name in ("window", "rotary", "activation", "gated", "parallel")),
    ]


class RotaryTable(ctypes.Structure):
    _fields_: ClassVar = [("cos", c_void_p), ("sin", c_void_p)]


class ModelTable(ctypes.Structure):
    _fields_: ClassVar = [
        ("layers", POINTER(LayerTable)),
        ("rotaries", POINTER(RotaryTable)),
        ("embedding", c_void_p),
        ("positions", c_void_p),
        ("norm", NormTable),
        ("head", Weight),
        ("block_stride", c_int64),
        *((name, c_int32) for name in ("format", "num_layers", "num_rotaries", "state_layer")),
        *((name, c_int32) for name in ("hidden", "query_heads", "kv_heads", "head_dim")),
        *((name, c_float) for name in ("attention_scale", "embedding_scale", "logit_scale", "logit_softcap")),
    ]


class FactorsTable(ctypes.Structure):
    _fields_: ClassVar = [("a", c_void_p), ("b", c_void_p), ("rank", c_int32)]


class StepTable(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("tokens", "past", "begins", "blocks", "block_begins", "sampled")),
        *((name, c_void_p) for name in ("logits", "states", "adapters", "adapter_of")),
        ("num_spans", c_int32),
        ("num_sampled", c_int32),
    ]


class ChoiceTable(ctypes.Structure):
    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("logits", "masks", "mask_of", "tokens", "are_good")),
        *((name, c_int32) for name in ("rows", "vocabulary", "mask_bytes")),
    ]


class PackedModel:
    """For sequences of up to `num_positions` tokens. Complete when it has its layers."""

    def __init__(
        self,
        model: Model,
        dtype: torch.dtype,
        num_positions: int,
        state_layer: int = 0,
        multiplies_bytes: bool = False,
    ) -> None:
        """`dtype`: of what is multiplied, of keys and of values. `state_layer`: the number of layers after
        which hidden states are given; 0: none are given. `multiplies_bytes`: as the library says. Uses up
        the head's weight in `model`, which may be most of it: rows that are packed give their memory back.
        """
        self.vocab_size, self.hidden = model.embedding.shape
        self.state_layer = state_layer
        self._turning, self._num_positions = model.rotaries, num_positions
        self._memory = WeightMemory()
        self._kept: list[Tensor] = []  # what the tables point to
        self._dtype = dtype
        self._multiplies_bytes = multiplies_bytes and dtype == torch.bfloat16
        head = self._packed_head(model.head)
        heads = model.heads
        self._table = ModelTable(
            embedding=None if model.is_tied else self._place(model.embedding),
            positions=None if model.positions is None else self._place(model.positions.float()),
            norm=self._norm(model.norm),
            head=head,
            format=FORMATS[self._dtype],
            num_rotaries=len(model.rotaries),
            state_layer=state_layer,
            hidden=self.hidden,
            query_heads=heads.num_query_heads,
            kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            attention_scale=heads.scale,
            embedding_scale=model.embedding_scale,
            logit_scale=model.logit_scale,
            logit_softcap=model.logit_softcap or 0.0,
        )

    def take(self, layers: Iterable[Layer]) -> None:
        """All of them, one at a time. Tables of angles are made here, where the embedding that was packed may
        be gone: loading takes less memory at its peak.
        """
        tables = [
            [self._place(table) for table in each.tables(self._num_positions)] for each in self._turning
        ]
        self._rotaries = (RotaryTable * len(tables))(*(RotaryTable(*each) for each in tables))
        self._table.rotaries = self._rotaries
        rows = list(map(self._layer, layers))  # keeps none while the next one is read
        self._layers = (LayerTable * len(rows))(*rows)
        self._table.layers, self._table.num_layers = self._layers, len(rows)
        self.is_gated = bool(rows[0].gated)  # all are or none

    def open(self, library: Path, cache: KVCache, threads: int) -> OpenModel:
        """With keys and values in `cache`. `threads`: with the one that calls."""
        shape = cache.shape
        part = shape.num_kv_heads * shape.block_tokens * shape.head_dim  # numbers: keys of a layer in a block
        self._table.block_stride = shape.num_layers * 2 * part
        for index, layer in enumerate(self._layers):
            layer.keys = cache.blocks.data_ptr() + index * 2 * part * shape.dtype.itemsize
            layer.values = layer.keys + part * shape.dtype.itemsize
        return OpenModel(library, self, self._table, threads)

    def _layer(self, layer: Layer) -> LayerTable:
        attention, feed_forward = layer.attention, layer.feed_forward
        assert isinstance(feed_forward, FeedForward)
        shared = layer.feed_forward_norm or layer.attention_norm
        return LayerTable(
            qkv=self._packed(attention.qkv),
            output=self._packed(attention.output),
            up=self._packed(feed_forward.up, feed_forward.gated),
            down=self._packed(feed_forward.down),
            attention_norm=self._norm(layer.attention_norm),
            output_norm=self._norm(layer.attention_output_norm),
            feed_forward_norm=self._norm(shared if layer.parallel else layer.feed_forward_norm),
            down_norm=self._norm(layer.feed_forward_output_norm),
            q_norm=self._norm(attention.q_norm),
            k_norm=self._norm(attention.k_norm),
            residual_scale=layer.residual_scale,
            score_softcap=attention.softcap or 0.0,
            window=attention.window or 0,
            rotary=-1 if attention.rotary is None else attention.rotary,
            activation=ACTIVATIONS.index(feed_forward.activation),
            gated=feed_forward.gated,
            parallel=layer.parallel,
        )

    def _packed(self, linear: Linear, gated: bool = False) -> Weight:
        outputs, depth = linear.weight.shape
        of_outputs, of_groups = None, numbers_of_groups(linear)
        if linear.weight.dtype == torch.uint8:
            kept = torch.float32 if self._dtype == torch.float32 else of_groups[0].dtype
            panels = packed_fours(linear, self._memory, kept, gated)
            kind = FOURS[kept]
        elif of_groups:
            panels = self._memory.copied(in_eights(linear.weight, *of_groups, gated=gated))
            kind = EIGHTS[len(of_groups)]
        else:
            panels = self._memory.copied(self._in_panels(linear.weight, gated))
            kind, of_outputs = self._kind(linear.weight.dtype), linear.scale
        scales_of_outputs, bias = (self._of_outputs(numbers, gated) for numbers in (of_outputs, linear.bias))
        return Weight(self._place(panels), scales_of_outputs, bias, outputs, depth, kind)

    def _packed_head(self, head: Linear) -> Weight:
        outputs, depth = head.weight.shape
        rows = used_up(head.weight.contiguous().split(HEAD_ROWS))  # type: ignore[no-untyped-call]
        pieces, of_outputs = (self._in_panels(each) for each in rows), head.scale
        kind = self._kind(head.weight.dtype)
        if of_groups := numbers_of_groups(head):
            kind, of_outputs = EIGHTS[len(of_groups)], None
            split = [each.split(HEAD_ROWS) for each in of_groups]  # type: ignore[no-untyped-call]
            pieces = (in_eights(*part) for part in zip(rows, *split, strict=True))
        panels = self._memory.joined(pieces, -(-outputs // PANEL))
        scales_of_outputs, bias = (self._of_outputs(numbers, False) for numbers in (of_outputs, head.bias))
        return Weight(self._place(panels), scales_of_outputs, bias, outputs, depth, kind)

    def _kind(self, dtype: torch.dtype) -> int:
        """The format of a weight that has no groups."""
        return BYTES if dtype == torch.int8 and self._multiplies_bytes else FORMATS[dtype]

    def _in_panels(self, weight: Tensor, gated: bool = False) -> Tensor:
        if self._kind(weight.dtype) == BYTES:
            return in_quads(weight, gated)
        return in_panels(weight, gated, self._dtype)

    def _of_outputs(self, numbers: Tensor | None, gated: bool) -> int | None:
        """One for each output of a weight, in the order of its panels."""
        return None if numbers is None else self._place(tiled(numbers.float(), gated).flatten())

    def _norm(self, norm: Norm | None) -> NormTable:
        if norm is None:
            return NormTable()
        bias = None if norm.bias is None else self._place(norm.bias.float())
        weight, is_centred = self._place(norm.weight.float()), norm.kind == NormKind.LAYER
        return NormTable(weight, bias, len(norm.weight), is_centred, norm.eps)

    def _place(self, tensor: Tensor) -> int:
        self._kept.append(tensor)
        return tensor.data_ptr()


def numbers_of_groups(linear: Linear) -> list[Tensor]:
    """Scales, or scales and minima; none: it has none, or scales of outputs."""
    if linear.scale is None or linear.scale.dim() == 1:
        return []
    return [linear.scale] if linear.minimum is None else [linear.scale, linear.minimum]


class OpenModel:
    """A packed model that the library computes, with threads of its own."""

    def __init__(self, library: Path, model: PackedModel, table: ModelTable, threads: int) -> None:
        self.model = model  # the library reads its numbers where they lie
        functions = ctypes.CDLL(str(library))
        functions.gapless_open.restype = c_void_p
        functions.gapless_begin.argtypes = [c_void_p, POINTER(StepTable)]
        functions.gapless_finish.argtypes = functions.gapless_close.argtypes = [c_void_p]
        self._begin, self._finish = functions.gapless_begin, functions.gapless_finish
        functions.gapless_choose.argtypes = [c_void_p, POINTER(ChoiceTable)]
        self._choose, self._close = functions.gapless_choose, functions.gapless_close
        self._open = functions.gapless_open(ctypes.byref(table), c_int32(threads))
        assert self._open, "the library was not made for the model's type"

    @contextmanager
    def computing(self, step: StepTable) -> Iterator[None]:
        """Within it the library's other threads compute; at its end this one as well, until all is computed,
        and other threads of Python go on meanwhile.
        """
        self._begin(self._open, step)
        try:
            yield
        finally:
            self._finish(self._open)

    def choose(self, logits: Floats, allowed: Allowed | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Of `logits` [rows, vocabulary] the greatest of each row, or of those that may come, and whether
        they are good, each [rows]: as the sampler chooses greedy rows, and `fail_others` fails them.
        """
        rows, vocabulary = logits.shape
        tokens, are_good = np.empty(rows, np.int64), np.empty(rows, np.bool_)
        places = [logits.ctypes.data, None, None, tokens.ctypes.data, are_good.ctypes.data]
        mask_bytes = 0
        if allowed is not None:
            masks, mask_of = allowed.masks.numpy(), np.full(rows, -1, np.int32)
            mask_of[allowed.rows.numpy()] = np.arange(len(masks))
            places[1:3], mask_bytes = [masks.ctypes.data, mask_of.ctypes.data], masks.shape[1]
        self._choose(self._open, ChoiceTable(*places, rows, vocabulary, mask_bytes))
        return tokens, are_good

    def close(self) -> None:
        """Ends the threads. Nothing is computed afterwards."""
        if self._open:
            self._close(self._open)
            self._open = None

    def __del__(self) -> None:
        self.close()
