"""One adapter in training, for a trainer that knows no tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from python_backends.engine.torch.training.adapter import Adapter, targets_of
from python_backends.engine.torch.training.model import TrainedModel
from python_backends.engine.torch.training.optimiser import Optimiser
from python_backends.nouns.training import Adam, AdapterShape, LayerPlan

Arrays = dict[str, NDArray[Any]]

# of a tile. A CPU takes as long for each token of a larger one; a GPU is told of as many operators for a
# small one, which takes longer than to compute them
CPU_TILE_TOKENS, GPU_TILE_TOKENS = 256, 2048


class LoraInTraining:
    """An adapter of `shape` for `model`, drawn by `seed`. ValueError if the model has no such modules.

    What packs and tiles need is the model's own: one adapter's mini-batch is computed at a time.
    """

    def __init__(self, model: TrainedModel, shape: AdapterShape, seed: int) -> None:
        self._model = model
        self._adapter: Adapter = model.new_adapter(shape)
        with torch.no_grad():
            self._adapter.draw(seed)
        self._optimiser = Optimiser(self._adapter)
        self._kept: dict[str, torch.Tensor] = {}  # gradients since the last step
        self.facts = model.facts
        self.tile_tokens = CPU_TILE_TOKENS if model.device.type == "cpu" else GPU_TILE_TOKENS
        # the products with an adapter, by layer
        self.targets = dict.fromkeys(range(len(model.facts)), targets_of(model.modules, shape))
        self.num_blocks, self.begin = model.num_blocks, model.begin

    def install(self, plans: tuple[LayerPlan, ...]) -> None:
        """Begins a mini-batch with the weights as they are now."""
        self._model.install(self._adapter, plans)

    def wait(self) -> None:
        """Until the device has done all that it was told."""
        if self._model.device.type == "cuda":
            torch.cuda.synchronize(self._model.device)

    def keep_gradients(self) -> None:
        """Ends the mini-batch: its gradients are added to those that are kept since the last `clip`."""
        found = self._model.gradients()
        self._kept = {key: each + self._kept[key] if self._kept else each for key, each in found.items()}

    def clip(self, max_norm: float) -> float:
        """The kept gradients are those of the updates that follow, one for each layer in order. Returns their
        norm before clipping.
        """
        kept, self._kept = self._kept, {}
        return self._optimiser.begin(kept, max_norm)

    def update(self, layer: int, adam: Adam) -> None:
        """A step of AdamW for the adapters of one layer."""
        self._optimiser.step(layer, adam)

    @property
    def weights(self) -> Arrays:
        """A copy, by PEFT's keys."""
        return {key: np.array(each.cpu()) for key, each in self._adapter.weights.items()}

    @property
    def state(self) -> Arrays:
        """Weights and moments: a copy, all that a saved state needs besides the number of steps."""
        return self.weights | {key: np.array(each.cpu()) for key, each in self._optimiser.moments.items()}

    def resume(self, state: Mapping[str, NDArray[Any]], num_steps: int) -> None:
        """Goes on from `state` as it was after `num_steps`. ValueError if it is another adapter's."""
        tensors = {key: torch.from_numpy(np.array(each)) for key, each in state.items()}
        with torch.no_grad():
            self._adapter.load({key: each for key, each in tensors.items() if key.endswith(".weight")})
        self._optimiser.resume(tensors, num_steps)
