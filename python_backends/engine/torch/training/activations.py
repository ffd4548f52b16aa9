"""What a forward pass keeps of a pack for its backward pass: rows of named tensors, one set a layer.

`LayerRecorder` stands in a decoder's block in place of its norms and projections, and copies what pruning
says before the block changes it in place. Without a pack it copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from python_backends.engine.torch.decoder import Block
from python_backends.engine.torch.operators import ResidualNorm
from python_backends.engine.torch.training.projection import AdaptedProjection
from python_backends.nouns.training import LayerPlan

BITS = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8)
IN_CACHE = "kv"  # kept by the KV cache


class Activations:
    """Of `num_tokens` tokens; `plans` say what, one a layer. Values of less than a bit each are the signs of
    a plain RELU's input, eight in a byte.
    """

    def __init__(
        self, plans: Sequence[LayerPlan], num_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._rows: list[dict[str, Tensor]] = []
        self._up_widths = [0] * len(plans)
        for plan in plans:
            rows = {}
            for name, width in plan.kept.items():
                if name != IN_CACHE:
                    kind, count = (dtype, int(width)) if not _is_bits(name, plan) else _bytes(width)
                    rows[name] = torch.empty((num_tokens, count), dtype=kind, device=device)
            self._rows.append(rows)

    @property
    def num_bytes(self) -> int:
        """Without keys and values."""
        return sum(rows.nbytes for layer in self._rows for rows in layer.values())

    def keep(self, layer: int, name: str, first: int, values: Tensor) -> None:
        """Copies `values` [tokens, width], those of the pack from token `first` on, if they are kept."""
        rows = self._rows[layer].get(name)
        if rows is not None:
            is_bits = rows.dtype == torch.uint8
            rows[first : first + len(values)] = _signs(values) if is_bits else values

    def of(self, layer: int, name: str, first: int, last: int) -> Tensor | None:
        """What was kept of tokens [first, last): [tokens, width]. Of signs: 1 where the value was positive,
        else 0; enough for the gradient of RELU. None: it was not kept.
        """
        rows = self._rows[layer].get(name)
        if rows is None:
            return None
        return rows[first:last]


def signs_of(packed: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """[tokens, bytes] → [tokens, width] of 0 and 1."""
    return ((packed[:, :, None] & BITS.to(packed.device)) != 0).view(len(packed), -1)[:, :width].to(dtype)


def _signs(values: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(values > 0, (0, -values.shape[1] % 8))
    bits = padded.view(len(values), -1, 8) * BITS.to(values.device)
    return bits.sum(-1, dtype=torch.uint8)


def _is_bits(name: str, plan: LayerPlan) -> bool:
    return name == "gate_up" and plan.keeps_signs


def _bytes(width: float) -> tuple[torch.dtype, int]:
    return torch.uint8, -(-int(width * 32) // 8)


class Recorder:
    """What the blocks of a decoder show of the rows of a window: copied to `activations` from token `first`
    on, as far as the window's own `num_rows` go; rows after them are padding.
    """

    def __init__(self) -> None:
        self.activations: Activations | None = None
        self._first = self._num_rows = 0

    def begin(self, activations: Activations, first: int, num_rows: int) -> None:
        self.activations, self._first, self._num_rows = activations, first, num_rows

    def end(self) -> None:
        self.activations = None

    def keep(self, layer: int, name: str, values: Tensor) -> None:
        if self.activations is not None:
            self.activations.keep(layer, name, self._first, values[: self._num_rows])


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
        takes = {"qkv": self._after_qkv, "o": self._after_o, "up": self._after_up, "down": self._after_down}
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

    def _after_up(self, gate_up: Tensor) -> None:
        self._recorder.keep(self._layer, "gate_up", gate_up)

    def _after_down(self, fed: Tensor) -> None:
        self._recorder.keep(self._layer, "fed", fed)
