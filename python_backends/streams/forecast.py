"""What is predicted of open streams, for operators and for the front: how long each answer gets, the place of
those that wait, and how soon the last of them has its slot.

Changes nothing. Policies may give the slots in another order than that of arrival, which is assumed here.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection

from python_backends.streams.stream import Stream

ANY_LENGTH = 256.0  # of an answer, before one has ended here
ANY_STEP_S = 0.05  # before an instance has told of one


class Forecast:
    def __init__(
        self, streams: Collection[Stream], num_slots: int, step_s: float, mean_length: float = 0.0
    ) -> None:
        """`streams`: all that are open, in the order of their acceptance. `step_s`: what a token takes; 0: it
        is not known. `mean_length`: tokens of the answers that have ended; 0: none has.
        """
        self._streams = streams
        self._num_slots = max(1, num_slots)
        self._step_s = step_s or ANY_STEP_S
        self._mean_length = mean_length or ANY_LENGTH

    def length(self, stream: Stream) -> float:
        """Returns how many tokens the whole answer is expected to have."""
        predicted = self._mean_length if stream.prediction is None else stream.prediction.mean
        sampling = stream.request.sampling
        return min(max(predicted, sampling.min_tokens, len(stream.tokens) + 1), sampling.max_tokens)

    def places(self) -> dict[int, int]:
        """Returns the places of the streams that wait for a slot, by their request ids; 1: the next."""
        waiting = (stream for stream in self._streams if not stream.seated)
        return {stream.request_id: place for place, stream in enumerate(waiting, 1)}

    def queue_wait_s(self) -> float:
        """Returns in how many seconds the last stream that waits will have its slot; if none waits, in how
        many the first answer ends; 0 if none is open.
        """
        ends_s = [self._left_s(stream) for stream in self._streams if stream.seated]
        waiting_s = [self._left_s(stream) for stream in self._streams if not stream.seated]
        if not waiting_s:
            return min(ends_s, default=0.0)
        ends_s += [0.0] * (self._num_slots - len(ends_s))
        heapq.heapify(ends_s)
        begins_s = 0.0
        for left_s in waiting_s:
            begins_s = ends_s[0]
            heapq.heapreplace(ends_s, begins_s + left_s)
        return begins_s

    def _left_s(self, stream: Stream) -> float:
        return (self.length(stream) - len(stream.tokens)) * self._step_s
