"""What a forward pass keeps of a pack for its backward pass: rows of named tensors, one set a layer.

`LayerRecorder` stands in a decoder's block in place of its norms and projections, and copies what pruning
says before the block changes it in place. Without a pack it copies nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from python_backends.engine.torch.decoder import Block
from python_backends.engine.torch.operators import ResidualNorm
from python_backends.engine.torch.training.projection import AdaptedProjection
from python_backends.nouns.training import LayerPlan

BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
IN_CACHE = "kv"  # kept by the KV cache


@dataclass(frozen=True, slots=True, eq=False)
class Borrowed:
    memory: Tensor  # [all blocks, values]
    blocks: Sequence[int]  # those that may be used


class Activations:
    """Of `num_tokens` tokens; `plans` say what, one a layer. Of a plain RELU's input only signs may be kept,
    eight in a byte.
    """

    def __init__(
        self,
        plans: Sequence[LayerPlan],
        num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        borrowed: Borrowed | None = None,
    ) -> None:
        """`borrowed`: as many blocks as `num_blocks` says; None: memory of its own."""
        if borrowed is None:
            values = num_tokens * sum(_row_values(plans, dtype))
            borrowed = Borrowed(torch.empty((1, values), dtype=dtype, device=device), [0])
        places = _places(plans, num_tokens, dtype, borrowed.memory.shape[1])
        self._rows = [
            {name: Rows(next(places), borrowed, width) for name, width in _widths(plan).items()}
            for plan in plans
        ]

    def keep(self, layer: int, name: str, first: int, values: Tensor) -> None:
        """Copies `values` [tokens, width], those of the pack from token `first` on, if they are kept."""
        rows = self._rows[layer].get(name)
        if rows is not None:
            rows.write(first, _signs(values) if rows.is_bytes else values)

    def of(self, layer: int, name: str, first: int, last: int) -> Tensor | None:
        """What was kept of tokens [first, last): [tokens, width]. Of signs: 1 where the value was positive,
        else 0; enough for the gradient of RELU. None: it was not kept.
        """
        rows = self._rows[layer].get(name)
        return None if rows is None else rows.read(first, last)


@dataclass(frozen=True, slots=True)
class _Width:
    values: int  # of a row, or bytes
    is_bytes: bool


Places = list[tuple[int, int, int]]  # block, its first value and the number of rows there


class Rows:
    """Rows of one tensor, in pieces of the blocks of `borrowed` at `places`."""

    def __init__(self, places: Places, borrowed: Borrowed, width: _Width) -> None:
        self.is_bytes = width.is_bytes
        self._places, self._borrowed, self._width = places, borrowed, width

    @cached_property
    def _pieces(self) -> list[Tensor]:
        """Found when the rows are first used: for all tensors of a pack at once a step would have to wait."""
        memory, blocks, width = self._borrowed.memory, self._borrowed.blocks, self._width
        row_values, found = _values_of(width, memory.dtype), []
        for block, start, count in self._places:
            piece = memory[blocks[block], start : start + count * row_values].view(count, row_values)
            found.append(piece.view(torch.uint8)[:, : width.values] if width.is_bytes else piece)
        return found

    def write(self, first: int, values: Tensor) -> None:
        """`values` [rows, width] from row `first` on: by one operator, however many blocks they go to."""
        cuts = list(self._cuts(first, first + len(values)))
        torch._foreach_copy_([piece[here] for piece, here, _ in cuts], [values[there] for *_, there in cuts])

    def read(self, first: int, last: int) -> Tensor:
        """[rows, width]: a view where they lie in one piece, else a copy."""
        cuts = [piece[here] for piece, here, _ in self._cuts(first, last)]
        return cuts[0] if len(cuts) == 1 else torch.cat(cuts)

    def _cuts(self, first: int, last: int) -> Iterator[tuple[Tensor, slice, slice]]:
        """The pieces that have rows of [first, last), with these rows, and where they are in the whole."""
        begin = 0
        for piece in self._pieces:
            end = begin + len(piece)
            start, stop = max(first, begin), min(last, end)
            if start < stop:
                yield piece, slice(start - begin, stop - begin), slice(start - first, stop - first)
            begin = end


def num_blocks(plans: Sequence[LayerPlan], num_tokens: int, dtype: torch.dtype, block_values: int) -> int:
    """How many blocks of so many values the activations take. ValueError if a row does not fit into one."""
    places = [place for each in _places(plans, num_tokens, dtype, block_values) for place in each]
    return max((block for block, _, _ in places), default=-1) + 1


def _places(
    plans: Sequence[LayerPlan], num_tokens: int, dtype: torch.dtype, block_values: int
) -> Iterator[Places]:
    """Of each tensor in order: one after the other, rows not cut."""
    block = start = 0
    for row_values in _row_values(plans, dtype):
        if row_values > block_values:
            raise ValueError(
                f"a token keeps {row_values} values, a KV block has {block_values}: engine.block_tokens"
            )
        places, left = [], num_tokens
        while left:
            count = min(left, (block_values - start) // row_values)
            if count:
                places.append((block, start, count))
                start, left = start + count * row_values, left - count
            else:
                block, start = block + 1, 0
        yield places


def _row_values(plans: Sequence[LayerPlan], dtype: torch.dtype) -> list[int]:
    return [_values_of(width, dtype) for plan in plans for width in _widths(plan).values()]


def _values_of(width: _Width, dtype: torch.dtype) -> int:
    """A row of bytes takes whole values."""
    return -(-width.values // dtype.itemsize) if width.is_bytes else width.values


def _widths(plan: LayerPlan) -> dict[str, _Width]:
    return {
        name: _Width(-(-int(width * 32) // 8), True) if _is_bits(name, plan) else _Width(int(width), False)
        for name, width in plan.kept.items()
        if name != IN_CACHE
    }


def signs_of(packed: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[tokens, bytes] → [tokens, width] of 0 and 1."""
    return ((packed[:, :, None] & BITS.to(packed.device)) != 0).view(len(packed), -1)[:, :width].to(dtype)


