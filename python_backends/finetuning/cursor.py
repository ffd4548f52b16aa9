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
    the first that has something to train. Its numbers are changed by `take_…` alone.
    """

    def __init__(self, num_tokens: int, num_layers: int, first_layer: int = 0) -> None:
        if num_tokens < 1 or not 0 <= first_layer < num_layers:
            raise ValueError(
                f"a pack of {num_tokens} tokens, layers {first_layer} to {num_layers - 1}: at least 1 of each"
            )
        self._num_tokens, self._first_layer = num_tokens, first_layer
        self._num_layers = num_layers
        self.computed_tokens = 0  # whose forward pass is done; the next window begins there
        self.forward_first = 0  # the next tile of the forward pass begins there
        self._forward_layer = 0  # of this tile
        self.tokens_with_loss = 0  # the next part of the loss begins there
        self.open_tokens = num_tokens  # the next tile of the backward pass ends there
        self._layer = num_layers - 1  # of this tile

    @property
    def is_computed(self) -> bool:
        """The forward pass is done, with the loss."""
        return self.tokens_with_loss == self._num_tokens

    @property
    def is_loss_due(self) -> bool:
        """Before the next window."""
        return self.tokens_with_loss < self.computed_tokens

    @property
    def is_done(self) -> bool:
        return self.is_computed and self._layer < self._first_layer

    def take_window(self, most: int) -> tuple[int, int]:
        """The next tokens [first, last) of the forward pass, at most `most`."""
        first, has_tiles = self.computed_tokens, self._forward_layer or self.forward_first
        if self.is_computed or self.is_loss_due or has_tiles or most < 1:
            raise ValueError(f"a window of {most} tokens after token {first} of {self._num_tokens}")
        self.computed_tokens = min(self._num_tokens, first + most)
        return first, self.computed_tokens

    def take_forward(self, most: int) -> Tile:
        """The next tokens of the forward pass, at most `most`, all of one layer; before any window."""
        if self.computed_tokens or most < 1:
            raise ValueError(f"a forward tile of {most} tokens: the forward pass is done, or has windows")
        first = self.forward_first
        tile = Tile(self._forward_layer, first, min(self._num_tokens, first + most))
        self.forward_first = tile.last
        if tile.last == self._num_tokens:
            self._forward_layer, self.forward_first = self._forward_layer + 1, 0
        if self._forward_layer == self._num_layers:
            self.computed_tokens = self._num_tokens
        return tile

    def take_loss(self, most: int) -> tuple[int, int]:
        """The next tokens [first, last) of the loss, at most `most`, whose forward pass is done."""
        first = self.tokens_with_loss
        if not self.is_loss_due or most < 1:
            raise ValueError(f"the loss of {most} tokens after token {first}: not computed forward")
        self.tokens_with_loss = min(self.computed_tokens, first + most)
        return first, self.tokens_with_loss

    def take_backward(self, most: int) -> Tile:
        """The next tokens of the backward pass, at most `most`, all of one layer."""
        if not self.is_computed or self.is_done or most < 1:
            raise ValueError(f"a tile of {most} tokens in layer {self._layer}: the pass is not there")
        last = self.open_tokens
        first = max(0, last - most)
        tile = Tile(self._layer, first, last)
        self.open_tokens = first
        if first == 0:
            self._layer, self.open_tokens = self._layer - 1, self._num_tokens
        return tile
