"""Computes the numbers of a load test from its outcomes: percentiles, goodput, errors. As lines of text and
as JSON that includes machine and versions.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .arrivals import Load
from .run import Outcome

PERCENTILES = (50, 90, 99)
FIGURES = ("ttft", "tpot", "e2e")
ERROR_KINDS_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of times for goodput."""

    ttft_ms: float
    tpot_ms: float

    def keeps(self, outcome: Outcome) -> bool:
        tpot_s = outcome.tpot_s or 0.0
        return not outcome.error and outcome.ttft_s * 1e3 <= self.ttft_ms and tpot_s * 1e3 <= self.tpot_ms


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Returns percentiles, interpolated linearly; None without values."""
    return {f"p{p}": round(float(np.percentile(values, p)), 3) if len(values) else None for p in PERCENTILES}


def samples_ms(outcomes: Iterable[Outcome]) -> dict[str, list[float]]:
    """Returns TTFT, TPOT and E2E of the complete answers, in the order in which they ended."""
    good = [outcome for outcome in outcomes if not outcome.error]
    return {
        "ttft": [round(outcome.ttft_s * 1e3, 3) for outcome in good],
        "tpot": [round(tpot_s * 1e3, 3) for outcome in good if (tpot_s := outcome.tpot_s) is not None],
        "e2e": [round(outcome.e2e_s * 1e3, 3) for outcome in good],
    }


def summary(load: Load, outcomes: Sequence[Outcome], limits: Limits) -> dict[str, Any]:
    """Returns the numbers of a load with at least one outcome. Times in ms; rates over the time from the
    first due time to the last end.
    """
    wall_s = max(outcome.end_s for outcome in outcomes) - min(outcome.due_s for outcome in outcomes)
    samples = samples_ms(outcomes)
    num_good = sum(limits.keeps(outcome) for outcome in outcomes)
    return {
        "load": {"name": str(load), **asdict(load)},
        "requests": len(outcomes),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error)),
        "finish_reasons": dict(Counter(outcome.finish_reason for outcome in outcomes if not outcome.error)),
        "wall_s": round(wall_s, 3),
        "requests_s": round(len(samples["e2e"]) / wall_s, 3),
        "input_tokens": sum(outcome.num_input_tokens for outcome in outcomes),
        "output_tokens": sum(outcome.num_output_tokens for outcome in outcomes),
        "output_tokens_s": round(sum(outcome.num_output_tokens for outcome in outcomes) / wall_s, 2),
        **{f"{name}_ms": percentiles(samples[name]) for name in FIGURES},
        "goodput_requests_s": round(num_good / wall_s, 3),
        "goodput_share": round(num_good / len(outcomes), 4),
        "late_ms": percentiles([(outcome.sent_s - outcome.due_s) * 1e3 for outcome in outcomes]),
        "samples_ms": samples,
    }


def lines(result: dict[str, Any], limits: Limits) -> Iterable[str]:
    """Yields the numbers of one load as lines of text."""
    num_errors = sum(result["errors"].values())
    yield (
        f"{result['load']['name']}: {result['requests']} requests in {result['wall_s']:.1f} s, {num_errors}"
        " errors"
    )
    yield f"  {result['requests_s']:.2f} requests/s, {result['output_tokens_s']:.1f} output tokens/s"
    yield f"  {'ms':<6}" + "".join(f"{f'p{p}':>10}" for p in PERCENTILES)
    for name in FIGURES:
        figures = result[f"{name}_ms"].values()
        yield f"  {name.upper():<6}" + "".join(
            f"{'-' if value is None else format(value, '.1f'):>10}" for value in figures
        )
    yield (
        f"  goodput {result['goodput_requests_s']:.2f} requests/s ({result['goodput_share']:.0%}): "
        f"TTFT ≤ {limits.ttft_ms:g} ms and TPOT ≤ {limits.tpot_ms:g} ms"
    )
    if (late_ms := result["late_ms"]["p99"]) > limits.ttft_ms / 10:
        yield (f"  this client was late: {late_ms:.0f} ms at p99 from due to sent; run it on another machine")
    for error, count in Counter(result["errors"]).most_common(ERROR_KINDS_SHOWN):
        yield f"  {count} × {error}"


def provenance(command: str, server: str) -> dict[str, Any]:
    """Returns date, command, versions and machine of the test. The machine is the client's."""
    packages = ("tritonclient", "grpcio", "numpy")
    return {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "command": command,
        "machine": {
            "processor": _processor(),
            "cores": _cores(),
            "memory_gib": _memory_gib(),
            "system": platform.platform(),
        },
        "versions": {
            "server": server,
            "python": platform.python_version(),
            **{p: importlib.metadata.version(p) for p in packages},
        },
    }


def _cores() -> int | None:
    """Those that this process may use; all of them where the system does not say it, as macOS."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_gib() -> float | None:
    if not hasattr(os, "sysconf"):  # Windows
        return None
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
