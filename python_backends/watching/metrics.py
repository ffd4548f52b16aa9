"""The metrics: names, kinds and values, kept as plain numbers and exported to Triton's /metrics every second.

Histograms are exported as counters in Prometheus's form (cumulative `_bucket`, `_sum`, `_count`), because
every update of a metric in a Triton model is a round trip to the server: a few changed numbers every second
instead of one trip for each observation.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from python_backends.nouns.load import JOB_STATUSES, LATE_CAUSES
from python_backends.nouns.request import Finish, WaitReason

EXPORT_EVERY_S = 1.0  # each number that has changed is a round trip to the server
Labels = tuple[tuple[str, str], ...]

GAUGES = {
    "gapless_requests_waiting": "Requests accepted that hold no slot",
    "gapless_waiting": f"The same by the reason: {', '.join(WaitReason)} (docs/waiting.md)",
    "gapless_queued_tokens": "Prompt tokens of requests that wait for a slot",
    "gapless_slots_busy": "Slots in use: each by one request",
    "gapless_slots_total": "Slots of the decode batch",
    "gapless_kv_blocks_used": "KV blocks held by running requests",
    "gapless_kv_blocks_retained": "KV blocks kept for later prompts with the same prefix",
    "gapless_kv_blocks_total": "KV blocks",
    "gapless_admission_peak_blocks": (
        "Most KV blocks in use in the coming steps, estimated by admission from predicted lengths"
    ),
    "gapless_adapters_loaded": "LoRA adapters in the memory of engines, summed over all instances",
    "gapless_instances": "Instances by state: starting, ready, draining, lost",
    "gapless_instance_slots_busy": "Slots in use, by instance",
    "gapless_instance_kv_blocks_used": "KV blocks held by running requests, by instance",
    "gapless_instance_waiting": "Requests that wait for a slot, by instance",
    "gapless_instance_freeness_tokens": "KV tokens that each request may still grow by, by instance",
    "gapless_instance_step_seconds": "Time of a step at present, by instance",
    "gapless_finetuning_borrowed_blocks": "KV blocks that training borrows at present; they count as free",
    "gapless_finetuning_loss": "Loss of the latest optimiser step of a job, in nats a token",
    "gapless_finetuning_jobs": "Jobs of the job directory by status (docs/finetuning.md)",
    "gapless_predictor_version": "Version of what predicted last from a text; 0: nothing has",
    "gapless_coalescing_seconds": "Time for which tokens are held, to be sent together",
    "gapless_start_time_seconds": "When the launcher was started, in Unix time",
}
COUNTERS = {
    "gapless_generated_tokens_total": "Output tokens",
    "gapless_late_tokens_total": (
        "Output tokens that came later than scheduling.late_token_ms after the one before, by cause"
        " (docs/token_way.md)"
    ),
    "gapless_evictions_total": "Sequences evicted because no KV blocks were free",
    "gapless_prompt_tokens_total": "Prompt tokens of accepted requests",
    "gapless_adapter_requests_total": "Requests accepted with a LoRA adapter, by its name",
    "gapless_prefix_hit_tokens_total": "Prompt tokens found in kept KV blocks",
    "gapless_requests_total": (
        "Requests ended, by outcome. refused: too many were open or queued; see gapless_refused_at_door_total"
    ),
    "gapless_responses_total": "Responses sent to the detokenizer",
    "gapless_instance_losses_total": "Times that an instance died or stalled",
    "gapless_length_predictions_total": (
        "Lengths predicted, by source: written, state, text, forest, history, none"
    ),
    "gapless_instance_seconds_total": "Seconds that instances have run, summed over all instances",
    "gapless_scalings_total": "Times that there was one instance more or less, by direction: up, down",
    "gapless_dispatches_total": "Requests sent to an instance, by instance",
    "gapless_migrations_total": "Requests that were to go to another instance, by reason and outcome",
    "gapless_migration_bytes_total": "Bytes of KV blocks sent from one instance to another",
    "gapless_finetuning_tokens_total": "Tokens of optimiser steps that instances have computed",
    "gapless_finetuning_wasted_tokens_total": (
        "Computed again: an instance died after its last saved state, or a pack gave way to requests"
    ),
    "gapless_finetuning_steps_total": "Optimiser steps",
    "gapless_restarts_total": "Times that the launcher started a process again, by process",
}
DOOR_COUNTERS = {  # exported by the tokenizer model
    "gapless_refused_at_door_total": (
        "Requests that were never accepted, by reason: invalid (a field is wrong or too long),"
        " queue_full (a guide was not compiled in time), shutting_down"
    ),
}
TIMESTAMP = "gapless_metrics_timestamp_seconds"
OUTCOMES = (*(finish.reason for finish in Finish if finish != Finish.RUNNING), "refused")
# the scheduler model counts the last one
ALL_LATE_CAUSES = (*LATE_CAUSES, "instance_lost")
LABELLED = (
    "gapless_late_tokens_total",
    "gapless_adapter_requests_total",
    "gapless_finetuning_jobs",
    "gapless_waiting",
    "gapless_instances",
    "gapless_instance_slots_busy",
    "gapless_instance_kv_blocks_used",
    "gapless_instance_waiting",
    "gapless_instance_freeness_tokens",
    "gapless_instance_step_seconds",
    "gapless_dispatches_total",
    "gapless_migrations_total",
    "gapless_scalings_total",
    "gapless_requests_total",
    "gapless_restarts_total",
    "gapless_length_predictions_total",
)
HISTOGRAMS = {
    "gapless_time_to_first_token_seconds": "From arrival to the first output token",
    "gapless_time_per_output_token_seconds": "Mean time between the output tokens of a request",
    "gapless_e2e_latency_seconds": "From arrival to the end of the answer",
    "gapless_queue_time_seconds": "From arrival to a slot",
    "gapless_length_prediction_error_tokens": "Between the length of an answer and its mean as predicted from"
    " its text",
    "gapless_length_error_at_prompt_end_tokens": "Between the length of an answer and its median as predicted"
    " from the hidden state at the end of its prompt",
    "gapless_length_error_while_written_tokens": "Between the length of an answer and its median as predicted"
    " from its hidden states after 128, 256, 512 or 1024 tokens",
    "gapless_migration_seconds": "From the decision to move a running request until it goes on elsewhere",
    "gapless_migration_downtime_seconds": (
        "From the time when the source has stopped until the first token of the destination"
    ),
    "gapless_token_gap_seconds": "Time for which the device is idle between two steps while there is work",
}
BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
GAP_BOUNDS_S = (1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, *(bound for bound in BOUNDS_S if bound <= 1.0))
TOKEN_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
_BOUNDS = {
    "gapless_token_gap_seconds": GAP_BOUNDS_S,
    "gapless_length_prediction_error_tokens": TOKEN_BOUNDS,
    "gapless_length_error_at_prompt_end_tokens": TOKEN_BOUNDS,
    "gapless_length_error_while_written_tokens": TOKEN_BOUNDS,
}


@dataclass(slots=True)
class Histogram:
    """Counts of observations, one for each interval between two bounds."""

    bounds: tuple[float, ...] = BOUNDS_S
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sum += value

    def add(self, counts: Sequence[int], total: float) -> None:
        """Adds observations that another process has counted. Nothing if it has none, or, as another version
        of the code, counts by other bounds.
        """
        if len(counts) == len(self.counts):
            self.counts = [ours + theirs for ours, theirs in zip(self.counts, counts, strict=True)]
            self.sum += total


class Metrics:
    """The metrics of one process. One thread writes them."""

    def __init__(self) -> None:
        self.gauges: dict[tuple[str, Labels], float] = {
            (name, ()): 0.0 for name in GAUGES if name not in LABELLED
        }
        self.gauges |= {("gapless_waiting", (("reason", reason.value),)): 0.0 for reason in WaitReason}
        self.gauges |= {("gapless_finetuning_jobs", (("status", each),)): 0.0 for each in JOB_STATUSES}
        self.counters: dict[tuple[str, Labels], float] = {
            (name, ()): 0.0 for name in COUNTERS if name not in LABELLED
        }
        # with a value of 0 from the start, so that the first request is a change
        self.counters |= {("gapless_requests_total", (("outcome", outcome),)): 0.0 for outcome in OUTCOMES}
        self.counters |= {("gapless_late_tokens_total", (("cause", each),)): 0.0 for each in ALL_LATE_CAUSES}
        self.histograms = {name: Histogram(_BOUNDS.get(name, BOUNDS_S)) for name in HISTOGRAMS}

    def gauge(self, name: str, value: float, labels: Labels = ()) -> None:
        self.gauges[name, labels] = value

    def count(self, name: str, amount: float = 1.0, labels: Labels = ()) -> None:
        self.counters[name, labels] = self.counters.get((name, labels), 0.0) + amount

    def total(self, name: str, value: float, labels: Labels = ()) -> None:
        """Sets a counter to the value that another process has counted."""
        self.counters[name, labels] = value

    def sums(self, name: str, label: str) -> dict[str, int]:
        """Returns the counts of a counter, summed by the values of one of its labels."""
        found: dict[str, int] = {}
        for (each, labels), count in self.counters.items():
            if each == name:
                value = dict(labels)[label]
                found[value] = found.get(value, 0) + round(count)
        return found

    def observe(self, name: str, value: float) -> None:
        self.histograms[name].observe(value)

    def samples(self) -> Iterator[tuple[str, Labels, float]]:
        """Yields every number as (name, labels, value), histograms as their counters. The last one is the
        time when they were read.
        """
        read_s = time.time()
        for (name, labels), value in self.gauges.items():
            yield name, labels, value
        for (name, labels), value in self.counters.items():
            yield name, labels, value
        for name, histogram in self.histograms.items():
            yield from _spelled_out(name, histogram)
        yield TIMESTAMP, (), read_s


def families() -> Iterator[tuple[str, str, bool]]:
    """Yields (name, description, whether it is a gauge) of every family in `samples`."""
    for name, text in GAUGES.items():
        yield name, text, True
    for name, text in COUNTERS.items():
        yield name, text, False
    for name, text in HISTOGRAMS.items():
        for part in ("_bucket", "_sum", "_count"):
            yield name + part, text, False
    yield TIMESTAMP, "When all these numbers were read, in Unix time", True


def _spelled_out(name: str, histogram: Histogram) -> Iterator[tuple[str, Labels, float]]:
    total = 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        total += count
        yield name + "_bucket", (("le", bound),), total
    yield name + "_sum", (), histogram.sum
    yield name + "_count", (), total
