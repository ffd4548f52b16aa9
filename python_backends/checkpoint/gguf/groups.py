"""Weights of 4 bits as a GGUF file has them: of 32 neighbouring inputs of an output w = s·q + m, with q from
0 to 15. Such a w in float32 is to the last bit what the package gguf gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from python_backends.checkpoint.source import Groups, Stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Parts = tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]  # q, s and m of blocks

MIDDLE = 8  # the q of Q4_0 that stands for 0


def groups_of(where: Stored) -> Groups | None:
    """None: the type has no such weights. Raises OSError, and ValueError where the file ends before."""
    import torch

    if where.dtype not in KINDS or len(where.shape) != 2:
        return None
    block_bytes, parts_of = KINDS[where.dtype]
    blocks = np.fromfile(where.file, np.uint8, where.num_bytes, offset=where.begin or 0)
    parts = parts_of(blocks.reshape(-1, block_bytes))
    return Groups(*(torch.from_numpy(each.reshape(where.shape[0], -1)) for each in parts))


def _q4_0(blocks: NDArray[np.uint8]) -> Parts:
    scales = _halves(blocks, 0)
    return _codes(blocks[:, 2:], 16), scales, -MIDDLE * scales


def _q4_1(blocks: NDArray[np.uint8]) -> Parts:
    return _codes(blocks[:, 4:], 16), _halves(blocks, 0), _halves(blocks, 1)


def _q4_k(blocks: NDArray[np.uint8]) -> Parts:
    """Eight groups a block, with scales and minima of 6 bits."""
    from gguf.quants import Q4_K

    scales, minima = Q4_K.get_scale_min(blocks[:, 4:16])
    return _codes(blocks[:, 16:], 32), _halves(blocks, 0) * scales, -(_halves(blocks, 1) * minima)


def _codes(content: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """The low halves of `width` bytes, then their high ones, and so on."""
    both = content.reshape(-1, 1, width) >> np.array([0, 4], np.uint8)[:, None]
    return both & np.uint8(15)


def _halves(blocks: NDArray[np.uint8], place: int) -> NDArray[np.float32]:
    """[blocks, 1]: the number of float16 at a place, in float32."""
    found: NDArray[np.float32] = (
        blocks[:, 2 * place : 2 * place + 2].copy().view(np.float16).astype(np.float32)
    )
    return found


# bytes of a block, and what is in them
KINDS: Mapping[str, tuple[int, Callable[[Any], Parts]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q4_K": (144, _q4_k),
}
