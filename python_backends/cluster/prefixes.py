"""Which prompts were sent where: their beginning is probably still in the KV blocks of that instance.

Nothing is asked of the instances. If a block is not there any more, its tokens are computed again. Changed by
the router.
"""

from __future__ import annotations

from collections import OrderedDict

from python_backends.nouns.request import Request
from python_backends.scheduling.state.blocks import add_keys


class SentPrefixes:
    """Owns the keys of the prompt blocks that each instance was sent last, as many as it has blocks."""

    def __init__(self, block_tokens: int, num_blocks: int) -> None:
        self._block_tokens = block_tokens
        self._num_blocks = num_blocks
        self._keys: dict[int, OrderedDict[bytes, None]] = {}  # by instance; oldest first
        # by key: a bit for each instance that was sent it; a set would take 200 bytes a key more
        self._holders: dict[bytes, int] = {}

    def keys(self, request: Request) -> list[bytes]:
        """Of the full blocks of its prompt, but not of the last token, which is always computed."""
        keys: list[bytes] = []
        prompt, size = request.prompt, self._block_tokens
        add_keys(keys, prompt, max(0, len(prompt) - 1) // size, size, request.adapter.root_key)
        return keys

    def num_found_tokens(self, keys: list[bytes]) -> dict[int, int]:
        """How many leading tokens of a prompt with these keys each instance was sent before; 0 of others."""
        found: dict[int, int] = {}
        holders = self._holders.get(keys[0], 0) if keys else 0
        for place, key in enumerate(keys[1:], 1):
            if not holders:
                return found
            have_next = holders & self._holders.get(key, 0)
            found |= dict.fromkeys(_numbers(holders & ~have_next), place * self._block_tokens)
            holders = have_next
        return found | dict.fromkeys(_numbers(holders), len(keys) * self._block_tokens)

    def sent(self, instance: int, keys: list[bytes]) -> None:
        """A prompt with these keys goes to `instance`."""
        known = self._keys.setdefault(instance, OrderedDict())
        for key in keys:
            known[key] = None
            known.move_to_end(key)
            self._holders[key] = self._holders.get(key, 0) | 1 << instance
        while len(known) > self._num_blocks:
            self._forget(instance, known.popitem(last=False)[0])

    def lost(self, instance: int) -> None:
        """Its blocks are gone."""
        for key in self._keys.pop(instance, {}):
            self._forget(instance, key)

    def _forget(self, instance: int, key: bytes) -> None:
        self._holders[key] &= ~(1 << instance)
        if not self._holders[key]:
            del self._holders[key]


def _numbers(holders: int) -> list[int]:
    """The instances whose bits are set."""
    return [number for number in range(holders.bit_length()) if holders >> number & 1]
