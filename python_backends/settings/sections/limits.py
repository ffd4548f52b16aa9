"""[limits]: limits of a request. The door refuses a request beyond them and names the limit.

Tested in tests/pure/test_house.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class LimitSettings:
    default_max_tokens: int = setting(256, "max_tokens of a request that has none", 1, 1 << 20)
    max_prompt_bytes: int = setting(1_000_000, "most bytes of text_input or messages", 1, 1 << 30)
    max_prompt_tokens: int = setting(
        0, "most tokens of a prompt; 0: as many as the model's context allows", 0, 1 << 24
    )
    max_stop_words: int = setting(16, "most stop words of a request, and most stop_token_ids", 0, 1024)
    max_stop_word_bytes: int = setting(256, "most bytes of a stop word or bad word", 1, 1 << 16)
    max_bad_words: int = setting(
        64, "most bad words of a request; each costs a few comparisons a token", 0, 1024
    )
    max_top_log_probs: int = setting(20, "the largest num_top_log_probs", 0, 1024)
