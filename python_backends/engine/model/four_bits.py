"""Weights of 4 bits by group: of up to 32 neighbouring inputs of an output w = s·q + m, with q from 0 to 15,
s and m of float16.

What has such weights already keeps them: of groups whose numbers lie at equal distances, that distance is s.
So GGUF's Q4_0 and Q4_1 stay what they are, to the last bit; of AWQ and GPTQ m is rounded to float16, as
numbers are that their files stand for. s may be negative. Owns nothing; called by `quantised`.
"""

from __future__ import annotations

from math import gcd

import torch
from torch import Tensor

GROUP = 32
LARGEST = 15
SAMPLED = 256  # groups of a weight that are looked at first
CHUNK = 1 << 12  # groups at a time: what is computed of them stays in a cache

Grouped = tuple[Tensor, Tensor, Tensor]


def in_groups(weight: Tensor) -> Grouped:
    """q [..., out, in] uint8, s and m [..., out, groups] float16 of a weight [..., out, in]."""
    size = gcd(weight.shape[-1], GROUP)
    groups = weight.reshape(-1, size)
    searches = _lie_in_distances(groups[:: max(1, len(groups) // SAMPLED)].float())
    codes = torch.empty(groups.shape, dtype=torch.uint8, device=weight.device)
    scales, minima = (torch.empty(len(groups), dtype=torch.half, device=weight.device) for _ in range(2))
    for first in range(0, len(groups), CHUNK):
        part = groups[first : first + CHUNK].float()
        found = _rounded(part, _scale(part, LARGEST))
        if searches:
            found = _searched(part, found)
        for whole, each in zip((codes, scales, minima), found, strict=True):
            whole[first : first + CHUNK] = each
    shape = (*weight.shape[:-1], weight.shape[-1] // size)
    return codes.view(weight.shape), scales.view(shape), minima.view(shape)


def numbers(codes: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    """The weight [..., out, in] in float32."""
    groups = codes.reshape(*scales.shape, -1).float()
    return (groups * scales.float()[..., None] + minima.float()[..., None]).flatten(-2)


def _lie_in_distances(groups: Tensor) -> bool:
    """Whether some of them do, which 15 distances do not give exactly."""
    plain = _rounded(groups, _scale(groups, LARGEST))
    fits = _error(groups, _searched(groups, plain)) <= groups.abs().amax(-1) / 1024  # as float16 rounds
    return bool((fits & (_error(groups, plain) > 0)).any())


def _searched(groups: Tensor, found: Grouped) -> Grouped:
    """With the number of distances between the least and the greatest number that fits each group best."""
    codes, scales, minima = (each.clone() for each in found)
    error = _error(groups, found)
    left = error.gt(0).nonzero()[:, 0]
    for distances in range(LARGEST - 1, 0, -1):
        if not len(left):
            break
        some = groups[left]
        other = _rounded(some, _scale(some, distances))
        other_error = _error(some, other)
        better = other_error < error[left]
        places = left[better]
        error[places] = other_error[better]
        for whole, each in zip((codes, scales, minima), other, strict=True):
            whole[places] = each[better]
        left = left[error[left] > 0]
    return codes, scales, minima


def _scale(groups: Tensor, distances: int) -> Tensor:
    """[groups]"""
    return ((groups.amax(-1) - groups.amin(-1)) / distances).half()


def _rounded(groups: Tensor, scales: Tensor) -> Grouped:
    """m is the least number; where float16 has none such, ∓8·s with ±s, if that reaches all, as in Q4_0."""
    step, least, most = scales.float(), groups.amin(-1), groups.amax(-1)
    slack, is_odd = step / 1024, least.half() != least
    falls = is_odd & (least >= -7 * step - slack) & (most <= 8 * step + slack)
    rises = is_odd & ~falls & (least >= -8 * step - slack) & (most <= 7 * step + slack)
    scales = torch.where(falls, -scales, scales)
    minima = torch.where(falls | rises, (-8 * scales.float()).half(), least.half())
    codes = (groups - minima.float()[:, None]) / scales.float()[:, None]
    codes = codes.nan_to_num(0, LARGEST, 0).round_().clamp_(0, LARGEST)
    return codes.to(torch.uint8), scales, minima


def _error(groups: Tensor, found: Grouped) -> Tensor:
    """The greatest of each group; numbers that are none make none."""
    codes, scales, minima = found
    given = codes.float() * scales.float()[:, None] + minima.float()[:, None]
    return (given - groups).abs().amax(-1).nan_to_num(0)
