"""Cross entropy of a window, and at once its gradient at the residual stream: no logits are kept.

Only tokens with a label are multiplied with the head. Called by `model`.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.torch.operators import Operator
from python_backends.engine.torch.projection import Projection
from python_backends.engine.torch.training.projection import Transposed
from python_backends.engine.torch.training.small_operators import softcapped, vjp
from python_backends.nouns.training import NO_LABEL


class Loss:
    """The last norm, the head and the cross entropy of a model; `head` is its decoder's."""

    def __init__(self, norm: Operator, head: Projection, scale: float, softcap: float | None) -> None:
        self._norm, self._scale, self._softcap = norm, scale, softcap
        self._head, self._back = head, Transposed(head)

    def of(self, x: Tensor, labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] is the residual stream after the last layer, `labels` [tokens] the tokens to
        learn or NO_LABEL, `num_labels` how many labels the whole mini-batch has.

        Returns this window's part of the mean over all labels, in nats, and d(loss)/dx [tokens, hidden] in
        float32 or better.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        dx = torch.zeros(x.shape, dtype=dtype, device=x.device)
        rows = (labels != NO_LABEL).nonzero()[:, 0]
        if not len(rows):
            return dx.new_zeros(()), dx
        normed, norm_back = vjp(self._norm, x[rows])
        logits = self._head.forward(normed)
        loss, loss_back = vjp(lambda z: self._entropy(z, labels[rows]) / num_labels, logits)
        (d_logits,) = loss_back(torch.ones_like(loss))
        (d_x,) = norm_back(self._back.forward(d_logits))
        dx[rows] = d_x.to(dtype)
        return loss, dx

    def _entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        capped = softcapped(logits * self._scale, self._softcap)
        return functional.cross_entropy(capped, labels, reduction="sum")
