"""What the front counts of its requests. `metrics_page` shows it."""

from __future__ import annotations

import bisect

from msgspec import Struct, field

from front.record import Record

LATENCIES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
GAPS_S = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
# by what they are called here: bounds, our name, vLLM's, what they are
HISTOGRAMS = {
    "first_token": (
        LATENCIES_S,
        ("time_to_first_token_seconds", "time_to_first_token_seconds"),
        "Seconds until the first token",
    ),
    "gap": (GAPS_S, ("token_gap_seconds", "inter_token_latency_seconds"), "Seconds between two tokens"),
    "whole": (
        LATENCIES_S,
        ("request_seconds", "e2e_request_latency_seconds"),
        "Seconds until the end of an answer",
    ),
}
TOKENS = {
    "prompt": (("prompt_tokens_total", "prompt_tokens_total"), "Tokens of prompts"),
    "output": (("output_tokens_total", "generation_tokens_total"), "Tokens of answers"),
}


class Histogram(Struct):
    """Counts of values, one for each interval between two bounds."""

    counts: list[int]
    sum: float = 0.0


def _no_values() -> dict[str, Histogram]:
    return {name: Histogram([0] * (len(bounds) + 1)) for name, (bounds, *_) in HISTOGRAMS.items()}


class Numbers(Struct):
    """All that is counted."""

    histograms: dict[str, Histogram] = field(default_factory=_no_values)
    tokens: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)  # by status and route, with a space between
    finished: dict[str, int] = field(default_factory=dict)  # by reason

    def add(self, others: Numbers) -> None:
        for name, theirs in others.histograms.items():
            ours = self.histograms[name]
            ours.counts = [mine + other for mine, other in zip(ours.counts, theirs.counts, strict=True)]
            ours.sum += theirs.sum
        for mine, other in ((self.tokens, others.tokens), (self.requests, others.requests)):
            _add(mine, other)
        _add(self.finished, others.finished)

    def observe(self, name: str, value: float, times: int = 1) -> None:
        histogram = self.histograms[name]
        histogram.counts[bisect.bisect_left(HISTOGRAMS[name][0], value)] += times
        histogram.sum += value * times


class FrontMetrics:
    """Counts what one process does."""

    def __init__(self) -> None:
        self.numbers = Numbers()

    def gap(self, seconds: float, num_tokens: int) -> None:
        """A piece of `num_tokens` came `seconds` after the one before: each token took an equal part."""
        self.numbers.observe("gap", seconds / num_tokens, num_tokens)

    def ended(self, record: Record, seconds: float) -> None:
        _add(self.numbers.requests, {f"{record.status} {record.route}": 1})
        if not record.num_prompt_tokens:
            return
        _add(self.numbers.tokens, {"prompt": record.num_prompt_tokens, "output": record.num_output_tokens})
        for reason in record.finish_reasons:
            _add(self.numbers.finished, {reason: 1})
        self.numbers.observe("whole", seconds)
        if record.first_token_s:
            self.numbers.observe("first_token", record.first_token_s - record.began_s)


def _add(ours: dict[str, int], theirs: dict[str, int]) -> None:
    for name, count in theirs.items():
        ours[name] = ours.get(name, 0) + count
