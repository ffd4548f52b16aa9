"""What /metrics shows of client streams, from their acceptance to their end.
Called by the stream table; times are nanoseconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from python_backends.nouns.request import Finish
from python_backends.streams.stream import Stream
from python_backends.watching.metrics import Metrics

S = 1_000_000_000
MOST_ADAPTERS = 256  # names, which jobs may have given: requests with others are counted together
OTHER = "other"


class StreamMetrics:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._adapters: set[str] = set()

    def refused(self) -> None:
        self._count_outcome("refused")

    def accepted(self, stream: Stream) -> None:
        self._metrics.count("gapless_prompt_tokens_total", len(stream.request.prompt))
        adapter = stream.request.adapter.name
        if adapter:
            if len(self._adapters) < MOST_ADAPTERS:
                self._adapters.add(adapter)
            named = adapter if adapter in self._adapters else OTHER
            self._metrics.count("gapless_adapter_requests_total", labels=(("adapter", named),))

    def found_prefix(self, num_tokens: int) -> None:
        self._metrics.count("gapless_prefix_hit_tokens_total", num_tokens)

    def first_started(self, stream: Stream) -> None:
        self._metrics.observe(
            "gapless_queue_time_seconds", (stream.started_ns - stream.request.arrival_ns) / S
        )

    def generated(self, num_tokens: int) -> None:
        self._metrics.count("gapless_generated_tokens_total", num_tokens)

    def first_token(self, stream: Stream) -> None:
        self._metrics.observe(
            "gapless_time_to_first_token_seconds", (stream.first_token_ns - stream.request.arrival_ns) / S
        )

    def sent(self, num_responses: int) -> None:
        self._metrics.count("gapless_responses_total", num_responses)

    def instance_lost(self, streams: Sequence[Stream]) -> None:
        """`streams` had a slot there and go on: those in an answer get their next token late."""
        self._metrics.count("gapless_instance_losses_total")
        num_late = sum(bool(stream.tokens) and stream.finish == Finish.RUNNING for stream in streams)
        self._metrics.count("gapless_late_tokens_total", num_late, (("cause", "instance_lost"),))

    def ended(self, stream: Stream, now_ns: int) -> None:
        self._count_outcome(stream.finish.reason)
        self._metrics.observe("gapless_e2e_latency_seconds", (now_ns - stream.request.arrival_ns) / S)
        num_new = len(stream.tokens) - len(stream.request.delivered)  # since it is here
        if num_new > 1:
            per_token_s = (now_ns - stream.first_token_ns) / S / (num_new - 1)
            self._metrics.observe("gapless_time_per_output_token_seconds", per_token_s)

    def _count_outcome(self, outcome: str) -> None:
        self._metrics.count("gapless_requests_total", labels=(("outcome", outcome),))
