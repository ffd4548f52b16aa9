"""The loss of some tokens, and at once its gradient at the residual stream: no logits are kept. It is cross
entropy, or that of importance sampling.

Only tokens with a label are multiplied with the head. Called by `model`.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Targets(NamedTuple):
    """Of some tokens, as a pack has them."""

    labels: Tensor  # [tokens] or NO_LABEL
    weights: Tensor | None = None  # [tokens]
    drawn_log_probs: Tensor | None = None  # [tokens]

    def of(self, rows: Tensor | slice) -> Targets:
        return Targets(*(None if each is None else each[rows] for each in self))  # type: ignore[arg-type]

    def weighed(self, log_probs: Tensor) -> tuple[Tensor, Tensor | None]:
        """The loss of each label with this log-probability, and its gradient there, less its sign."""
        if self.weights is None:
            return -log_probs, None
        if self.drawn_log_probs is None:
            return -log_probs * self.weights, self.weights
        weights = self.weights * (log_probs - self.drawn_log_probs).exp()
        return -weights, weights


class Loss:
    """The last norm, the head and the cross entropy of a model; `head` is its decoder's."""

    def __init__(self, norm: Operator, head: Projection, scale: float, softcap: float | None) -> None:
        self._norm, self._scale, self._softcap = norm, scale, softcap
        self._head, self._back = head, Transposed(head)
        logits = GPU_LOGITS if head.weight.device.type == "cuda" else CPU_LOGITS
        self._piece_rows = max(LEAST_ROWS, logits // head.num_outputs)

    def of(self, x: Tensor, targets: Targets, num_labels: int) -> tuple[Tensor, Tensor, Tensor]:
        """x [tokens, hidden] is the residual stream after the last layer, `num_labels` how many labels the
        whole mini-batch has.

        Returns these tokens' part of the mean over all labels, in nats, d(loss)/dx [tokens, hidden], and
        the log-probabilities of the labels [tokens], in float32 or better.
        """
        dtype = torch.promote_types(x.dtype, torch.float32)
        dx = torch.zeros(x.shape, dtype=dtype, device=x.device)
        total, log_probs = dx.new_zeros(()), dx.new_zeros(len(x))
        rows = (targets.labels != NO_LABEL).nonzero()[:, 0]
        pieces: tuple[Tensor, ...] = rows.split(self._piece_rows)  # type: ignore[no-untyped-call]
        for piece in pieces:
            own = targets.of(piece)
            log_probs[piece], d_x = self._piece(x[piece], own.labels)
            losses, weights = own.weighed(log_probs[piece])
            total += losses.sum() / num_labels
            d_x = d_x.to(dtype) / num_labels
            dx[piece] = d_x if weights is None else d_x * weights[:, None]
        return total, dx, log_probs

    def _piece(self, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The labels' log-probabilities [rows], and the gradient of their cross entropy at x."""
        normed, norm_back = vjp(self._norm, x)
        logits, logits_back = self._logits(self._head.forward(normed))
        log_probs, d_logits = cross_entropy(logits, labels)
        (d_x,) = norm_back(self._back.forward(logits_back(d_logits)[0]))
        return log_probs, d_x

    def _logits(self, products: Tensor) -> tuple[Tensor, Pullback]:
        """Of what the head gave, in float32 or better."""
        dtype = torch.promote_types(products.dtype, torch.float32)
        if self._scale == 1 and self._softcap is None:
            return products.to(dtype), lambda gradient: (gradient.to(products.dtype),)
        return vjp(lambda z: softcapped(z.to(dtype) * self._scale, self._softcap), products)


def cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """log p(label) [rows], and the gradient of the sum of −log p(label) at the logits [rows, vocabulary]: p,
    less 1 at the label. Written out, because autograd goes over the logits more often.
    """
    log_p = logits.log_softmax(-1)
    at_label = labels[:, None]
    log_probs = log_p.gather(1, at_label)[:, 0]
    gradient = log_p.exp_()
    return log_probs, gradient.scatter_add_(1, at_label, gradient.new_full(at_label.shape, -1.0))
