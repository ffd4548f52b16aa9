"""The last ban: of some rows of a step, only the tokens in a mask may come. The other rows stay as they are,
bit for bit. Owns nothing; called by the sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BYTE_BITS = 8
_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
ADDED = np.where(_BYTES, np.float32(0), np.float32(-np.inf))  # for each byte of a mask


@dataclass(frozen=True, slots=True)
class Allowed:
    rows: Tensor  # [guided] of the batch, ascending
    masks: Tensor  # [guided, bytes] uint8: bit i of byte j is token 8 · j + i


def only_allowed(logits: Tensor, allowed: Allowed) -> Tensor:
    """A copy of `logits` [rows, vocabulary] with −inf for what may not come; on a CPU in float32."""
    if logits.device.type == "cpu":
        logits = logits.float()
        some = logits[allowed.rows] + added(allowed.masks, logits.shape[1])
    else:
        banned = ~unpacked(allowed.masks, logits.shape[1])
        some = logits[allowed.rows].masked_fill_(banned, float("-inf"))
    return some if len(some) == len(logits) else logits.index_copy(0, allowed.rows, some)


def are_allowed(tokens: Tensor, allowed: Allowed) -> Tensor:
    """[guided] whether the `tokens` [rows] of the rows that have a mask are in it."""
    chosen = tokens[allowed.rows]
    found = allowed.masks.gather(1, (chosen // BYTE_BITS)[:, None])[:, 0]
    return ((found >> (chosen % BYTE_BITS)) & 1).bool()


def added(masks: Tensor, vocabulary: int) -> Tensor:
    """[guided, vocabulary] on a CPU: what is added to the logits, 0 or −inf. Eight numbers for each byte are
    looked up: that takes a tenth of the time of unpacking bits.
    """
    found = ADDED.take(masks.numpy(), 0).reshape(len(masks), -1)
    return torch.from_numpy(found[:, :vocabulary])


def unpacked(masks: Tensor, vocabulary: int) -> Tensor:
    """[guided, vocabulary] bool, on any device."""
    places = torch.arange(BYTE_BITS, dtype=torch.uint8, device=masks.device)
    bits = (masks[:, :, None] >> places) & 1
    return bits.flatten(1)[:, :vocabulary].bool()
