"""Where a pack stands: its forward pass, the loss, then tiles of its backward pass, from the last layer and
the last token to the first.

The forward pass has tiles from the first layer and the first token to the last, or windows in order: tokens
in all layers, each followed by its loss.

Owns a few numbers of each pack and touches no tensor. Called by the trainer.
Tested in tests/pure/finetuning/test_packs.py.
"""

from __future__ import annotations

from python_backends.nouns.training import Tile


class PackCursor:
    """A pack of `num_tokens`, whose backward pass goes from layer `num_layers` − 1 down to `first_layer`,
    the first that has something to train.
    """

    def __init__(self, num_tokens: int, num_layers: int, first_layer: int = 0) -> None:
        if num_tokens < 1 or not 0 <= first_layer < num_layers:
            raise ValueError(
                f"a pack of {num_tokens} tokens, layers {first_layer} to {num_layers - 1}: at least 1 of each"
            )
        self._num_tokens, self._first_layer = num_tokens, first_layer
        self._num_layers = num_layers
        self._computed = 0  # tokens whose forward pass is done
        self._forward_layer = self._forward_first = 0  # the next tile of the forward pass
        self._with_loss = 0  # tokens whose loss is computed
        self._layer, self._open = num_layers - 1, num_tokens  # tokens [0, open) of `layer` are still to do

    @property
    def is_computed(self) -> bool:
        """The forward pass is done, with the loss."""
        return self._with_loss == self._num_tokens

    @property
    def is_loss_due(self) -> bool:
        """Before the next window."""
        return self._with_loss < self._computed

    @property
    def is_done(self) -> bool:
        return self.is_computed and self._layer < self._first_layer

    @property
    def computed_tokens(self) -> int:
        """The next window begins there."""
        return self._computed

    @property
    def forward_first(self) -> int:
        """The next tile of the forward pass begins there."""
        return self._forward_first

    @property
    def tokens_with_loss(self) -> int:
        """The next part of the loss begins there."""
        return self._with_loss

    @property
    def open_tokens(self) -> int:
        """Of the layer that is computed: the next tile ends there."""
        return self._open

    def take_window(self, most: int) -> tuple[int, int]:
        """The next tokens [first, last) of the forward pass, at most `most`."""
        has_tiles = self._forward_layer or self._forward_first
        if self.is_computed or self.is_loss_due or has_tiles or most < 1:
            raise ValueError(f"a window of {most} tokens after token {self._computed} of {self._num_tokens}")
        first = self._computed
        self._computed = min(self._num_tokens, first + most)
        return first, self._computed

    def take_forward(self, most: int) -> Tile:
        """The next tokens of the forward pass, at most `most`, all of one layer; before any window."""
        if self._computed or most < 1:
            raise ValueError(f"a forward tile of {most} tokens: the forward pass is done, or has windows")
        first = self._forward_first
        tile = Tile(self._forward_layer, first, min(self._num_tokens, first + most))
        self._forward_first = tile.last
        if tile.last == self._num_tokens:
            self._forward_layer, self._forward_first = self._forward_layer + 1, 0
        if self._forward_layer == self._num_layers:
            self._computed = self._num_tokens
        return tile

    def take_loss(self, most: int) -> tuple[int, int]:
        """The next tokens [first, last) of the loss, at most `most`, whose forward pass is done."""
        if not self.is_loss_due or most < 1:
            raise ValueError(f"the loss of {most} tokens after token {self._with_loss}: not computed forward")
        first = self._with_loss
        self._with_loss = min(self._computed, first + most)
        return first, self._with_loss

    def take_backward(self, most: int) -> Tile:
        """The next tokens of the backward pass, at most `most`, all of one layer."""
        if not self.is_computed or self.is_done or most < 1:
            raise ValueError(f"a tile of {most} tokens in layer {self._layer}: the pass is not there")
        last = self._open
        first = max(0, last - most)
        tile = Tile(self._layer, first, last)
        self._open = first
        if first == 0:
            self._layer, self._open = self._layer - 1, self._num_tokens
        return tile
