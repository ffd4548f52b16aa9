"""/metrics of the front, in Prometheus' text format: what its clients see, in histograms that are typed as
such. With `front.vllm_metrics` the same numbers are there under the names of vLLM, too, which dashboards,
autoscalers and gateways read.
"""

from __future__ import annotations

import bisect
from collections import Counter
from typing import Any

from front.record import Record

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LATENCIES_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 320.0)
GAPS_S = (0.0025, 0.005, 0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12)
NAMES = {  # ours, vLLM's, and what they are
    "first_token": ("time_to_first_token_seconds", "time_to_first_token_seconds", "until the first token"),
    "gap": ("token_gap_seconds", "inter_token_latency_seconds", "between two tokens"),
    "whole": ("request_seconds", "e2e_request_latency_seconds", "until the end of an answer"),
}
COUNTS = {
    "prompt": ("prompt_tokens_total", "prompt_tokens_total", "Tokens of prompts"),
    "output": ("output_tokens_total", "generation_tokens_total", "Tokens of answers"),
}
OUR_PREFIX, THEIR_PREFIX = "gapless_front_", "vllm:"


class Histogram:
    """Counts of values, one for each interval between two bounds."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, label: str) -> list[str]:
        total, lines = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            lines.append(f'{name}_bucket{{{label},le="{bound}"}} {total}')
        return [*lines, f"{name}_sum{{{label}}} {self._sum:.6f}", f"{name}_count{{{label}}} {total}"]


class FrontMetrics:
    """Of one front process. `as_vllm`: its names, too."""

    def __init__(self, model: str, as_vllm: bool) -> None:
        self._label = f'model_name="{_escaped(model)}"'
        self._prefixes = (OUR_PREFIX, THEIR_PREFIX) if as_vllm else (OUR_PREFIX,)
        self._histograms = {name: Histogram(GAPS_S if name == "gap" else LATENCIES_S) for name in NAMES}
        self._tokens = Counter[str]()
        self._requests = Counter[tuple[str, int]]()  # by route and status
        self._finished = Counter[str]()  # by reason

    def gap(self, seconds: float, num_tokens: int) -> None:
        """A piece with so many tokens came after this time: each took its share."""
        self._histograms["gap"].add(seconds / num_tokens, num_tokens)

    def ended(self, record: Record, seconds: float) -> None:
        self._requests[record.route, record.status] += 1
        if not record.num_prompt_tokens:
            return
        self._tokens["prompt"] += record.num_prompt_tokens
        self._tokens["output"] += record.num_output_tokens
        self._finished.update(record.finish_reasons)
        self._histograms["whole"].add(seconds)
        if record.first_token_s:
            self._histograms["first_token"].add(record.first_token_s - record.began_s)

    def text(self, status: dict[str, Any]) -> str:
        """`status` is the scheduler model's; empty if there is none."""
        lines = _family(f"{OUR_PREFIX}requests_total", "counter", "Requests over HTTP")
        lines += [
            f'{OUR_PREFIX}requests_total{{route="{_escaped(route)}",status="{code}"}} {count}'
            for (route, code), count in sorted(self._requests.items())
        ]
        for prefix in self._prefixes:
            lines += self._of(prefix)
        if THEIR_PREFIX in self._prefixes:
            lines += self._theirs_alone(status)
        return "\n".join(lines) + "\n"

    def _of(self, prefix: str) -> list[str]:
        which = self._prefixes.index(prefix)
        lines = []
        for key, names in NAMES.items():
            name = prefix + names[which]
            lines += _family(name, "histogram", f"Seconds {names[2]}")
            lines += self._histograms[key].lines(name, self._label)
        for key, names in COUNTS.items():
            name = prefix + names[which]
            lines += [*_family(name, "counter", names[2]), f"{name}{{{self._label}}} {self._tokens[key]}"]
        return lines

    def _theirs_alone(self, status: dict[str, Any]) -> list[str]:
        name = f"{THEIR_PREFIX}request_success_total"
        lines = _family(name, "counter", "Answers that ended, by the reason")
        lines += [
            f'{name}{{{self._label},finished_reason="{reason}"}} {count}'
            for reason, count in sorted(self._finished.items())
        ]
        instances = status.get("instances", [])
        num_blocks = sum(instance["blocks"] for instance in instances)
        share = sum(instance["blocks_used"] for instance in instances) / num_blocks if num_blocks else 0.0
        num_running = sum(instance["slots_busy"] for instance in instances)
        num_waiting = sum(status.get("waiting", {}).values())
        for number, value, text in (
            ("num_requests_running", num_running, "Requests that have a slot"),
            ("num_requests_waiting", num_waiting, "Requests that wait for a slot"),
            ("kv_cache_usage_perc", round(share, 6), "KV blocks in use; 1: all"),
        ):
            name = THEIR_PREFIX + number
            lines += [*_family(name, "gauge", text), f"{name}{{{self._label}}} {value}"]
        return lines


def _family(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
