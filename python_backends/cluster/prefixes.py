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

    def keys(self, request: Request) -> list[bytes]:
        """Of the full blocks of its prompt, but not of the last token, which is always computed."""
        keys: list[bytes] = []
        prompt, size = request.prompt, self._block_tokens
        add_keys(keys, prompt, max(0, len(prompt) - 1) // size, size, request.adapter.root_key)
        return keys

    def num_found_tokens(self, instance: int, keys: list[bytes]) -> int:
        """How many leading tokens of a prompt with these keys the instance was sent before."""
        sent = self._keys.get(instance, OrderedDict())
        count = next((place for place, key in enumerate(keys) if key not in sent), len(keys))
        return count * self._block_tokens

    def sent(self, instance: int, keys: list[bytes]) -> None:
        """A prompt with these keys goes to `instance`."""
        known = self._keys.setdefault(instance, OrderedDict())
        for key in keys:
            known[key] = None
            known.move_to_end(key)
        while len(known) > self._num_blocks:
            known.popitem(last=False)

    def lost(self, instance: int) -> None:
        """Its blocks are gone."""
        self._keys.pop(instance, None)
