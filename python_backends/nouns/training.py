"""What a trainer and an engine say to each other: packs, tiles, and what each layer keeps for gradients.

Plain values. A pack is the flat tokens of several sequences; a tile is some of its tokens in one layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from python_backends.nouns.request import Ids

NO_LABEL = -100  # a token that is the label of none
PROJECTIONS = ("qkv", "o", "up", "down")  # of a layer, in the order in which they are computed


class Keep(StrEnum):
    """What a forward pass keeps of a layer for the backward pass. The richer, the faster."""

    PRODUCTS = "products"
    ATTENTION = "attention"
    INPUTS = "inputs"


@dataclass(frozen=True, slots=True, eq=False)
class Pack:
    tokens: Ids  # [tokens]
    labels: Ids  # [tokens] the token that comes next, where it is learned; NO_LABEL elsewhere
    bounds: tuple[int, ...]  # [sequences + 1] sequence i has tokens [bounds[i], bounds[i + 1])
    # [tokens] by how much the loss of each label is multiplied; None: 1
    weights: NDArray[np.float32] | None = None
    # [tokens] log-probability of each label when it was drawn: the loss is then that of importance sampling,
    # and the weights are advantages; None: it is cross entropy
    drawn_log_probs: NDArray[np.float32] | None = None

    @property
    def num_labels(self) -> int:
        return int(np.count_nonzero(self.labels != NO_LABEL))

    def pieces(self, first: int, last: int) -> list[tuple[int, int, int]]:
        """The sequences in tokens [first, last): number, first token and last token + 1 of each."""
        bounds = zip(self.bounds, self.bounds[1:], strict=False)
        cut = [(index, max(first, begin), min(last, end)) for index, (begin, end) in enumerate(bounds)]
        return [(index, begin, end) for index, begin, end in cut if begin < end]


Loads = tuple[int, int, float]  # of a piece of training: sequences, tokens, KV tokens


@dataclass(frozen=True, slots=True)
class Tile:
    """Tokens [first, last) of a pack in one layer."""

    layer: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class LayerFacts:
    """Widths in values a token, and what a layer has."""

    hidden: int
    query: int
    kv: int  # keys, or values
    up: int  # of the product: gate and up where there is a gate
    norms_heads: bool = False
    norms_attended: bool = False  # attention's output, before it is added
    norms_fed: bool = False
    parallel: bool = False
    is_plain_relu: bool = False  # RELU, and no gate


@dataclass(frozen=True, slots=True)
class Needs:
    """Which parts of a layer the backward pass goes through."""

    qkv: bool
    o: bool
    up: bool
    down: bool
    fed_norm: bool  # the norm before the feed-forward part
    input: bool  # d(loss)/dx of the layer's input


@dataclass(frozen=True, slots=True)
class LayerPlan:
    needs: Needs
    kept: dict[str, float]  # values a token, by name (finetuning/pruning.py)
    keeps_signs: bool = False  # gate_up is a bit a value: the signs of a plain RELU's input


@dataclass(frozen=True, slots=True)
class AdapterShape:
    """A LoRA adapter: rank, alpha, and names of modules as the checkpoint has them ("q_proj")."""

    rank: int
    alpha: float
    modules: tuple[str, ...]

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True)
class Adam:
    """A step of AdamW."""

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
