"""Weights of few bits as a GGUF file has them: of neighbouring inputs of an output w = s·q + m, with q from 0
to 15 for 32 of them, or with a byte q for 16; of some types m is 0. Such a w in float32 is to the last bit
what the package gguf gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from python_backends.checkpoint.rows import rows_at_once
from python_backends.checkpoint.source import Groups, Stored

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Numbers = NDArray[np.float32]
    Parts = tuple[NDArray[Any], ...]  # q, s and m of blocks, or q and s; q of int8 where it is for 16

MIDDLE = 8  # the q of Q4_0 whose weight is 0


def groups_of(where: Stored) -> Groups | None:
    """None: the type has no such weights. Raises OSError, and ValueError where the file ends before."""
    import torch

    if where.dtype not in KINDS or len(where.shape) != 2:
        return None
    block_bytes, parts_of = KINDS[where.dtype]
    count, size = where.shape[0], rows_at_once(where.shape[1])
    wholes: list[NDArray[Any]] = []  # filled some rows at a time, so that none is in memory twice
    with where.file.open("rb") as file:
        file.seek(where.begin or 0)
        for first in range(0, count, size):
            number = min(size, count - first)
            blocks = np.fromfile(file, np.uint8, where.num_bytes // count * number)
            parts = [part.reshape(number, -1) for part in parts_of(blocks.reshape(-1, block_bytes))]
            wholes = wholes or [np.empty((count, part.shape[1]), part.dtype) for part in parts]
            for whole, part in zip(wholes, parts, strict=True):
                whole[first : first + number] = part
    codes, scales, *minima = map(torch.from_numpy, wholes)
    return Groups(codes, scales, minima[0] if minima else None)


def _q4_0(blocks: Bytes) -> Parts:
    scales = _halves(blocks, 0)
    return _fours(blocks[:, 2:], 16), scales, -MIDDLE * scales


def _q4_1(blocks: Bytes) -> Parts:
    return _fours(blocks[:, 4:], 16), _halves(blocks, 0), _halves(blocks, 2)


def _q4_k(blocks: Bytes) -> Parts:
    return _fours(blocks[:, 16:], 32), *_eight_groups(blocks)


def _q2_k(blocks: Bytes) -> Parts:
    """16 groups a block, with scales and minima of 4 bits."""
    scales, minima = blocks[:, :16] & np.uint8(15), blocks[:, :16] >> np.uint8(4)
    codes = _twos(blocks[:, 16:80]).view(np.int8)
    return codes, _halves(blocks, 80) * scales, -(_halves(blocks, 82) * minima)


def _q3_k(blocks: Bytes) -> Parts:
    """16 groups a block, with scales of 6 bits: 4 of each, then 2 of each. 4 less where a bit is not set."""
    low = _fours(blocks[:, 96:104], 8).reshape(-1, 16)
    high = blocks[:, None, 104:108] >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    scales = (low | (high.reshape(-1, 16) & np.uint8(3)) << np.uint8(4)).view(np.int8) - np.int8(32)
    third = _bits(blocks[:, :32]).reshape(-1, 256) << np.uint8(2)
    codes = (_twos(blocks[:, 32:96]).reshape(third.shape) | third).view(np.int8)
    return codes - np.int8(4), _halves(blocks, 108) * scales


def _q5_0(blocks: Bytes) -> Parts:
    codes = _fours(blocks[:, 6:], 16).reshape(-1, 32) | _fifth(blocks[:, 2:6])
    return codes.view(np.int8) - np.int8(16), _halves(blocks, 0).repeat(2, 1)


def _q5_1(blocks: Bytes) -> Parts:
    codes = _fours(blocks[:, 8:], 16).reshape(-1, 32) | _fifth(blocks[:, 4:8])
    return codes.view(np.int8), _halves(blocks, 0).repeat(2, 1), _halves(blocks, 2).repeat(2, 1)


def _q5_k(blocks: Bytes) -> Parts:
    fifth = _bits(blocks[:, 16:48]).reshape(-1, 256) << np.uint8(4)
    codes = _fours(blocks[:, 48:], 32).reshape(fifth.shape) | fifth
    scales, minima = (each.repeat(2, 1) for each in _eight_groups(blocks))
    return codes.view(np.int8), scales, minima


def _q6_k(blocks: Bytes) -> Parts:
    """16 groups a block, with scales of 8 bits."""
    high = _twos(blocks[:, 128:192]).reshape(-1, 256) << np.uint8(4)
    codes = _fours(blocks[:, :128], 64).reshape(high.shape) | high
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(np.int8)
    return codes.view(np.int8) - np.int8(32), scales


def _q8_0(blocks: Bytes) -> Parts:
    return blocks[:, 2:].view(np.int8), _halves(blocks, 0).repeat(2, 1)


def _fours(content: Bytes, width: int) -> Bytes:
    """The low halves of `width` bytes, then their high ones, and so on."""
    both = content.reshape(-1, 1, width) >> np.array([0, 4], np.uint8)[:, None]
    return both & np.uint8(15)


def _eight_groups(blocks: Bytes) -> tuple[Numbers, Numbers]:
    """Scales and minima of 6 bits."""
    from gguf.quants import Q4_K

    scales, minima = Q4_K.get_scale_min(blocks[:, 4:16])
    return _halves(blocks, 0) * scales, -(_halves(blocks, 2) * minima)


def _fifth(content: Bytes) -> Bytes:
    """[blocks, 32]: the highest of five bits of each code."""
    return np.unpackbits(content, axis=1, bitorder="little") << np.uint8(4)


def _twos(content: Bytes) -> Bytes:
    """[…, 4, 32]: the lowest two bits of 32 bytes, then the next ones, and so on."""
    both = content.reshape(-1, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return both & np.uint8(3)


def _bits(content: Bytes) -> Bytes:
    """[blocks, 8, 32]: the lowest bit of 32 bytes, then the next ones, and so on."""
    return content.reshape(-1, 1, 32) >> np.arange(8, dtype=np.uint8)[:, None] & np.uint8(1)


def _halves(blocks: Bytes, place: int) -> Numbers:
    """[blocks, 1]: the number of float16 from a byte on, in float32."""
    found: Numbers = blocks[:, place : place + 2].copy().view(np.float16).astype(np.float32)
    return found


# bytes of a block, and what is in them
KINDS: Mapping[str, tuple[int, Callable[[Any], Parts]]] = {
    "Q2_K": (84, _q2_k),
    "Q3_K": (110, _q3_k),
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q4_K": (144, _q4_k),
    "Q5_0": (22, _q5_0),
    "Q5_1": (24, _q5_1),
    "Q5_K": (176, _q5_k),
    "Q6_K": (210, _q6_k),
    "Q8_0": (34, _q8_0),
}
