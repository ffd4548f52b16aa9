"""An embedding that is the weight of the head as well, held once: in the form in which the fused layers
multiply by it, out of which the rows of tokens are read.

Called by `fused_graph`, which packs weights.
"""

from __future__ import annotations

import openvino as ov
import torch
from openvino import opset15 as ops
from torch import Tensor

from python_backends.engine.openvino.graph import Node, integer
from python_backends.engine.openvino.weight_memory import PANEL, TILE, WeightMemory, packed


class TiedEmbedding:
    def __init__(self, weight: Tensor, memory: WeightMemory) -> None:
        """`weight`: [vocabulary, hidden] bfloat16, whose sizes PANEL divides."""
        self.vocab_size, self._hidden = weight.shape
        self.packed = packed(weight, memory)  # must live as long as the compiled graph

    def rows(self, tokens: Node) -> Node:
        """[tokens] → [tokens, hidden] float32"""
        places = ops.add(ops.gather(ops.constant(self._begins()), tokens, integer(0)), self._steps())
        bits = self.packed.view(torch.int16).view(-1, 2).numpy()
        pairs = ov.op.Constant(ov.Tensor(bits, list(bits.shape), ov.Type.bf16))
        found = ops.convert(ops.gather(pairs, places, integer(0)), "f32")
        return ops.reshape(found, ops.constant([-1, self._hidden]), False)

    def unpacked(self) -> Tensor:
        """The weight, in a memory of its own."""
        return self.packed.permute(0, 2, 4, 1, 3, 5).reshape(self.vocab_size, self._hidden)

    def _begins(self) -> Node:
        """[vocabulary, 1] the place of each token's first pair of numbers"""
        rows = torch.arange(self.vocab_size, dtype=torch.int32)
        panels, tiles = rows // PANEL * (self._hidden // 2 * PANEL), rows % PANEL // TILE * TILE**2
        return (panels + tiles + rows % TILE)[:, None].numpy()

    def _steps(self) -> Node:
        """[1, hidden / 2] from a token's first pair to each"""
        pairs = torch.arange(self._hidden // 2, dtype=torch.int32)
        return (pairs // TILE * (2 * TILE**2) + pairs % TILE * TILE)[None].numpy()
