"""How much of a GPU's free memory KV blocks may have. Owns nothing;
called by the torch engine at its start.
"""

from __future__ import annotations

from dataclasses import dataclass

SHARE = 0.9  # of what a GPU has free; the rest is for what is captured, for fragments, and for libraries


@dataclass(frozen=True, slots=True)
class Measured:
    """What a GPU had when the weights were in their place, in bytes."""

    free: int
    step: int  # the most that a step takes while it runs

    @property
    def usable(self) -> int:
        """For KV blocks. Steps are counted twice: captured ones have memory of their own."""
        return max(0, int(self.free * SHARE) - 2 * self.step)

    def __str__(self) -> str:
        free, step, usable = (value / 2**30 for value in (self.free, self.step, self.usable))
        return (
            f"{free:.2f} GiB are free, a step takes up to {step:.2f} GiB, {usable:.2f} GiB may hold KV blocks"
        )


def block_cost(block_bytes: int, num_layers: int, is_gathered: bool) -> int:
    """Bytes that one more block takes. Where attention gathers blocks, one
    layer's part of all of them is copied, at most twice.
    """
    return block_bytes + (2 * block_bytes // num_layers if is_gathered else 0)
