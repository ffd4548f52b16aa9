"""Log-probabilities of the tokens that were chosen, or that follow in a prompt, and of the most probable
ones, for the rows that ask, as the model gave them.

They are taken from the logits before penalties, bans and temperature, in float32. Owns nothing. On the way to
the host all of it is one float32 tensor, ids as their bits. Called by the engines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from python_backends.nouns.request import LEAST_LOG_PROB, Floats, LogProbs
from python_backends.nouns.step import RowLogProbs


@dataclass(frozen=True, slots=True)
class LogProbRows:
    rows: Tensor  # [asking] of the batch
    host_rows: NDArray[np.int64]  # [asking] the same
    num_top: int  # the most that any of them asks for


def log_probs(logits: Tensor, tokens: Tensor, asks: LogProbRows) -> Tensor:
    """For logits [rows, vocabulary] and the `tokens` [rows] that were chosen: theirs, the top ones', the top
    ids as bits.

    [asking, 1 + 2 · num_top]
    """
    return scored(logits[asks.rows], tokens[asks.rows], asks.num_top)


def scored(logits: Tensor, tokens: Tensor, num_top: int) -> Tensor:
    """The same for all rows: `tokens` [rows] for logits [rows, vocabulary]."""
    some = logits.float()
    total = some.logsumexp(-1, keepdim=True)
    chosen = some.gather(1, tokens[:, None])
    top = some.topk(num_top, -1)
    values = torch.cat((chosen - total, top.values - total), 1).clamp_(min=LEAST_LOG_PROB)
    return torch.cat((values, top.indices.int().view(torch.float32)), 1)


def row_log_probs(packed: Floats, rows: NDArray[np.int64]) -> RowLogProbs:
    """What `log_probs` made, on the host: its row i belongs to token `rows[i]` of the step."""
    order = np.argsort(rows)
    return RowLogProbs(rows[order].astype(np.int32), unpacked(packed[order]))


def unpacked(packed: Floats) -> LogProbs:
    """What `log_probs` or `scored` made, on the host."""
    num_top = packed.shape[1] // 2
    top_ids = np.ascontiguousarray(packed[:, 1 + num_top :]).view(np.int32)
    return LogProbs(packed[:, 0].copy(), top_ids.ravel(), packed[:, 1 : 1 + num_top].ravel())
