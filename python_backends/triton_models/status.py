"""What the scheduler model says of itself and of its instances: the answer to the order `status`. Commands,
the front and its page read it.

Called by the streams thread alone. Counts are those since the scheduler model was started.
"""

from __future__ import annotations

import time
from typing import Any

from python_backends.nouns.load import JOB_STATUSES
from python_backends.nouns.request import QUANTILE_LEVELS, Finish
from python_backends.streams.forecast import Forecast
from python_backends.streams.stream import Stream
from python_backends.streams.table import StreamTable
from python_backends.triton_models.instance_loads import InstanceLoads
from python_backends.watching.metrics import GAP_BOUNDS_S, Metrics

MOST_REQUESTS = 50  # that the status names
LOW, HIGH = QUANTILE_LEVELS.index(0.1), QUANTILE_LEVELS.index(0.9)


class Status:
    """Reads the open streams, the loads and the metrics, and changes none of them."""

    def __init__(self, table: StreamTable, loads: InstanceLoads, metrics: Metrics, policy: str) -> None:
        """`policy`: of the cluster; empty where there is one instance."""
        self._table = table
        self._loads = loads
        self._metrics = metrics
        self._policy = policy

    def of(self, client_id: str = "") -> dict[str, Any]:
        """Names the open requests that their client calls so; empty: those that came first."""
        sums, counters = self._metrics.sums, self._metrics.counters
        instances = [self._loads.status_of(number) for number in sorted(self._loads.wanted)]
        num_generated = counters["gapless_generated_tokens_total", ()]
        forecast = self._forecast(max((each["step_s"] for each in instances), default=0.0), num_generated)
        streams = [stream for stream in self._table.streams if client_id in ("", stream.request.client_id)]
        waiting = self._table.waiting(self._loads.wait_reasons)
        return {
            "policy": self._policy,
            "ready": any(each["state"] == "ready" for each in instances),
            "open": len(self._table),
            "waiting": {reason: count for reason, count in waiting.items() if count},
            "queue_wait_s": round(forecast.queue_wait_s(), 3),
            "generated_tokens": round(num_generated),
            "late_tokens": sums("gapless_late_tokens_total", "cause"),
            "gaps": self._gaps(),
            "training": self._training(),
            "instances": instances,
            "migrations": sums("gapless_migrations_total", "outcome"),
            "requests": self._requests(streams[:MOST_REQUESTS], forecast),  # those that came first
        }

    def _forecast(self, step_s: float, num_generated: float) -> Forecast:
        outcomes = self._metrics.sums("gapless_requests_total", "outcome")
        num_ended = sum(outcomes.get(finish.reason, 0) for finish in (Finish.STOP, Finish.LENGTH))
        mean_length = num_generated / num_ended if num_ended else 0.0
        return Forecast(self._table.streams, self._loads.num_slots, step_s, mean_length)

    def _gaps(self) -> dict[str, Any]:
        """How often the device was idle between two steps, for how long: one count more than bounds."""
        counts = self._metrics.histograms["gapless_token_gap_seconds"].counts
        return {"bounds_s": GAP_BOUNDS_S, "counts": counts}

    def _training(self) -> dict[str, Any] | None:
        """None: there are no jobs."""
        gauges, counters = self._metrics.gauges, self._metrics.counters
        jobs = {each: gauges["gapless_finetuning_jobs", (("status", each),)] for each in JOB_STATUSES}
        if not any(jobs.values()):
            return None
        return {
            "steps": round(counters["gapless_finetuning_steps_total", ()]),
            "tokens": round(counters["gapless_finetuning_tokens_total", ()]),
            "loss": round(gauges["gapless_finetuning_loss", ()], 4),
            "jobs": {each: round(count) for each, count in jobs.items() if count},
        }

    def _requests(self, streams: list[Stream], forecast: Forecast) -> list[dict[str, Any]]:
        reasons, now_ns, places = self._loads.wait_reasons, time.monotonic_ns(), forecast.places()
        return [
            {
                "request": stream.request_id,
                "id": stream.request.client_id,
                "instance": stream.instance,
                "prompt_tokens": len(stream.request.prompt),
                "cached_tokens": stream.num_cached,
                "tokens": len(stream.tokens),
                "max_tokens": stream.request.sampling.max_tokens,
                "predicted_tokens": round(forecast.length(stream)),
                "predicted_range": _range_of(stream),
                "priority": stream.request.priority,
                "adapter": stream.request.adapter.name,
                "age_s": round((now_ns - stream.request.arrival_ns) / 1e9, 1),
                "phase": _phase_of(stream),
                "life": stream.request_epoch,  # 0: the first; more after each move and each crash
                "waits_for": self._table.submissions.wait_reason(stream, reasons) or "",
                "place": places.get(stream.request_id, 0),  # 0: it has a slot
            }
            for stream in streams
        ]


def _phase_of(stream: Stream) -> str:
    """Returns "prompt" until the slot yields the first token of this life."""
    if not stream.seated:
        return "waits"
    return "decode" if len(stream.tokens) > stream.num_prefilled else "prompt"


def _range_of(stream: Stream) -> list[int] | None:
    """Returns between which lengths the answer is expected to end in eight of ten cases; None: nothing is
    predicted yet.
    """
    if stream.prediction is None:
        return None
    quantiles = stream.prediction.quantiles
    return [round(float(quantiles[LOW])), round(float(quantiles[HIGH]))]
