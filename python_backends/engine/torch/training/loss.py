"""Cross entropy of some tokens, and at once its gradient at the residual stream: no logits are kept.

Only tokens with a label are multiplied with the head. Called by `model`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from python_backends.engine.torch.operators import Operator
from python_backends.engine.torch.projection import Projection
from python_backends.engine.torch.training.projection import Transposed
from python_backends.engine.torch.training.small_operators import Pullback, softcapped, vjp
from python_backends.nouns.training import NO_LABEL

# logits at a time: more take longer each on a CPU, because they do not stay in its cache. A GPU reads the
# head for each piece, and needs 20 bytes for each of its logits
CPU_LOGITS, GPU_LOGITS = 1 << 21, 1 << 25
LEAST_ROWS = 64  # so that the product with the head stays fast


class Loss:
    """The last norm, the head and the cross entropy of a model; `head` is its decoder's."""

    def __init__(self, norm: Operator, head: Projection, scale: float, softcap: float | None) -> None:
        self._norm, self._scale, self._softcap = norm, scale, softcap
        self._head, self._back = head, Transposed(head)
        logits = GPU_LOGITS if head.weight.device.type == "cuda" else CPU_LOGITS
        self._piece_rows = max(LEAST_ROWS, logits // head.num_outputs)

    def of(self, x: Tensor, labels: Tensor, num_labels: int) -> tuple[Tensor, Tensor]:
        """x [tokens, hidden] is the residual stream after the last layer, `labels` [tokens] the tokens to
        learn or NO_LABEL, `num_labels` how many labels the whole mini-batch has.

        Returns these tokens' part of the mean over all labels, in nats, and d(loss)/dx [tokens, hidden] in
        float32 or better.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        dx = torch.zeros(x.shape, dtype=dtype, device=x.device)
        total = dx.new_zeros(())
        rows = (labels != NO_LABEL).nonzero()[:, 0]
        pieces: tuple[Tensor, ...] = rows.split(self._piece_rows)  # type: ignore[no-untyped-call]
        for piece in pieces:
            entropy, d_x = self._piece(x[piece], labels[piece])
            total += entropy / num_labels
            dx[piece] = d_x.to(dtype) / num_labels
        return total, dx

    def _piece(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over rows that all have a label, and its gradient at x."""
        normed, norm_back = vjp(self._norm, x)
        logits, logits_back = self._logits(self._head.forward(normed))
        entropy, d_logits = cross_entropy(logits, labels)
        (d_x,) = norm_back(self._back.forward(logits_back(d_logits)[0]))
        return entropy, d_x

    def _logits(self, products: Tensor) -> tuple[Tensor, Pullback]:
        """Of what the head gave, in float32 or better."""
        dtype = torch.promote_types(products.dtype, torch.float32)
        if self._scale == 1 and self._softcap is None:
            return products.to(dtype), lambda gradient: (gradient.to(products.dtype),)
        return vjp(lambda z: softcapped(z.to(dtype) * self._scale, self._softcap), products)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The sum over rows of −log p(label), and its gradient at the logits [rows, vocabulary]: p, less 1 at the
    label. Written out, because autograd goes over the logits more often.
    """
    log_p = logits.log_softmax(-1)
    at_label = labels[:, None]
    entropy = -log_p.gather(1, at_label).sum()
    gradient = log_p.exp_()
    return entropy, gradient.scatter_add_(1, at_label, gradient.new_full(at_label.shape, -1.0))
