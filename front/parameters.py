"""What an `Ask` means for the ensemble."""

from __future__ import annotations

import secrets
from typing import Any, cast

from client.parameters import Parameters
from front.asks import Ask
from front.errors import refused
from front.model import Model

SAME = (
    *("temperature", "top_p", "top_k", "min_p", "min_tokens", "stop_token_ids", "bad_words"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
UNTIL_THE_CONTEXT_ENDS = -1
ALL_TOKENS = -1  # top_k, as vLLM has it; the ensemble has 0
ANY_SEED = -1
SEEDS = 1 << 64
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_DIGITS = 9  # of a token id


def parameters_of(ask: Ask, max_tokens: int | None, model: Model, least: int = 1) -> list[Parameters]:
    """Returns the parameters of each choice: with the same seed, one more each time. `least`: of max_tokens.
    Raises ProblemError.
    """
    if max_tokens is not None and max_tokens < least:
        raise refused("max_tokens", f" = {max_tokens}: must be at least {least}")
    adapter = model.adapter(ask.model)
    made: dict[str, Any] = {
        **_same(ask, model),
        "max_tokens": UNTIL_THE_CONTEXT_ENDS if max_tokens is None else max_tokens,
        "return_num_input_tokens": True,
    }
    if adapter:
        made["lora_name"] = adapter
    if ask.stop:
        made["stop_words"] = [ask.stop] if isinstance(ask.stop, str) else ask.stop
    if ask.logit_bias:
        made["logit_bias_ids"], made["logit_bias_values"] = _biases(ask.logit_bias)
    if ask.priority:
        made["request_priority"] = -ask.priority  # theirs: smaller goes first
    if ask.ignore_eos:
        made["min_tokens"] = _whole_length(ask, max_tokens)
    seed = secrets.randbits(63) if ask.seed in (None, ANY_SEED) else ask.seed
    if not -SEEDS // 2 <= seed < SEEDS:
        raise refused("seed", f" = {str(seed)[:40]}: must be a whole number of 64 bits")
    return [cast(Parameters, {**made, "seed": (seed + i) % SEEDS}) for i in range(ask.num_choices)]


def _same(ask: Ask, model: Model) -> dict[str, Any]:
    """The fields that the ensemble has, too, and the model's defaults for those that the engine takes."""
    given = {name: value for name in SAME if (value := getattr(ask, name)) is not None}
    lacks = model.limits.unsupported if model.limits else ()
    made = {name: value for name, value in model.defaults.items() if name not in lacks} | given
    if made.get("top_k") == ALL_TOKENS:
        made["top_k"] = 0
    return made


def _biases(given: dict[str, float]) -> tuple[list[int], list[float]]:
    """Token ids, and what is added to their logits. Raises ProblemError."""
    if len(given) > MAX_BIASES:
        raise refused("logit_bias", f" = {len(given)} tokens: must be at most {MAX_BIASES}")
    for token, value in given.items():
        if not (token.isascii() and token.isdigit() and len(token) <= MAX_DIGITS):
            raise refused("logit_bias", f": {token[:40]!r} is no token id")
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise refused("logit_bias", f"[{token}] = {value:g}: must be between -100 and 100")
    return [int(token) for token in given], list(given.values())


def _whole_length(ask: Ask, max_tokens: int | None) -> int:
    """Before this number of tokens no answer ends: by min_tokens, which a stop word has to obey as well."""
    if max_tokens is None or ask.stop or ask.stop_token_ids:
        raise refused("ignore_eos", " = true: needs max_tokens, and no stop or stop_token_ids")
    return max_tokens
