"""The stream table, whatever comes: the machine plays clients, the tokenizer before it, an instance, the
detokenizer and the server.

Tokens come early, late, twice and from earlier lives; windows are lost, confirmed late, or never, because
their client has left; instances die; sends take time and fail. Each stream gets each token once and in order,
and exactly one last answer.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from python_backends.nouns.messages import Cancel, Submit
from python_backends.nouns.request import Feedback, Finish, Idle, Request, Sampling, TokenWindow
from python_backends.nouns.step import Started, Tokens
from python_backends.settings import StreamSettings
from python_backends.streams import delivery
from python_backends.streams.outgoing import Outgoing
from python_backends.streams.table import FAILED_INSIDE, StreamTable
from python_backends.streams.unconfirmed import ANSWER_EVERY_NS, IDLE_NS, LONG_SILENCE_NS
from python_backends.watching.metrics import Metrics
from tests.support.examples import examples

MS, S = 1_000_000, 1_000_000_000
SETTINGS = StreamSettings(max_open=5, max_queued_tokens=12)
MAX_UNACKNOWLEDGED, MAX_IN_FLIGHT = 3, 4  # windows under way: of one stream, and of all
WRONG_TOKEN = -1  # says who was dead when it came
Row = tuple[int, int, int, int, Finish]  # request, epoch, index, token, finish


@pytest.fixture(autouse=True, scope="module")
def _few_windows() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "MAX_UNACKNOWLEDGED", MAX_UNACKNOWLEDGED)
        patch.setattr(delivery, "MAX_IN_FLIGHT", MAX_IN_FLIGHT)
        yield


@dataclass
class Client:
    """One stream as its client, the instance and the detokenizer know it.
    Token i of its answer is 100 · number + i.
    """

    request: Request
    num_tokens: int  # of the whole answer
    natural: Finish  # how that ends
    stop_at: int = 0  # tokens up to the end of the first stop word; 0: none comes
    # --- what reached the table
    epoch: int = 0
    is_submitted: bool = False  # an instance has it, as the table knows
    seated: bool = False
    num_known: int = 0
    early: set[int] = field(default_factory=set)
    # --- what reached the detokenizer
    tokens: list[int] = field(default_factory=list)
    last: Outgoing | None = None
    is_here: bool = True
    may_be_missed: bool = False  # one of its windows is not confirmed
    may_fail: bool = False
    is_failing: bool = False  # its error comes after the text so far
    told_to_stop: bool = False
    news_ns: int = 0  # since when there have been tokens to send
    breaks: bool = False  # its next send fails

    @property
    def number(self) -> int:
        return self.request.request_id

    @property
    def answer(self) -> list[int]:
        return [100 * self.number + index for index in range(self.num_tokens)]

    @property
    def is_open(self) -> bool:
        return self.last is None

    @property
    def is_followed(self) -> bool:
        return self.request.stream or bool(self.request.stop_words)

    def take(self, window: TokenWindow) -> None:
        """As the detokenizer puts windows together; the last one may go back behind a stop word."""
        whole = not self.request.stream and window.finish != Finish.RUNNING
        assert window.start <= window.num_sent
        assert window.num_sent == (0 if whole else len(self.tokens)) or window.finish == Finish.STOP
        self.tokens = (
            self.tokens[: window.num_sent] + window.tokens[window.num_sent - window.start :].tolist()
        )
        assert self.tokens == self.answer[: len(self.tokens)], "each token once, in order"


@dataclass(frozen=True)
class Inside:
    """A window on its way through the detokenizer."""

    client: Client
    start: int
    reached: int
    taken_ns: int


asks = st.fixed_dictionaries(
    {
        "prompt": st.integers(1, 6),
        "streamed": st.booleans(),
        "words": st.sampled_from([(), ("stop",)]),
        "num_tokens": st.integers(1, 30),
        "stop_at": st.sampled_from([0, 1, 3, 9, 20]),
        "deadline_ms": st.sampled_from([0, 0, 0, 50, 1000, 3000]),
    }
)


class StreamStates(RuleBasedStateMachine):
    @initialize(send_ms=st.sampled_from([0, 1, 150]))
    def begin(self, send_ms: int) -> None:
        self.now_ns = S
        self.send_ns = send_ms * MS
        self.table = StreamTable(SETTINGS, lambda: self.now_ns, lambda words: 4 * len(words), Metrics())
        self.clients: dict[int, Client] = {}  # accepted
        self.num_asked = 0
        self.is_ready = False
        self.lives: dict[int, list[int]] = {}  # what the instance computes: epoch and next index
        self.wire: list[Started | list[Row]] = []  # from the instance
        self.inside: list[Inside] = []
        self.late_beat: Idle | None = None
        self.answers: list[tuple[int, int]] = []  # when calls of the server began and ended
        self.exported_ns = 0  # when metrics were last exported: a call of the server
        # when windows were sent, but for those sent before one that has surely been confirmed
        self.in_flight_ns: list[int] = []

    # --- clients

    @rule(asks=st.lists(asks, min_size=1, max_size=4))
    def ask(self, asks: list[dict[str, Any]]) -> None:
        for ask in asks:
            self.accept(**ask)

    def accept(
        self,
        prompt: int,
        streamed: bool,
        words: tuple[str, ...],
        num_tokens: int,
        stop_at: int,
        deadline_ms: int,
    ) -> None:
        deadline_ns = self.now_ns + deadline_ms * MS if deadline_ms else 0
        times = {"arrival_ns": self.now_ns, "deadline_ns": deadline_ns}
        request = Request(self.num_asked, np.zeros(prompt, np.int32), Sampling(100), words, streamed, **times)
        self.num_asked += 1
        queued = sum(self.queued_prompts())
        is_full = len(self.open_clients()) == SETTINGS.max_open or (
            queued and queued + prompt > SETTINGS.max_queued_tokens
        )
        refusal = self.table.accept(request, sender=request.request_id)
        assert bool(refusal) == bool(is_full)
        if not refusal:
            natural = Finish.STOP if num_tokens % 2 else Finish.LENGTH
            self.clients[request.request_id] = Client(
                request, num_tokens, natural, min(stop_at, num_tokens) if words else 0
            )

    # --- what goes wrong

    @precondition(lambda self: self.open_clients())
    @rule(what=st.sampled_from(["leave", "vanish", "break", "refuse", "lose"]), data=st.data())
    def go_wrong(self, what: str, data: Any) -> None:
        client = self.clients[data.draw(st.sampled_from([client.number for client in self.open_clients()]))]
        if what == "leave":  # the detokenizer has seen it at a window that was inside
            self.leave(client)
        elif what == "vanish":  # no window is dispatched any more
            client.is_here, client.may_be_missed = False, True
        elif what == "lose":
            client.may_be_missed = True
            self.inside = [window for window in self.inside if window.client is not client]
        elif what == "break":
            client.breaks = True
        elif client.number in self.lives:  # the instance can't take it
            del self.lives[client.number]
            client.may_fail = client.is_failing = True
            self.table.fail(client.number, "does not fit")

    def leave(self, client: Client) -> None:
        places = [place for place, window in enumerate(self.inside) if window.client is client]
        if places:
            self.detokenize(places[0])  # what was sent before comes out before
            self.inside.pop(0)
            client.is_here, client.may_be_missed = False, True
            self.table.feedback(Feedback(client.number, 0, gone=True))

    @precondition(lambda self: self.lives)
    @rule(times=st.integers(1, 4), quickly=st.booleans())
    def crash(self, times: int, quickly: bool) -> None:
        """What the instance had said is still on its way, and is of an earlier life from now on."""
        for _ in range(times):
            if len(self.lives) == 1:
                self.clients[next(iter(self.lives))].may_fail = True  # alone in a crash
            self.table.instance_lost(0)
            self.is_ready = False
            self.lives = {}
            for client in self.clients.values():
                if client.is_submitted:
                    self.begin_another_life(client)
            self.wire = [spoil(news) for news in self.wire]
            if quickly:
                self.get_ready()
                self.turn()

    # --- the instance

    @precondition(lambda self: not self.is_ready)
    @rule()
    def get_ready(self) -> None:
        self.is_ready = True
        self.table.instance_ready(0)

    @rule(rounds=st.integers(1, 4))
    def serve(self, rounds: int) -> None:
        """The usual course of things."""
        for _ in range(rounds):
            self.work_everywhere()
            self.sleep()
            self.turn()

    @rule(rounds=st.integers(5, 20))
    def serve_longer(self, rounds: int) -> None:
        self.serve(rounds)

    @precondition(lambda self: self.lives)
    @rule(numbers=st.sets(st.integers(0, 5)), steps=st.integers(1, 5))
    def compute(self, numbers: set[int], steps: int) -> None:
        """All lives but those of some numbers make tokens, one frame a step."""
        for _ in range(steps):
            rows = [self.next_row(number) for number in list(self.lives) if number % 6 not in numbers]
            self.wire.append(rows)

    @precondition(lambda self: self.wire)
    @rule(data=st.data(), again=st.booleans())
    def hear(self, data: Any, again: bool) -> None:
        """In any order, and some of it twice."""
        for _ in range(data.draw(st.integers(1, len(self.wire)))):
            place = data.draw(st.integers(0, min(2, len(self.wire) - 1)))
            news = self.wire[place] if again else self.wire.pop(place)
            self.take(news)

    # --- detokenizer and server

    @precondition(lambda self: self.inside)
    @rule(count=st.integers(1, 8))
    def detokenize(self, count: int) -> None:
        """Windows in the order in which they were sent; those of clients that have left never come out."""
        done, self.inside = self.inside[:count], self.inside[count:]
        for window in done:
            if window.client.is_here:
                self.confirm(window)

    @rule(number=st.integers(0, 20))
    def say_again(self, number: int) -> None:
        """Feedback of windows that were confirmed before, or of streams that are no
        more. Nobody speaks of a window that is inside.
        """
        if all(window.client.number != number for window in self.inside):
            self.table.feedback(Feedback(number, 0))

    @precondition(lambda self: not any(window.client.is_here for window in self.inside))
    @rule(late=st.booleans())
    def be_idle(self, late: bool) -> None:
        """The detokenizer has nothing to do. It may be heard a good while later."""
        self.inside = []
        if self.late_beat is not None:
            self.say_idle(self.late_beat)
        self.late_beat = Idle(self.now_ns) if late else None
        if not late:
            self.say_idle(Idle(self.now_ns))

    @rule(ms=st.sampled_from([300, 800, 3000, 15_000, 40_000]), beats=st.integers(0, 20))
    def stand_still(self, ms: int, beats: int) -> None:
        """The server does, with the windows inside it; the detokenizer has nothing to do meanwhile and says
        so.

        What was sent before the last call that the server answered is not inside the server any more, but in
        the detokenizer.
        """
        answered_ns = self.answers[-1][0] if self.answers else 0
        if any(window.taken_ns < answered_ns for window in self.inside if window.client.is_here):
            beats = 0
        self.answer_call(self.now_ns, self.now_ns + ms * MS)
        for beat in range(beats):
            self.say_idle(Idle(self.now_ns + ms * MS * beat // beats))
        self.now_ns += ms * MS

    @rule(busy_share=st.sampled_from([0.0, 0.5]))
    def measure_load(self, busy_share: float) -> None:
        self.table.delivery.adjust(busy_share * 0.2, 0.2)

    # --- time and the streams thread

    @rule(ms=st.one_of(st.integers(0, 60), st.sampled_from([100, 300, 600, 31_000])))
    def wait(self, ms: int) -> None:
        self.now_ns += ms * MS

    @rule(turns=st.integers(1, 5))
    def sleep_and_turn(self, turns: int) -> None:
        for _ in range(turns):
            self.sleep()
            self.turn()

    @rule()
    def turn_at_once(self) -> None:
        self.turn()

    def turn(self) -> bool:
        """Whether it did anything."""
        began_ns = self.now_ns
        if self.now_ns - self.exported_ns >= S:
            self.exported_ns = self.now_ns
            self.answer_call(self.now_ns, self.now_ns)
        messages = self.table.outbox().get(0, [])
        for message in messages:
            self.tell_instance(message)
        outgoing = self.table.due()
        self.table.take_ended()
        for out in outgoing:
            assert out.error != FAILED_INSIDE
            self.send(out)
        self.nothing_is_late(began_ns)
        if not messages and not outgoing:
            assert self.table.wait_s() > 0, "a busy loop"
        return bool(messages or outgoing)

    # --- what always holds

    @invariant()
    def the_table_adds_up(self) -> None:
        self.table.check_integrity()
        assert len(self.table) == len(self.open_clients())
        assert 0 <= self.table.wait_s() <= 1

    def nothing_is_late(self, began_ns: int) -> None:
        assert self.table.num_queued_tokens == sum(self.queued_prompts())
        for client in self.open_clients():
            assert client.may_fail or not client.request.deadline_ns or began_ns < client.request.deadline_ns
            assert client.num_known < client.num_tokens, "it has ended"
            num_inside = sum(window.client is client for window in self.inside)
            has_room = num_inside < MAX_UNACKNOWLEDGED and len(self.in_flight_ns) < MAX_IN_FLIGHT
            if client.is_followed and not (client.may_be_missed or client.may_fail) and has_room:
                waits = client.num_known > len(client.tokens)
                assert not waits or (client.tokens and began_ns < client.news_ns + delivery.MOST_HELD_S * S)

    def teardown(self) -> None:
        """Everybody's answer ends, those who have left are missed, and nothing stays behind."""
        if not hasattr(self, "clients") or sys.exc_info()[0]:
            return  # it has failed before
        self.get_ready()
        ends_ns = self.now_ns + 60 * S
        while self.open_clients():
            assert self.now_ns < ends_ns, "an answer does not end"
            self.serve(1)
        self.nothing_is_left()

    def work_everywhere(self) -> None:
        for news in self.wire:
            self.take(news)
        self.wire = [[self.next_row(number) for number in list(self.lives)]]
        self.detokenize(len(self.inside))
        self.say_idle(Idle(self.now_ns))

    def nothing_is_left(self) -> None:
        while self.turn():
            pass
        self.now_ns += 60 * S
        assert not self.turn()
        assert self.table.wait_s() == 1
        assert self.table.num_queued_tokens == 0
        assert not self.lives, "the instance computes for nobody"
        assert left_in(self.table) == []

    # --- how they work

    def sleep(self) -> None:
        """As the poll of a socket: whole milliseconds, rounded up."""
        self.now_ns += math.ceil(self.table.wait_s() * 1000) * MS

    def tell_instance(self, message: Cancel | Submit) -> None:
        if isinstance(message, Cancel):
            assert self.lives.pop(message.request_id, None) is not None or message.request_id in self.clients
            client = self.clients[message.request_id]
            # it may be that it leaves after a trial, and comes again
            if client.is_open and not client.is_failing:
                self.begin_another_life(client)
            return
        client = self.clients[message.request.request_id]
        assert self.is_ready
        assert client.is_open
        assert client.number not in self.lives, "the instance has it"
        assert message.request_epoch == client.epoch
        assert message.delivered.tolist() == client.answer[: client.num_known]
        client.is_submitted = True
        self.lives[client.number] = [message.request_epoch, client.num_known]
        self.wire.append(Started(client.number, message.request_epoch, 0))

    def send(self, out: Outgoing) -> None:
        began_ns, self.now_ns = self.now_ns, self.now_ns + self.send_ns
        client = self.clients[out.sender]
        assert client.is_open, "nothing comes after the last answer"
        if client.breaks and out.window is not None:
            client.may_fail = True
            if out.final:
                client.last = out
            else:
                client.is_failing = True
                self.table.not_sent(out, "could not be sent")
        elif out.final:
            self.end(client, out)
        else:
            assert out.window is not None
            client.take(out.window)
            self.note_answer(began_ns, self.now_ns)
            self.table.handed_over(out, began_ns)
            self.in_flight_ns.append(self.now_ns)
            reached = out.window.start + len(out.window.tokens)
            self.inside.append(Inside(client, out.window.start, reached, self.now_ns))

    def answer_call(self, began_ns: int, ended_ns: int) -> None:
        """The server does, by `ended_ns`."""
        before_ns, self.now_ns = self.now_ns, ended_ns
        self.note_answer(began_ns, ended_ns)
        self.table.server_answered(began_ns)
        self.now_ns = before_ns

    def note_answer(self, began_ns: int, ended_ns: int) -> None:
        if not self.answers or began_ns - self.answers[-1][0] >= ANSWER_EVERY_NS:
            self.answers.append((began_ns, ended_ns))

    def end(self, client: Client, out: Outgoing) -> None:
        """Why an answer ends: there is a reason for each."""
        client.last = out
        if out.window is None:
            assert out.error
            assert client.may_fail
            return
        finish = out.window.finish
        client.take(out.window)
        if finish == Finish.CANCELLED:
            taken_ns = [window.taken_ns for window in self.inside if window.client is client]
            assert client.may_be_missed or min(taken_ns, default=self.now_ns) < self.now_ns - LONG_SILENCE_NS
        elif finish == Finish.DEADLINE:
            assert client.request.deadline_ns <= self.now_ns
        elif client.told_to_stop:
            assert (finish, len(client.tokens)) == (Finish.STOP, client.stop_at)
        else:
            assert (finish, len(client.tokens)) == (client.natural, client.num_tokens)

    def next_row(self, number: int) -> Row:
        client, (epoch, index) = self.clients[number], self.lives[number]
        self.lives[number][1] += 1
        is_last = index + 1 == client.num_tokens
        if is_last:
            del self.lives[number]
        return number, epoch, index, client.answer[index], client.natural if is_last else Finish.RUNNING

    def take(self, news: Started | list[Row]) -> None:
        if isinstance(news, Started):
            self.table.started(news)
            client = self.clients[news.request_id]
            client.seated |= news.request_epoch == client.epoch
            return
        columns = zip(*news, strict=True) if news else [()] * 5
        kinds = (np.int64, np.int32, np.int32, np.int32, np.uint8)
        self.table.tokens(
            Tokens(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
        )
        for number, epoch, index, _, _ in news:
            self.know(self.clients[number], epoch, index)

    def know(self, client: Client, epoch: int, index: int) -> None:
        if epoch != client.epoch or not client.is_open:
            return
        client.early.add(index)
        while client.num_known in client.early:
            client.early.remove(client.num_known)
            client.num_known += 1
            if client.num_known == len(client.tokens) + 1:
                client.news_ns = self.now_ns

    def confirm(self, window: Inside) -> None:
        client = window.client
        found = client.stop_at if window.start < client.stop_at <= window.reached else 0
        if client.is_open and not client.may_be_missed:
            self.are_done(window.taken_ns)
        self.table.feedback(Feedback(client.number, window.reached, found))
        client.told_to_stop |= bool(found) and client.is_open

    def say_idle(self, idle: Idle) -> None:
        self.table.idle(idle)
        self.are_done(
            max(
                (began_ns for began_ns, ended_ns in self.answers if ended_ns <= idle.at_ns - IDLE_NS),
                default=0,
            )
        )

    def are_done(self, until_ns: int) -> None:
        self.in_flight_ns = [sent_ns for sent_ns in self.in_flight_ns if sent_ns > until_ns]

    def begin_another_life(self, client: Client) -> None:
        client.epoch += 1
        client.is_submitted = False
        client.seated = False
        client.early = set()

    def open_clients(self) -> list[Client]:
        return [client for client in self.clients.values() if client.is_open]

    def queued_prompts(self) -> list[int]:
        return [len(client.request.prompt) for client in self.open_clients() if not client.seated]


def spoil(news: Started | list[Row]) -> Started | list[Row]:
    """As it would be if somebody else were meant."""
    if isinstance(news, Started):
        return news
    return [(number, epoch, index, WRONG_TOKEN, finish) for number, epoch, index, _, finish in news]


def left_in(table: StreamTable) -> list[str]:
    """The names of all that is not empty."""
    owners = (table, table.submissions, table._ready, table.delivery)
    return [
        name
        for owner in owners
        for name, value in vars(owner).items()
        if isinstance(value, dict | list) and value
    ]


TestStreamStates = StreamStates.TestCase
TestStreamStates.settings = hypothesis.settings(examples, stateful_step_count=50)
