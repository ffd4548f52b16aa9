"""One adapter in training, for a trainer that knows no tensors: packs and tiles go in, losses and arrays come
out. Tested in tests/cpu/test_coserving.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from python_backends.engine.torch.training.adapter import Adapter, targets_of
from python_backends.engine.torch.training.model import TrainedModel
from python_backends.engine.torch.training.optimiser import Optimiser
from python_backends.nouns.request import Ids
from python_backends.nouns.training import AdapterShape, LayerFacts, LayerPlan, Pack, Tile

Arrays = dict[str, NDArray[Any]]


class TrainingSession:
    """An adapter of `shape` for `model`, drawn by `seed`. ValueError if the model has no such modules."""

    def __init__(self, model: TrainedModel, shape: AdapterShape, seed: int) -> None:
        self._model = model
        self._adapter: Adapter = model.new_adapter(shape)
        with torch.no_grad():
            self._adapter.draw(seed)
        self._optimiser = Optimiser(self._adapter)

    @property
    def facts(self) -> tuple[LayerFacts, ...]:
        return self._model.facts

    @property
    def targets(self) -> dict[int, frozenset[str]]:
        """The products with an adapter, by layer."""
        names = targets_of(self._model.modules, self._adapter.shape)
        return dict.fromkeys(range(len(self.facts)), names)

    @property
    def num_steps(self) -> int:
        return self._optimiser.num_steps

    def install(self, plans: tuple[LayerPlan, ...]) -> None:
        """Begins a mini-batch with the weights as they are now."""
        self._model.install(self._adapter, plans)

    def num_blocks(self, pack: Pack, plans: tuple[LayerPlan, ...]) -> int:
        return self._model.num_blocks(pack, plans)

    def begin(self, pack: Pack, num_labels: int, borrowed: Ids | None = None) -> None:
        self._model.begin(pack, num_labels, borrowed)

    def end(self) -> None:
        self._model.end()

    def forward(self, tile: Tile) -> None:
        self._model.forward(tile)

    def window(self, first: int, last: int) -> None:
        self._model.window(first, last)

    def loss(self, first: int, last: int) -> float:
        return self._model.loss(first, last)

    def backward(self, tile: Tile) -> None:
        self._model.backward(tile)

    def clip(self, max_norm: float) -> float:
        """Ends the mini-batch: its gradients are those of the updates that follow, one for each layer in
        order. Returns their norm before clipping.
        """
        return self._optimiser.begin(self._model.gradients(), max_norm)

    def update(self, layer: int, learning_rate: float) -> None:
        """A step of AdamW for the adapters of one layer."""
        self._optimiser.step(layer, learning_rate)

    @property
    def weights(self) -> Arrays:
        """A copy, by PEFT's keys."""
        return {key: np.array(each.cpu()) for key, each in self._adapter.weights.items()}

    @property
    def state(self) -> Arrays:
        """Weights and moments: a copy, all that a checkpoint needs besides the number of steps."""
        return self.weights | {key: np.array(each.cpu()) for key, each in self._optimiser.moments.items()}

    def resume(self, state: Mapping[str, NDArray[Any]], num_steps: int) -> None:
        """Goes on from `state` as it was after `num_steps`. ValueError if it is another adapter's."""
        tensors = {key: torch.from_numpy(np.array(each)) for key, each in state.items()}
        with torch.no_grad():
            self._adapter.load({key: each for key, each in tensors.items() if key.endswith(".weight")})
        self._optimiser.resume(tensors, num_steps)
