"""Open streams as the instances have them: which instance has which stream, in which life, and what is still
to be sent to each.

Owns what a stream says of that (`instance`, `seated`, its request epochs) and which instances there are. Used
by the stream table, and by the moves of the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from python_backends.nouns.messages import Cancel, Predicted, Submit, ToInstance
from python_backends.nouns.request import Finish, WaitReason
from python_backends.streams.instances import Instances
from python_backends.streams.quarantine import Quarantine
from python_backends.streams.stream import NO_INSTANCE, PreviousLife, Stream


class Dispatcher(Protocol):
    """Decides which instance gets a stream."""

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        """One of the instances `allowed` (not empty); None: the stream waits."""

    def submitted(self, stream: Stream, instance: int, number: int) -> None:
        """The stream goes to `instance`, with the Submit of this number."""


class OnlyInstance:
    """The dispatcher where there is one instance."""

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        return allowed[0]

    def submitted(self, stream: Stream, instance: int, number: int) -> None:
        pass


class Submissions:
    def __init__(self, dispatcher: Dispatcher) -> None:
        self.num_queued_tokens = 0  # of the prompts of streams without a slot
        self.instances = Instances()
        self.quarantine = Quarantine()
        self._dispatcher = dispatcher
        self._unsubmitted: dict[int, Stream] = {}  # what an instance may be given
        self._outbox: dict[int, list[ToInstance]] = {}  # by instance

    @property
    def is_told(self) -> bool:
        """Whether every instance has been told of what concerns it, except of new streams."""
        return not self._outbox

    def add(self, stream: Stream) -> None:
        self._unsubmitted[stream.request_id] = stream
        self.num_queued_tokens += len(stream.request.prompt)

    def waiting(
        self, streams: Collection[Stream], reasons: Mapping[int, WaitReason | None]
    ) -> dict[WaitReason, int]:
        """How many of all `streams` have no slot, by the reason. `reasons`: of those that an instance has."""
        counts = dict.fromkeys(WaitReason, 0)
        for stream in streams:
            if (reason := self.wait_reason(stream, reasons)) is not None:
                counts[reason] += 1
        return counts

    def wait_reason(self, stream: Stream, reasons: Mapping[int, WaitReason | None]) -> WaitReason | None:
        """Why it has no slot; None: it has one, or has ended. `reasons`: as for `waiting`."""
        if stream.seated or stream.finish != Finish.RUNNING:
            return None
        if stream.submitted:
            return reasons.get(stream.instance) or WaitReason.STEP
        return WaitReason.TRIAL if self.instances.ready else WaitReason.NO_INSTANCE

    def started(self, stream: Stream) -> None:
        """It has a slot."""
        self._seat(stream, True)

    def evicted(self, stream: Stream) -> None:
        """It waits for a slot again, in the instance that has it, which has sent all tokens before."""
        self._seat(stream, False)
        stream.num_prefilled = len(stream.tokens)

    def predicted(self, stream: Stream) -> None:
        """There is a new prediction of its length."""
        if stream.submitted and stream.prediction is not None:
            self.tell(stream.instance, Predicted(stream.request_id, stream.prediction))

    def cancel(self, stream: Stream) -> None:
        """We are about to end it; its instance gets a Cancel if it still works on it."""
        if stream.submitted and stream.finish == Finish.RUNNING:
            self.tell(stream.instance, Cancel(stream.request_id, stream.request_epoch))
        self._unsubmitted.pop(stream.request_id, None)

    def remove(self, stream: Stream) -> None:
        """It has ended: its prompt waits no longer."""
        self._seat(stream, True)

    def tell(self, instance: int, *messages: ToInstance) -> None:
        """Sends these with the next outbox."""
        self._outbox.setdefault(instance, []).extend(messages)

    def instance_ready(self, instance: int) -> None:
        self.instances.add(instance)

    def instance_lost(self, instance: int, streams: Collection[Stream], now_ns: int) -> Stream | None:
        """Whatever it had of all `streams` is to be submitted again, and also those that it had before their
        last move and whose tokens from it have not all come. Returns the stream that is to blame, if that is
        sure.
        """
        self.instances.lose(instance)
        self._outbox.pop(instance, None)
        culprit = self.quarantine.crashed(streams, instance, now_ns)
        for stream in streams:
            if stream.instance == instance:
                self._withdraw(stream)
            elif _lacks_tokens_of(stream, instance):
                self.take_back(stream)
        return culprit

    def is_needed(self, instance: int, streams: Collection[Stream]) -> bool:
        """Whether one of all `streams` runs or waits there, or lacks tokens that it computed."""
        return any(_needs(stream, instance) for stream in streams)

    def num_needing(self, instance: int, streams: Collection[Stream]) -> int:
        """How many of all `streams` need it so."""
        return sum(_needs(stream, instance) for stream in streams)

    def close(self, instances: frozenset[int]) -> None:
        """These, and no others, are to be empty: no stream enters them."""
        self.instances.close(instances)

    def forget(self, instance: int) -> None:
        """It has ended and no stream needs it; a later one of this number is another one."""
        self.instances.forget(instance)
        self._outbox.pop(instance, None)

    # --- moves

    def new_request_epoch(self, stream: Stream) -> int:
        """A life that the stream may have from now on."""
        stream.last_request_epoch += 1
        return stream.last_request_epoch

    def moved(self, stream: Stream, instance: int, request_epoch: int, num_tokens: int) -> None:
        """The stream goes on in `instance`, as life `request_epoch`, from token number `num_tokens` on. Its
        last instance frees the slot.
        """
        self.tell(stream.instance, Cancel(stream.request_id, stream.request_epoch))
        stream.previous = PreviousLife(stream.instance, stream.request_epoch, num_tokens)
        stream.instance, stream.request_epoch = instance, request_epoch
        stream.num_prefilled = num_tokens

    def renew(self, stream: Stream) -> int:
        """The stream goes on in its instance as another life, whose number is returned: later tokens of any
        earlier one are dropped.
        """
        stream.request_epoch, stream.previous = self.new_request_epoch(stream), None
        return stream.request_epoch

    def take_back(self, stream: Stream) -> None:
        """Takes it from its instance; it is submitted again."""
        self.cancel(stream)
        self._withdraw(stream)

    def submit_elsewhere(self, stream: Stream, instance: int, now_ns: int) -> None:
        """Takes it from its instance, and submits it to this one, where its tokens are computed again."""
        self.take_back(stream)
        self._submit_to(stream, instance, now_ns)

    # --- what goes out

    def outbox(self, streams: Collection[Stream], now_ns: int) -> dict[int, list[ToInstance]]:
        """What each instance is to be told now, by its number; `streams` are all."""
        self._end_trial()
        self._submit(streams, now_ns)
        outbox, self._outbox = self._outbox, {}
        return outbox

    def check_integrity(self, streams: Collection[Stream]) -> None:
        """Re-derives from all streams what is kept in addition. Raises AssertionError."""
        queued = sum(len(stream.request.prompt) for stream in streams if not stream.seated)
        assert queued == self.num_queued_tokens, "queued tokens are off"
        ready = {
            stream.request_id
            for stream in streams
            if not stream.submitted and stream.finish == Finish.RUNNING
        }
        assert ready == set(self._unsubmitted), "a stream waits for an instance that has it, or for none"
        for stream in streams:
            before = stream.previous
            assert stream.request_epoch <= stream.last_request_epoch, "a life has the number of a later one"
            assert before is None or before.request_epoch < stream.request_epoch, "two lives are the same"

    def _submit(self, streams: Collection[Stream], now_ns: int) -> None:
        if not self.instances.ready or not self._unsubmitted:
            return
        admissible = self.quarantine.admissible(self._unsubmitted.values(), streams, self.instances, now_ns)
        for stream, allowed in admissible:
            instance = self._dispatcher.choose(stream, allowed)
            if instance is not None:
                self._submit_to(stream, instance, now_ns)

    def _submit_to(self, stream: Stream, instance: int, now_ns: int) -> None:
        del self._unsubmitted[stream.request_id]
        stream.instance, stream.num_prefilled = instance, len(stream.tokens)
        number = self.instances.count_submit(instance)
        delivered = np.array(stream.tokens, np.int32)
        # instances give new requests their places by the order of these messages
        age_s = max(0, now_ns - stream.request.arrival_ns) / 1e9 if stream.request_epoch else 0.0
        self.tell(instance, Submit(stream.request, delivered, stream.request_epoch, number, age_s))
        if stream.prediction is not None:
            self.tell(instance, Predicted(stream.request_id, stream.prediction))
        self._dispatcher.submitted(stream, instance, number)

    def _seat(self, stream: Stream, seated: bool) -> None:
        """The prompts of those that have no slot are queued."""
        if seated != stream.seated:
            sign = -1 if seated else 1
            self.num_queued_tokens += sign * len(stream.request.prompt)
            stream.seated = seated
            stream.lost_slot |= not seated

    def _withdraw(self, stream: Stream) -> None:
        """No instance has the request any more."""
        self._seat(stream, False)
        stream.instance, stream.previous = NO_INSTANCE, None
        stream.request_epoch = self.new_request_epoch(stream)
        stream.forget_early()
        if stream.finish == Finish.RUNNING:
            self._unsubmitted[stream.request_id] = stream

    def _end_trial(self) -> None:
        stream = self.quarantine.acquitted()
        if stream is not None and stream.finish == Finish.RUNNING:
            self.take_back(stream)


def _needs(stream: Stream, instance: int) -> bool:
    is_there = stream.instance == instance and stream.finish == Finish.RUNNING
    return is_there or _lacks_tokens_of(stream, instance)


def _lacks_tokens_of(stream: Stream, instance: int) -> bool:
    """Whether tokens are missing that the stream was to get from its last life, in this instance."""
    before = stream.previous
    return before is not None and before.instance == instance and len(stream.tokens) < before.num_tokens
