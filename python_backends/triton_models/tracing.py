"""The spans of a request in the scheduler model: queue, prefill and decode, under the span that Triton has
open for it.

`execute` says which trace a request belongs to, the streams' thread when it has ended. It is not imported
without `server.trace_url`.
"""

from __future__ import annotations

import threading
from typing import Any

from python_backends.streams.stream import Stream
from python_backends.watching.spans import TraceSpans


class StreamTraceSpans:
    def __init__(self, url: str) -> None:
        self._spans = TraceSpans(url)
        self._parents: dict[int, str] = {}  # of open streams that are traced
        self._lock = threading.Lock()

    def begin(self, request_id: int, triton_request: Any) -> None:
        parent = triton_request.trace().get_context()
        if parent:
            with self._lock:
                self._parents[request_id] = parent

    def forget(self, request_id: int) -> None:
        """It was refused."""
        with self._lock:
            self._parents.pop(request_id, None)

    def end(self, stream: Stream, now_ns: int) -> None:
        """A request that was evicted, or whose instance died, keeps its first times."""
        with self._lock:
            parent = self._parents.pop(stream.request_id, None)
        if parent is None:
            return
        request = stream.request
        started_ns, first_ns = stream.started_ns or now_ns, stream.first_token_ns or now_ns
        called = {"request_id": request.client_id} if request.client_id else {}
        self._spans.add("queue", parent, request.arrival_ns, started_ns, **called)
        if stream.started_ns:
            self._spans.add("prefill", parent, started_ns, first_ns, num_input_tokens=len(request.prompt))
        if stream.first_token_ns:
            outcome: dict[str, int | str] = {
                "num_output_tokens": len(stream.tokens),
                "finish_reason": stream.finish.reason,
            }
            self._spans.add("decode", parent, first_ns, now_ns, life=stream.request_epoch, **outcome)

    def close(self) -> None:
        self._spans.close()
