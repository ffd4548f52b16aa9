"""[limits]: what a request may ask. The door refuses more, by name."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting


@dataclass(frozen=True, slots=True)
class LimitSettings:
    default_max_tokens: int = setting(256, "max_tokens of a request that has none", 1, 1 << 20)
    max_prompt_bytes: int = setting(1_000_000, "of text_input or messages", 1, 1 << 30)
    max_prompt_tokens: int = setting(
        0, "the longest prompt; 0: what the model's context leaves room for", 0, 1 << 24
    )
    max_stop_words: int = setting(16, "of one request", 0, 1024)
    max_stop_word_bytes: int = setting(256, "of one stop word", 1, 1 << 16)
    max_bad_words: int = setting(64, "of one request; each costs a few comparisons a token", 0, 1024)
    max_top_log_probs: int = setting(20, "the largest num_top_log_probs", 0, 1024)
