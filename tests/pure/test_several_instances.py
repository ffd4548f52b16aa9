"""The stream table with several instances: what a death of one of them costs the streams of the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from python_backends.nouns.messages import Cancel, Failed, Submit
from python_backends.nouns.request import Finish, Request, Sampling, WaitReason
from python_backends.nouns.step import Started, Tokens
from python_backends.settings import StreamSettings
from python_backends.streams.quarantine import CLEARED_AFTER_TOKENS, MAX_APART_NS
from python_backends.streams.stream import Stream
from python_backends.streams.table import StreamTable
from python_backends.watching.metrics import Metrics


class InTurn:
    """A dispatcher that takes the allowed instances in turn."""

    def __init__(self) -> None:
        self.submitted_to: list[tuple[int, int, int]] = []  # request, instance, number

    def choose(self, stream: Stream, allowed: Sequence[int]) -> int | None:
        return allowed[len(self.submitted_to) % len(allowed)]

    def submitted(self, stream: Stream, instance: int, number: int) -> None:
        self.submitted_to.append((stream.request_id, instance, number))


class Cluster:
    def __init__(self, num_instances: int = 2) -> None:
        self.now_ns = 1_000_000_000
        self.dispatcher = InTurn()
        self.table = StreamTable(
            StreamSettings(), lambda: self.now_ns, lambda words: 4, Metrics(), self.dispatcher
        )
        self.at: dict[int, tuple[int, int]] = {}  # instance and epoch of each request
        self.cancelled: list[tuple[int, int]] = []
        for number in range(num_instances):
            self.table.instance_ready(number)

    def accept(self, *numbers: int) -> None:
        for number in numbers:
            request = Request(
                number, np.arange(3, dtype=np.int32), Sampling(max_tokens=100), stream=True, arrival_ns=number
            )
            assert not self.table.accept(request, None)
        self.post()

    def post(self) -> None:
        for instance, messages in self.table.outbox().items():
            for message in messages:
                if isinstance(message, Submit):
                    self.at[message.request.request_id] = instance, message.request_epoch
                elif isinstance(message, Cancel):
                    self.cancelled.append((instance, message.request_id))
        self.table.check_integrity()

    def start_all(self) -> None:
        for number, (_, epoch) in self.at.items():
            self.table.started(Started(number, epoch, 0))

    def tokens(self, number: int, first: int, count: int, finish: Finish = Finish.RUNNING) -> None:
        """Tokens of `number` from its present life; the last of them has this `finish`."""
        epoch = self.at[number][1]
        for index in range(first, first + count):
            ends = finish if index == first + count - 1 else Finish.RUNNING
            row = (number, epoch, index, 50 + index, ends)
            kinds = (np.int64, np.int32, np.int32, np.int32, np.uint8)
            self.table.tokens(
                Tokens(*(np.array([each], kind) for each, kind in zip(row, kinds, strict=True)))
            )
        self.post()

    def lose(self, instance: int) -> None:
        self.table.instance_lost(instance)
        self.at = {number: place for number, place in self.at.items() if place[0] != instance}
        self.post()

    def get_ready(self, instance: int) -> None:
        self.table.instance_ready(instance)
        self.post()

    def where(self, *numbers: int) -> list[int | None]:
        return [self.at[number][0] if number in self.at else None for number in numbers]


def test_each_stream_goes_where_the_dispatcher_says_and_submits_are_counted_for_each_instance() -> None:
    cluster = Cluster()
    cluster.accept(1, 2, 3)
    assert cluster.dispatcher.submitted_to == [(1, 0, 1), (2, 1, 1), (3, 0, 2)]


def test_streams_of_other_instances_go_on_when_one_dies() -> None:
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.start_all()
    cluster.tokens(1, 0, 2)
    cluster.tokens(2, 0, 2)
    cluster.lose(0)
    assert cluster.at[2] == (1, 0), "it has the same life in the same instance"
    cluster.tokens(2, 2, 3)
    assert len(cluster.table._streams[2].tokens) == 5
    assert not cluster.cancelled


def test_streams_of_a_dead_instance_enter_none_in_which_others_run() -> None:
    """One of them may have ended it, and would end the other one too."""
    cluster = Cluster()
    cluster.accept(1, 2, 3)
    cluster.start_all()
    cluster.lose(0)
    assert cluster.where(1, 2, 3) == [None, 1, None]
    cluster.get_ready(0)
    assert cluster.where(1, 2, 3) == [0, 1, 0], "all of them together"
    cluster.accept(4, 5)
    assert cluster.where(4, 5) == [1, 1], "no other request enters with them"
    for number in (1, 3):
        cluster.tokens(number, 0, CLEARED_AFTER_TOKENS)
    cluster.accept(6, 7)
    assert 0 in cluster.where(6, 7), "they have come past the place of the crash"


def test_a_stream_waits_for_its_instance_though_another_one_is_empty() -> None:
    """If the request ends instances, it does not end a second one."""
    cluster = Cluster(3)
    cluster.accept(1, 2)
    for _ in range(2):
        cluster.start_all()
        cluster.lose(0)
        assert cluster.where(1, 2) == [None, 1], "instance 2 is empty"
        cluster.get_ready(0)
        assert cluster.where(1, 2) == [0, 1]
    trial = cluster.table.submissions.quarantine.on_trial
    assert trial is not None
    assert trial.request_id == 1


def test_a_stream_of_an_instance_that_is_forgotten_enters_an_empty_one_at_once() -> None:
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.start_all()
    cluster.lose(0)
    cluster.table.instance_ready(2)
    cluster.table.submissions.forget(0)
    cluster.post()
    assert cluster.where(1) == [2]


def test_requests_that_had_no_slot_in_a_dead_instance_go_to_another_one_at_once() -> None:
    cluster = Cluster()
    cluster.accept(1, 2, 3)
    for number in (1, 2):
        cluster.table.started(Started(number, 0, 0))
    cluster.lose(0)
    assert cluster.where(1, 3) == [None, 1]


def test_streams_of_an_instance_that_does_not_come_back_enter_another_one_after_a_while() -> None:
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.start_all()
    cluster.lose(0)
    cluster.now_ns += MAX_APART_NS - 1
    cluster.post()
    assert cluster.where(1) == [None]
    cluster.now_ns += 1
    cluster.post()
    assert cluster.where(1) == [1]


def test_a_request_that_ends_its_instance_three_times_is_failed_and_ends_no_other() -> None:
    """Requests 1 and 3 are in instance 0, and 3 ends it whenever it runs."""
    cluster = Cluster()
    cluster.accept(1, 2, 3)
    lost: list[int] = []
    for _ in range(4):
        cluster.start_all()
        if 3 not in cluster.at:  # on trial is number 1, which passes
            cluster.tokens(1, 0, CLEARED_AFTER_TOKENS)
            cluster.post()
            cluster.start_all()
        if 3 not in cluster.table._streams or cluster.table._streams[3].finish != Finish.RUNNING:
            break
        assert cluster.where(3) == [0]
        lost.append(0)
        cluster.lose(0)
        cluster.get_ready(0)
        cluster.accept(10 + len(lost))
    assert lost == [0, 0, 0]
    assert cluster.table._streams[3].finish == Finish.ERROR
    assert cluster.at[2] == (1, 0)
    cluster.post()
    assert cluster.table._streams[1].finish == Finish.RUNNING
    assert cluster.where(1) != [None]


def test_a_suspect_waits_for_an_instance_that_gets_empty() -> None:
    cluster = Cluster()
    cluster.accept(1, 2, 3)
    for _ in range(2):
        cluster.start_all()
        cluster.lose(0)
        if not cluster.at.get(1):
            cluster.table.instance_ready(0)
            cluster.accept(*([] if 4 in cluster.at else [4]))
    assert cluster.where(1) == [0], "the trial began in the empty instance"
    cluster.accept(5)
    assert cluster.where(5) == [1], "no other request enters it"
    waiting = cluster.table.waiting({})
    assert waiting[WaitReason.TRIAL] == 1, "the other suspect waits for its own trial"


@pytest.mark.parametrize("ready", [0, 1])
def test_suspects_are_tried_in_the_instance_that_is_left(ready: int) -> None:
    """The other one does not come back. A stream that runs there ends before the trial begins."""
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.start_all()
    cluster.lose(0)
    cluster.get_ready(0)
    assert cluster.where(1) == [0]
    cluster.start_all()
    cluster.lose(0)
    if ready == 0:
        cluster.lose(1)
        cluster.get_ready(0)
    cluster.now_ns += MAX_APART_NS - 1
    cluster.post()
    assert cluster.where(1) == [None], "the other one may come back"
    cluster.now_ns += 1
    cluster.post()
    cluster.accept(3)
    if ready == 1:
        assert cluster.where(1, 2, 3) == [None, 1, None]
        cluster.tokens(2, 0, 1, Finish.STOP)
        cluster.table.due()
        cluster.post()
    assert cluster.where(1, 3) == [ready, None]
    cluster.start_all()
    cluster.tokens(1, 0, CLEARED_AFTER_TOKENS)
    cluster.post()
    assert cluster.where(1, 3) == [ready, ready]


def test_suspects_are_not_sent_into_an_instance_that_is_to_be_empty() -> None:
    cluster = Cluster()
    cluster.table.submissions.close(frozenset({1}))
    cluster.accept(1, 2)
    for _ in range(2):
        assert cluster.where(1, 2) == [0, 0]
        cluster.start_all()
        cluster.lose(0)
        assert cluster.where(1, 2) == [None, None]
        cluster.get_ready(0)
    assert cluster.where(1, 2) == [0, None], "one of them is on trial"
    cluster.tokens(1, 0, CLEARED_AFTER_TOKENS)
    cluster.post()
    assert cluster.where(2) == [0]


def test_a_trial_does_not_wait_for_streams_of_an_instance_that_is_to_be_empty() -> None:
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.table.submissions.close(frozenset({1}))
    for _ in range(2):
        cluster.start_all()
        cluster.lose(0)
        cluster.get_ready(0)
    assert cluster.where(1, 2) == [0, 1]
    trial = cluster.table.submissions.quarantine.on_trial
    assert trial is not None
    assert trial.request_id == 1


def test_an_instance_is_needed_until_no_stream_is_there_and_none_lacks_its_tokens() -> None:
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.start_all()
    submissions, streams = cluster.table.submissions, cluster.table.streams
    assert submissions.is_needed(0, streams)
    stream = cluster.table._streams[1]
    submissions.moved(stream, 1, submissions.new_request_epoch(stream), 1)
    assert submissions.is_needed(0, streams), "token 0 is still on its way"
    cluster.tokens(1, 0, 1)
    assert not submissions.is_needed(0, streams)
    submissions.forget(0)
    cluster.post()
    assert submissions.instances.ready == [1]
    assert submissions.instances.num_known == 1


@pytest.mark.parametrize(("epoch", "ends"), [(0, False), (1, True)])
def test_an_instance_that_has_a_request_no_more_can_not_fail_it(epoch: int, ends: bool) -> None:
    cluster = Cluster()
    cluster.accept(1, 2)
    cluster.lose(0)
    cluster.table.failed(Failed(1, "it does not fit", epoch))
    assert (cluster.table._streams[1].finish == Finish.ERROR) is ends


def test_an_instance_can_not_fail_a_request_whose_last_token_has_come() -> None:
    cluster = Cluster()
    cluster.accept(1)
    cluster.tokens(1, 0, 2, Finish.LENGTH)
    cluster.table.failed(Failed(1, "too late", 0))
    (last,) = cluster.table.due()
    assert last.final
    assert not last.error
    assert last.window is not None
    assert last.window.finish == Finish.LENGTH