def _signs(values: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(values > 0, (0, -values.shape[1] % 8))
    bits = padded.view(len(values), -1, 8) * BITS.to(values.device)
    return bits.sum(-1, dtype=torch.uint8)


def _is_bits(name: str, plan: LayerPlan) -> bool:
    return name == "gate_up" and plan.keeps_signs


class Recorder:
    """Copies what the blocks of a decoder show of the rows of a tile; rows after them are padding."""

    def __init__(self) -> None:
        self._activations: Activations | None = None
        self._first = self._num_rows = 0

    @contextmanager
    def recording(self, activations: Activations, first: int, num_rows: int) -> Iterator[None]:
        """Within it, the first `num_rows` of the batch are copied to `activations`, from token `first` of the
        pack on. Outside of it nothing is copied.
        """
        self._activations, self._first, self._num_rows = activations, first, num_rows
        try:
            yield
        finally:
            self._activations = None

    def keep(self, layer: int, name: str, values: Tensor) -> None:
        if self._activations is not None:
            self._activations.keep(layer, name, self._first, values[: self._num_rows])


class _RecordedNorm(ResidualNorm):
    """Keeps the residual stream that `norm` is given as `name`."""

    def __init__(self, norm: ResidualNorm, layer: int, name: str, recorder: Recorder) -> None:
        self.of = norm.of
        self._norm, self._layer, self._name, self._recorder = norm, layer, name, recorder

    def after(self, x: Tensor, added: Tensor | None, scale: float) -> Tensor:
        normed = self._norm.after(x, added, scale)
        self._recorder.keep(self._layer, self._name, x)
        return normed


class LayerRecorder:
    """Puts norms and projections that keep what they see into a block. `adapted`: its projections by name."""

    def __init__(
        self,
        block: Block,
        layer: int,
        adapted: dict[str, AdaptedProjection],
        widths: tuple[int, int],  # of queries; of queries and keys
        recorder: Recorder,
    ) -> None:
        self._layer, self._recorder = layer, recorder
        self._query, self._query_key = widths
        self._qkv: Tensor | None = None
        takes: dict[str, Callable[[Tensor], None]] = {
            "qkv": self._after_qkv,
            "o": self._after_o,
            "up": partial(recorder.keep, layer, "gate_up"),
            "down": partial(recorder.keep, layer, "fed"),
        }
        for name, projection in adapted.items():
            projection.watch(takes[name])
        block.replace(
            _RecordedNorm(block.norm, layer, "x1", recorder),
            _RecordedNorm(block.feed_forward_norm, layer, "x2", recorder),
            adapted,
        )

    def _after_qkv(self, qkv: Tensor) -> None:
        self._recorder.keep(self._layer, "qk", qkv[:, : self._query_key])
        self._qkv = qkv

    def _after_o(self, attended: Tensor) -> None:
        """By now queries and keys are normed and rotated, in place."""
        assert self._qkv is not None
        self._recorder.keep(self._layer, "q", self._qkv[:, : self._query])
        self._recorder.keep(self._layer, "attended", attended)
        self._qkv = None
