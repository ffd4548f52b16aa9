"""Trace spans of a request inside the scheduler model and the detokenizer, as children of Triton's spans.

Each of the two models makes one `TraceSpans` if `server.trace_url` is set; otherwise they do not import this
module. A span is made after its end, from times that the models have anyway; a thread of OpenTelemetry sends
the spans.
"""

from __future__ import annotations

import json
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

SAME_CLOCK_NS = 1_000_000
EXPORT_EVERY_MS = 1000


class TraceSpans:
    """Makes trace spans and sends them to `url`."""

    def __init__(self, url: str) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "gapless"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(url), schedule_delay_millis=EXPORT_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("gapless")
        self._unix_ns = 0  # what makes a time of the monotonic clock a Unix time

    def add(self, name: str, parent: str | None, start_ns: int, end_ns: int, **attributes: int | str) -> None:
        """Makes a span from `start_ns` to `end_ns` of the monotonic clock.

        `parent` is Triton's open span, as a Python model receives it: W3C headers in JSON. None or empty: the
        request is not traced.
        """
        if not parent:
            return
        self._look_at_clocks()
        context = TraceContextTextMapPropagator().extract(json.loads(parent))
        span = self._tracer.start_span(
            name, context=context, start_time=self._unix_ns + start_ns, attributes=attributes
        )
        span.end(self._unix_ns + end_ns)

    def _look_at_clocks(self) -> None:
        """They part when the clock is set, and while the machine is suspended. A smaller difference is that
        of two readings: a span ends where the next one begins.
        """
        unix_ns = time.time_ns() - time.monotonic_ns()
        if abs(unix_ns - self._unix_ns) > SAME_CLOCK_NS:
            self._unix_ns = unix_ns

    def close(self) -> None:
        """Sends the spans that are left."""
        self._provider.shutdown()  # type: ignore[no-untyped-call]
