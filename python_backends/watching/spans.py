"""Our spans in a request's trace: what happens to it inside the scheduler and the detokenizer, under Triton's
own.

The two models make one `TraceSpans` each where `server.trace_url` is set, and import nothing of this
otherwise. A span is made when it is over, from times that are kept anyway; a thread of OpenTelemetry's sends
them.
"""

from __future__ import annotations

import json
import time

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

EXPORT_EVERY_MS = 1000


class TraceSpans:
    def __init__(self, url: str) -> None:
        self._provider = TracerProvider(
            resource=Resource.create({"service.name": "gapless"}), shutdown_on_exit=False
        )
        self._provider.add_span_processor(
            BatchSpanProcessor(OTLPSpanExporter(url), schedule_delay_millis=EXPORT_EVERY_MS)
        )
        self._tracer = self._provider.get_tracer("gapless")
        self._unix_ns = time.time_ns() - time.monotonic_ns()

    def add(self, name: str, parent: str | None, start_ns: int, end_ns: int, **attributes: int | str) -> None:
        """A span from `start_ns` to `end_ns` of the monotonic clock.

        `parent` is the span that Triton has open, as it tells a Python model: W3C headers in JSON; None: the
        request is not traced.
        """
        if not parent:
            return
        context = TraceContextTextMapPropagator().extract(json.loads(parent))
        span = self._tracer.start_span(
            name, context=context, start_time=self._unix_ns + start_ns, attributes=attributes
        )
        span.end(self._unix_ns + end_ns)

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()  # type: ignore[no-untyped-call]
