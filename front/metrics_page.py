"""/metrics of the front, in Prometheus' text format: what its clients see, in histograms that are typed as
such. The same numbers are there under vLLM's names, too, which dashboards, autoscalers and gateways read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from front.metrics import HISTOGRAMS, TOKENS, Numbers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OUR_PREFIX, THEIR_PREFIX = "gapless_front_", "vllm:"


class Page:
    """Writes numbers of a model as text."""

    def __init__(self, model: str) -> None:
        self._label = f'model_name="{_escaped(model)}"'

    def text(self, numbers: Numbers, status: dict[str, Any]) -> str:
        """`status` is the scheduler model's; empty if there is none."""
        lines = [*self._requests(numbers)]
        for which, prefix in enumerate((OUR_PREFIX, THEIR_PREFIX)):
            lines += self._answers(numbers, which, prefix)
        lines += self._theirs_alone(numbers, status)
        return "\n".join(lines) + "\n"

    def _requests(self, numbers: Numbers) -> Iterator[str]:
        name = f"{OUR_PREFIX}requests_total"
        yield from _family(name, "counter", "Requests over HTTP")
        for each, count in sorted(numbers.requests.items()):
            status, route = each.split(" ", 1)
            yield f'{name}{{route="{_escaped(route)}",status="{status}"}} {count}'

    def _answers(self, numbers: Numbers, which: int, prefix: str) -> Iterator[str]:
        for each, (bounds, names, text) in HISTOGRAMS.items():
            name, histogram, total = prefix + names[which], numbers.histograms[each], 0
            yield from _family(name, "histogram", text)
            for bound, count in zip((*map(str, bounds), "+Inf"), histogram.counts, strict=True):
                total += count
                yield f'{name}_bucket{{{self._label},le="{bound}"}} {total}'
            yield f"{name}_sum{{{self._label}}} {histogram.sum:.6f}"
            yield f"{name}_count{{{self._label}}} {total}"
        for each, (names, text) in TOKENS.items():
            name = prefix + names[which]
            yield from _family(name, "counter", text)
            yield f"{name}{{{self._label}}} {numbers.tokens.get(each, 0)}"

    def _theirs_alone(self, numbers: Numbers, status: dict[str, Any]) -> Iterator[str]:
        name = f"{THEIR_PREFIX}request_success_total"
        yield from _family(name, "counter", "Answers that ended, by the reason")
        for reason, count in sorted(numbers.finished.items()):
            yield f'{name}{{{self._label},finished_reason="{reason}"}} {count}'
        instances = status.get("instances", [])
        num_blocks = sum(instance["blocks"] for instance in instances)
        share = sum(instance["blocks_used"] for instance in instances) / num_blocks if num_blocks else 0.0
        num_running = sum(instance["slots_busy"] for instance in instances)
        for number, value, text in (
            ("num_requests_running", num_running, "Requests that have a slot"),
            (
                "num_requests_waiting",
                sum(status.get("waiting", {}).values()),
                "Requests that wait for a slot",
            ),
            ("kv_cache_usage_perc", round(share, 6), "KV blocks in use; 1: all"),
        ):
            yield from _family(THEIR_PREFIX + number, "gauge", text)
            yield f"{THEIR_PREFIX}{number}{{{self._label}}} {value}"


def _family(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
