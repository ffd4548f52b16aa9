"""The backward pass of one layer, tile by tile from the last token to the first: explicit products, and
torch's vector-Jacobian products of what stands between them.

Attention gives gradients to the keys and values of all earlier tokens of a sequence; they add up until the
tile of those tokens comes. So a tile's own are complete when it is computed. Values that were not kept are
made again. The formulas are those of `engine/model/description.py`, differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from python_backends.engine.torch.attention_spans import Rotation, attention_mask
from python_backends.engine.torch.training.activations import Activations, signs_of
from python_backends.engine.torch.training.projection import AdaptedProjection
from python_backends.engine.torch.training.small_operators import Pullback, SmallOperators, vjp
from python_backends.nouns.training import LayerPlan, Pack, Tile

MOST_MASKS = 16  # that are kept for other layers: as many as a pack of some sequences needs


@dataclass(frozen=True, slots=True, eq=False)
class PackState:
    """What lives while a pack is computed."""

    pack: Pack
    activations: Activations
    keys_values: Callable[[int, int, int, int], tuple[Tensor, Tensor]]  # of layer, sequence, [first, last)
    rotations: list[Rotation]  # of all tokens of the pack
    dx: Tensor  # [tokens, hidden] d(loss)/dx of the residual stream before the layer above
    dk: Tensor  # [tokens, kv_width] of the layer that is computed; float32 or better
    dv: Tensor
    masks: dict[tuple[int, int, int, int | None], Tensor] = field(default_factory=dict)

    def mask(self, first: int, last: int, first_key: int, window: int | None, keys: Tensor) -> Tensor:
        """Of tokens [first, last) of the pack, which read those from `first_key` on: the same for each layer
        of a window.
        """
        where = first, last, first_key, window
        if where not in self.masks:
            if len(self.masks) >= MOST_MASKS:
                self.masks.clear()
            positions = torch.arange(first, last, device=keys.device)
            tokens = torch.arange(first_key, last, device=keys.device)
            self.masks[where] = attention_mask(positions, tokens, window, keys.dtype)
        return self.masks[where]


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    index: int
    small: SmallOperators
    projections: dict[str, AdaptedProjection]
    plan: LayerPlan
    dtype: torch.dtype


def backward(layer: LayerParts, state: PackState, tile: Tile) -> None:
    """Replaces d(loss)/dx of the tile's tokens by that of the layer's input, and adds to the gradients of the
    layer's adapters.
    """
    if tile.last == len(state.pack.tokens):
        state.dk.zero_()
        state.dv.zero_()
    _TilePass(layer, state, tile).run()


class _TilePass:
    """One tile; values of the forward pass are made when they are first asked for."""

    def __init__(self, layer: LayerParts, state: PackState, tile: Tile) -> None:
        self._layer, self._small, self._state = layer, layer.small, state
        self._needs, self._projections = layer.plan.needs, layer.projections
        self._first, self._last = tile.first, tile.last
        self._rows = slice(tile.first, tile.last)

    def run(self) -> None:
        dy = self._state.dx[self._rows]
        from_feed_forward, d_normed = self._feed_forward(dy) if self._needs.down else (None, None)
        dx = dy if from_feed_forward is None else dy + from_feed_forward
        if self._needs.o:
            from_attention = self._attention(dy if self._small.facts.parallel else dx)
            if from_attention is not None:
                d_normed = from_attention if d_normed is None else d_normed + from_attention
        if self._needs.input:
            if d_normed is not None:
                dx = dx + self._normed[1](d_normed)[0]
            self._state.dx[self._rows] = dx

    def _feed_forward(self, dy: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """d(loss)/dx through the feed-forward part: of the residual stream before it, and of the attention's
        norm where that is shared.
        """
        d_fed = self._cast(self._small.residual_scale * dy)
        if self._small.facts.norms_fed:
            fed = self._kept("fed")
            fed = self._projections["down"].value(self._gate[0]) if fed is None else fed
            (d_fed,) = vjp(self._small.fed_norm, fed)[1](d_fed)
        act, gate_back = self._gate
        if not self._needs.up:
            self._projections["down"].backward(d_fed, act)
            return None, None
        (d_up,) = gate_back(self._projections["down"].back(d_fed, act))
        normed, norm_back = self._feed_forward_normed
        if not self._needs.fed_norm:
            self._projections["up"].backward(d_up, normed)
            return None, None
        d_normed = self._projections["up"].back(d_up, normed)
        if self._small.shares_norm:
            return None, d_normed
        return norm_back(d_normed)[0], None

    def _attention(self, d_stream: Tensor) -> Tensor | None:
        """Through attention: d(loss) of its normed input."""
        d_attended = self._cast(self._small.residual_scale * d_stream)
        if self._small.facts.norms_attended:
            (d_attended,) = vjp(self._small.attended_norm, self._attended)[1](d_attended)
        if not self._needs.qkv:
            self._projections["o"].backward(d_attended, self._out)
            return None
        d_out = self._projections["o"].back(d_attended, self._out)
        d_queries = torch.cat([self._through_scores(piece, d_out) for piece in self._attention_pieces])
        d_keys, d_values = (self._cast(each[self._rows]) for each in (self._state.dk, self._state.dv))
        (d_qk,) = self._place_back(torch.cat((d_queries, d_keys), 1))
        d_qkv = torch.cat((d_qk, d_values), 1)
        if not self._needs.input:
            self._projections["qkv"].backward(d_qkv, self._normed[0])
            return None
        return self._projections["qkv"].back(d_qkv, self._normed[0])

    def _through_scores(self, piece: _AttentionPiece, d_out: Tensor) -> Tensor:
        """Adds to the gradients of all keys and values that the piece reads; those of its queries."""
        begin, end = piece.rows
        d_q, d_k, d_v = piece.back(d_out[begin - self._first : end - self._first])
        keys = slice(piece.first_key, end)
        for total, part in ((self._state.dk, d_k), (self._state.dv, d_v)):
            total[keys] += part.transpose(0, 1).reshape(part.shape[1], -1)
        return d_q

    # --- values of the forward pass, kept or made again

    def _kept(self, name: str) -> Tensor | None:
        return self._state.activations.of(self._layer.index, name, self._first, self._last)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self._layer.dtype)

    @cached_property
    def _x1(self) -> Tensor:
        x1 = self._kept("x1")
        assert x1 is not None
        return x1

    @cached_property
    def _normed(self) -> tuple[Tensor, Pullback]:
        return vjp(self._small.norm, self._x1)

    @cached_property
    def _rotation(self) -> Rotation | None:
        if self._small.rotary is None:
            return None
        cos, sin = self._state.rotations[self._small.rotary]
        return cos[self._rows], sin[self._rows]

    @cached_property
    def _placed(self) -> tuple[Tensor, Pullback]:
        """Rotated queries and keys."""
        qk = self._kept("qk")
        if qk is None:
            qkv = self._projections["qkv"].value(self._normed[0])
            qk = qkv[:, : self._small.facts.query + self._small.facts.kv]
        return vjp(lambda qk: self._small.place(qk, self._rotation), qk)

    @cached_property
    def _queries(self) -> Tensor:
        q = self._kept("q")
        return self._placed[0][:, : self._small.facts.query] if q is None else q

    def _place_back(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """A rotation alone is linear: where it is, the values don't matter."""
        if self._small.facts.norms_heads:
            return self._placed[1](gradient)
        back = vjp(lambda qk: self._small.place(qk, self._rotation), torch.zeros_like(gradient))[1]
        return back(gradient)

    @cached_property
    def _attention_pieces(self) -> list[_AttentionPiece]:
        return [self._piece(*piece) for piece in self._state.pack.pieces(self._first, self._last)]

    def _piece(self, sequence: int, first: int, last: int) -> _AttentionPiece:
        begin = self._state.pack.bounds[sequence]
        window = self._small.window
        first_key = begin if window is None else max(begin, first - window + 1)
        keys, values = self._state.keys_values(self._layer.index, sequence, first_key - begin, last - begin)
        mask = self._state.mask(first, last, first_key, window, keys)
        q = self._queries[first - self._first : last - self._first]
        out, back = vjp(lambda q, k, v: self._small.attend(q, k, v, mask), q, keys, values)
        return _AttentionPiece((first, last), first_key, out, back)

    @cached_property
    def _out(self) -> Tensor:
        """Of attention, before its product."""
        return torch.cat([piece.out for piece in self._attention_pieces])

    @cached_property
    def _attended(self) -> Tensor:
        attended = self._kept("attended")
        return self._projections["o"].value(self._out) if attended is None else attended

    @cached_property
    def _x2(self) -> Tensor:
        if self._small.facts.parallel:
            return self._x1
        x2 = self._kept("x2")
        if x2 is not None:
            return x2
        return self._x1 + self._small.residual_scale * self._small.attended_norm(self._attended)

    @cached_property
    def _feed_forward_normed(self) -> tuple[Tensor, Pullback]:
        return self._normed if self._small.shares_norm else vjp(self._small.feed_forward_norm, self._x2)

    @cached_property
    def _gate(self) -> tuple[Tensor, Pullback]:
        gate_up = self._kept("gate_up")
        if gate_up is None:
            gate_up = self._projections["up"].value(self._feed_forward_normed[0])
        elif self._layer.plan.keeps_signs:
            gate_up = signs_of(gate_up, self._small.facts.up, self._layer.dtype)
        return vjp(self._small.gate, gate_up)


@dataclass(frozen=True, slots=True, eq=False)
class _AttentionPiece:
    """The tokens `rows` of a pack, all of one sequence, which read keys from `first_key` on."""

    rows: tuple[int, int]
    first_key: int
    out: Tensor  # [tokens, heads · dim]
    back: Pullback
