"""Counts the tokens of a request, in all of its answers."""

from __future__ import annotations

from typing import Any

from client.wire import Piece


class Usage:
    """Choices of one prompt count its tokens once."""

    def __init__(self, num_choices: int) -> None:
        self._num_choices = num_choices
        self._prompts: dict[int, int] = {}  # by number of the prompt
        self._cached: dict[int, int] = {}  # of these, the tokens that were not computed again
        self._num_output_tokens = 0
        self.num_thought_tokens = 0  # of these

    def add(self, number: int, piece: Piece) -> None:
        """A piece of the answer `number`."""
        prompt = number // self._num_choices
        self._prompts[prompt] = piece.num_input_tokens or 0
        # choices beside the first one find the first one's
        if number % self._num_choices == 0:
            self._cached[prompt] = piece.num_cached_tokens or 0
        self._num_output_tokens += piece.num_output_tokens or 0

    def plain(self) -> dict[str, Any]:
        num_prompt, num_thought = sum(self._prompts.values()), self.num_thought_tokens
        details = {"completion_tokens_details": {"reasoning_tokens": num_thought}} if num_thought else {}
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": self._num_output_tokens,
            "total_tokens": num_prompt + self._num_output_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached.values())},
            **details,
        }
