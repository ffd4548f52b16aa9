"""Where a pack stands: tiles of its forward pass from the first layer and the first token to the last, then
the loss, then tiles of its backward pass from the last layer and the last token to the first.

Owns a few numbers of each pack and touches no tensor. Called by the trainer.
"""

from __future__ import annotations

from python_backends.nouns.training import Tile


class PackCursor:
    """A pack of `num_tokens`, whose backward pass goes from layer `num_layers` − 1 down to `first_layer`,
    the first that has something to train; `num_layers`: there is no backward pass. Its numbers are changed by
    `take_…` alone.
    """

    def __init__(self, num_tokens: int, num_layers: int, first_layer: int = 0) -> None:
        if num_tokens < 1 or not 0 <= first_layer <= num_layers:
            raise ValueError(
                f"a pack of {num_tokens} tokens, layers {first_layer} to {num_layers - 1}: at least 1 of each"
            )
        self._num_tokens, self._num_layers, self._first_layer = num_tokens, num_layers, first_layer
        self._forward_layer = 0  # of the next tile of the forward pass
        self.forward_first = 0  # where it begins
        self.loss_first = 0  # the next part of the loss begins there
        self._backward_layer = num_layers - 1  # of the next tile of the backward pass
        self.backward_last = num_tokens  # where it ends

    @property
    def is_forward_done(self) -> bool:
        return self._forward_layer == self._num_layers

    @property
    def is_loss_done(self) -> bool:
        return self.loss_first == self._num_tokens

    @property
    def is_done(self) -> bool:
        return self.is_loss_done and self._backward_layer < self._first_layer

    def take_forward(self, most: int) -> Tile:
        """The next tokens of the forward pass, at most `most`, all of one layer."""
        if self.is_forward_done or most < 1:
            raise ValueError(f"a forward tile of {most} tokens: the forward pass is done")
        tile = Tile(self._forward_layer, self.forward_first, min(self._num_tokens, self.forward_first + most))
        self.forward_first = tile.last
        if tile.last == self._num_tokens:
            self._forward_layer, self.forward_first = self._forward_layer + 1, 0
        return tile

    def take_loss(self, most: int) -> tuple[int, int]:
        """The next tokens [first, last) of the loss, at most `most`."""
        first = self.loss_first
        if not self.is_forward_done or self.is_loss_done or most < 1:
            raise ValueError(f"the loss of {most} tokens after token {first}: not computed forward, or done")
        self.loss_first = min(self._num_tokens, first + most)
        return first, self.loss_first

    def take_backward(self, most: int) -> Tile:
        """The next tokens of the backward pass, at most `most`, all of one layer."""
        if not self.is_loss_done or self.is_done or most < 1:
            raise ValueError(f"a tile of {most} tokens in layer {self._backward_layer}: no loss, or done")
        tile = Tile(self._backward_layer, max(0, self.backward_last - most), self.backward_last)
        self.backward_last = tile.first
        if tile.first == 0:
            self._backward_layer, self.backward_last = self._backward_layer - 1, self._num_tokens
        return tile
