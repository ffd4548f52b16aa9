"""Open streams as the instance has them: which it was given, which have a slot there, and what is still to be
sent to it.

Owns what a stream says of that (`submitted`, `seated`, `request_epoch`) and whether there is an instance.
Used by the stream table.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from python_backends.nouns.messages import Cancel, Predicted, Submit
from python_backends.nouns.request import Finish, WaitReason
from python_backends.streams.quarantine import Quarantine
from python_backends.streams.stream import Stream


class Submissions:
    def __init__(self) -> None:
        self.num_queued_tokens = 0  # of the prompts of streams without a slot
        self._num_waiting = 0  # of these streams
        self._instance_ready = False
        self._quarantine = Quarantine()
        self._unsubmitted: dict[int, Stream] = {}  # what an instance may be given
        self._cancels: list[Cancel] = []
        self._predicted: list[Predicted] = []

    @property
    def is_told(self) -> bool:
        """Of every stream that ended, and of every prediction."""
        return not self._cancels and not self._predicted

    def add(self, stream: Stream) -> None:
        self._unsubmitted[stream.request_id] = stream
        self.num_queued_tokens += len(stream.request.prompt)
        self._num_waiting += 1

    def waiting(self, reason_there: WaitReason | None) -> dict[WaitReason, int]:
        """How many streams have no slot, by the reason. `reason_there`: of those that the instance has."""
        counts = dict.fromkeys(WaitReason, 0)
        counts[WaitReason.TRIAL if self._instance_ready else WaitReason.NO_INSTANCE] = len(self._unsubmitted)
        counts[reason_there or WaitReason.STEP] += self._num_waiting - len(self._unsubmitted)
        return counts

    def started(self, stream: Stream) -> None:
        """It has a slot."""
        self._seat(stream, True)

    def predicted(self, stream: Stream) -> None:
        """There is a new prediction of its length."""
        if stream.submitted and stream.prediction is not None:
            self._predicted.append(Predicted(stream.request_id, stream.prediction))

    def cancel(self, stream: Stream) -> None:
        """We are about to end it; the instance gets a Cancel if it still works on it."""
        if stream.submitted and stream.finish == Finish.RUNNING:
            self._cancels.append(Cancel(stream.request_id))
        self._unsubmitted.pop(stream.request_id, None)

    def remove(self, stream: Stream) -> None:
        """It has ended: its prompt waits no longer."""
        self._seat(stream, True)

    def instance_ready(self) -> None:
        self._instance_ready = True

    def instance_lost(self, streams: Collection[Stream]) -> Stream | None:
        """Whatever it had of all `streams` is to be submitted again. Returns
        the one that is to blame, if that is sure.
        """
        self._instance_ready = False
        culprit = self._quarantine.crashed(streams)
        for stream in streams:
            self._withdraw(stream)
        return culprit

    def outbox(self, streams: Collection[Stream]) -> list[Cancel | Submit | Predicted]:
        """What the instance is to be told now; `streams` are all."""
        self._end_trial()
        cancels, self._cancels = self._cancels, []
        predicted, self._predicted = self._predicted, []
        return [*cancels, *predicted, *self._submit(streams)]

    def check_integrity(self, streams: Collection[Stream]) -> None:
        """Re-derives from all streams what is kept in addition. Raises AssertionError."""
        queued = sum(len(stream.request.prompt) for stream in streams if not stream.seated)
        assert queued == self.num_queued_tokens, "queued tokens are off"
        assert self._num_waiting == sum(not stream.seated for stream in streams), "waiting streams are off"
        ready = {
            stream.request_id
            for stream in streams
            if not stream.submitted and stream.finish == Finish.RUNNING
        }
        assert ready == set(self._unsubmitted), "a stream waits for an instance that has it, or for none"

    def _submit(self, streams: Collection[Stream]) -> list[Submit | Predicted]:
        if not self._instance_ready or not self._unsubmitted:
            return []
        chosen = self._quarantine.admissible(self._unsubmitted.values(), streams)
        for stream in chosen:
            stream.submitted = True
            del self._unsubmitted[stream.request_id]
        submits = [
            Submit(stream.request, np.array(stream.tokens, np.int32), stream.request_epoch)
            for stream in chosen
        ]
        return [
            *submits,
            *(
                Predicted(stream.request_id, stream.prediction)
                for stream in chosen
                if stream.prediction is not None
            ),
        ]

    def _seat(self, stream: Stream, seated: bool) -> None:
        """The prompts of those that have no slot are queued."""
        if seated != stream.seated:
            sign = -1 if seated else 1
            self.num_queued_tokens += sign * len(stream.request.prompt)
            self._num_waiting += sign
            stream.seated = seated

    def _withdraw(self, stream: Stream) -> None:
        """No instance has the request any more."""
        self._seat(stream, False)
        stream.submitted = False
        stream.request_epoch += 1
        stream.forget_early()
        if stream.finish == Finish.RUNNING:
            self._unsubmitted[stream.request_id] = stream

    def _end_trial(self) -> None:
        stream = self._quarantine.acquitted()
        if stream is not None and stream.finish == Finish.RUNNING:
            self._cancels.append(Cancel(stream.request_id))
            self._withdraw(stream)
