"""The last ban: of some rows of a step, only the tokens in a mask may come. The other rows stay as they are,
bit for bit. Owns nothing; called by the sampler.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BYTE_BITS = 8


@dataclass(frozen=True, slots=True)
class Allowed:
    rows: Tensor  # [guided] of the batch, ascending
    masks: Tensor  # [guided, bytes] uint8: bit i of byte j is token 8 · j + i


def only_allowed(logits: Tensor, allowed: Allowed) -> Tensor:
    """A copy of `logits` [rows, vocabulary] with −inf for what may not come."""
    # on a CPU by numpy, which takes a tenth of the time of torch's operators
    unpacked = unpacked_by_numpy if logits.device.type == "cpu" else unpacked_by_torch
    banned = ~unpacked(allowed.masks, logits.shape[1])
    if len(banned) == len(logits):
        return logits.masked_fill(banned, float("-inf"))
    some = logits[allowed.rows].masked_fill_(banned, float("-inf"))
    return logits.index_copy(0, allowed.rows, some)


def best_allowed(logits: Tensor, best: Tensor, allowed: Allowed) -> Tensor:
    """On a CPU: `best` [rows] are the tokens with the greatest of `logits` [rows, vocabulary], the lowest id
    among equals. The same among those that may come: most of them are. Where none may, `best` stays.
    """
    refused = np.flatnonzero(~are_allowed(best, allowed).numpy())
    if not len(refused):
        return best
    tokens = best.numpy().copy()
    for place in refused.tolist():
        row = int(allowed.rows[place])
        may = unpacked_by_numpy(allowed.masks[place : place + 1], logits.shape[1])[0].numpy()
        tokens[row] = np.where(may, logits[row].float().numpy(), -np.inf).argmax()
    return torch.from_numpy(tokens)


def are_allowed(tokens: Tensor, allowed: Allowed) -> Tensor:
    """[guided] whether the `tokens` [rows] of the rows that have a mask are in it."""
    chosen = tokens[allowed.rows]
    found = allowed.masks.gather(1, (chosen // BYTE_BITS)[:, None])[:, 0]
    return ((found >> (chosen % BYTE_BITS)) & 1).bool()


def unpacked_by_numpy(masks: Tensor, vocabulary: int) -> Tensor:
    """[guided, vocabulary] bool"""
    unpacked = np.unpackbits(masks.numpy(), axis=1, count=vocabulary, bitorder="little")
    return torch.from_numpy(unpacked).view(torch.bool)


def unpacked_by_torch(masks: Tensor, vocabulary: int) -> Tensor:
    """The same on any device."""
    places = torch.arange(BYTE_BITS, dtype=torch.uint8, device=masks.device)
    bits = (masks[:, :, None] >> places) & 1
    return bits.flatten(1)[:, :vocabulary].bool()
