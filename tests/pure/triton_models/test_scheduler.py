"""The `scheduler` model without a server: what goes wrong with one stream, or
with what no stream depends on, ends no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest

from python_backends.engine.choice import choose
from python_backends.moving.coordinator import Coordinator
from python_backends.nouns.instance_load import InstanceLoad
from python_backends.nouns.load import Load
from python_backends.nouns.messages import FromInstance, Hello
from python_backends.nouns.order import Order
from python_backends.nouns.request import Feedback, Finish, Idle, ModelLimits, Request, Sampling, Subject
from python_backends.nouns.stages import PROMPT_END, READ_EVERY, TEXT, WRITTEN
from python_backends.nouns.step import HiddenStates, Tokens
from python_backends.prediction.stage_models import StageModels
from python_backends.prediction.state_model import StateModel
from python_backends.prediction.token_counts import LAYER, WIDTH
from python_backends.prediction.versions import Learned, Version
from python_backends.settings import dump, load
from python_backends.streams import delivery
from python_backends.wires import sessions
from python_backends.wires.control import ask
from python_backends.wires.sessions import InstanceLost, InstanceMove, InstanceReady
from tests.pure.triton_models.conftest import Request as TritonRequest
from tests.pure.triton_models.conftest import Sender
from tests.support.server.serving import wait_for

ROOT = Path(__file__).resolve().parents[3]
ENCODED = {"prediction.enabled": "true", "prediction.encoder": "packaged"}


class Model:
    """The model and its streams thread; there is no instance."""

    def __init__(self) -> None:
        from python_backends.triton_models.scheduler import TritonPythonModel
        from python_backends.triton_models.tensors import Blobs

        self.model = TritonPythonModel()
        self.model.initialize({})
        self.blobs = Blobs()

    def ask(self, number: int, **options: Any) -> Sender:
        request = Request(
            number, np.array([1, 2], np.int32), Sampling(10), stream=True, arrival_ns=time.monotonic_ns()
        )
        asked = TritonRequest([self.blobs.tensor("request", request.changed(**options))])
        before = len(self.table)
        self.model.execute([asked])
        wait_for(lambda: len(self.table) != before or asked.sender.sent or asked.sender.is_closed, 10)
        return asked.sender

    @property
    def table(self) -> Any:
        return self.model._table

    def tell(self, *messages: Any) -> None:
        """As if these had come from the instance."""
        self.model._news.extend(messages)
        self.model._link.wake()

    def pass_seconds(self, count: int) -> None:
        """As if so many seconds were over, in each of which metrics are written."""
        for _ in range(count + 1):  # the last one only begins
            self.model._exported_s = 0.0
            self.model._link.wake()
            wait_for(lambda: self.model._exported_s > 0, 10)


@pytest.fixture
def served(
    pb_utils: ModuleType, run_directory: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Model]:
    monkeypatch.setattr(delivery, "MOST_HELD_S", 0.0)
    changes = {
        "streams.max_open": "2",
        "prediction.enabled": "false",
        **getattr(request, "param", {}),
    }
    settings = choose(load(ROOT / "gapless.toml", changes)).settings
    dump(settings, run_directory / "settings.json")
    model = Model()
    yield model
    model.model.finalize()


def tokens(number: int, *ids: int, finish: Finish = Finish.RUNNING) -> Tokens:
    count = len(ids)
    finishes = [Finish.RUNNING] * (count - 1) + [finish]
    columns = ([number] * count, [0] * count, range(count), ids, finishes)
    kinds = (np.int64, np.int32, np.int32, np.int32, np.uint8)
    return Tokens(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def is_undisturbed(sender: Sender) -> bool:
    return all(what == "window" and not is_end for is_end, what in sender.sent)


def test_a_refusal_that_cannot_be_sent_ends_no_stream(served: Model) -> None:
    senders = [served.ask(1), served.ask(2)]
    refused = TritonRequest([], sender=Sender())
    refused.sender.most_bytes = 0
    request = Request(3, np.array([1], np.int32), Sampling(5), arrival_ns=time.monotonic_ns())
    refused.inputs_ = [served.blobs.tensor("request", request)]
    served.model.execute([refused])
    wait_for(lambda: refused.sender.is_closed, 10)
    time.sleep(0.3)
    assert len(served.table) == 2
    assert all(map(is_undisturbed, senders))


def test_a_request_that_a_pause_has_made_too_old_may_be_sent_again(served: Model) -> None:
    late = served.ask(1, arrival_ns=time.monotonic_ns() - 301 * 10**9)
    said = "the request was on its way for more than 300 s; send it again [failed]"
    assert late.sent == [(True, said)]


def test_metrics_and_records_that_fail_end_no_stream_and_are_logged_once(
    served: Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sender = served.ask(1)
    monkeypatch.setattr(served.model._shown, "begin", lambda: 1 / 0)
    monkeypatch.setattr(served.model._predictions, "ended", lambda *_: 1 / 0)
    served.pass_seconds(3)
    assert len([record for record in caplog.records if "metrics" in record.message]) == 1, "not every second"
    served.tell(tokens(1, 5, 6, finish=Finish.STOP))
    wait_for(lambda: sender.is_closed, 10)
    assert sender.sent[-2:] == [(False, "window"), (True, "")]


def test_a_last_window_that_cannot_be_sent_ends_its_stream_with_an_error_after_the_windows_before_it(
    served: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from python_backends.triton_models import scheduler

    monkeypatch.setattr(scheduler, "CUT_OFF_AFTER_S", 0.2)
    sender, other = served.ask(1), served.ask(2)
    served.tell(tokens(1, 5))
    wait_for(lambda: sender.sent, 10)
    sender.most_bytes = 20
    served.tell(tokens(1, 5, 6, finish=Finish.STOP))
    wait_for(lambda: served.table.find(1) is None, 10)
    assert not sender.is_closed, "the detokenizer may still have the first window"
    wait_for(lambda: sender.is_closed, 10)
    assert [what for is_end, what in sender.sent if is_end] == [
        "a part of the answer could not be sent [failed]"
    ]
    assert len(served.table) == 1
    assert is_undisturbed(other)


def test_a_window_that_cannot_be_sent_ends_its_stream_with_an_error(served: Model) -> None:
    sender, other = served.ask(1), served.ask(2)
    sender.most_bytes = 20
    served.tell(tokens(1, 5))
    wait_for(lambda: sender.is_closed, 10)
    assert [what for is_end, what in sender.sent if is_end] == [
        "a part of the answer could not be sent [failed]"
    ]
    assert is_undisturbed(other)


def test_news_after_a_message_that_cannot_be_taken_are_not_lost(served: Model) -> None:
    sender = served.ask(1)
    served.model._readers[str] = lambda _: 1 / 0
    served.tell("broken", tokens(1, 5, finish=Finish.STOP))
    wait_for(lambda: sender.is_closed, 10)
    assert not served.model._news
    assert len([end for end, _ in sender.sent if end]) == 1


def test_an_unknown_message_is_passed_over_and_logged_once(
    served: Model, caplog: pytest.LogCaptureFixture
) -> None:
    sender = served.ask(1)
    served.tell("unknown", "unknown", tokens(1, 5))
    wait_for(lambda: sender.sent, 10)
    assert is_undisturbed(sender)
    assert len([record for record in caplog.records if "takes a message str" in record.message]) == 1


def test_the_scheduler_model_takes_every_message_that_it_can_be_told_and_no_other(served: Model) -> None:
    messages = [kind(*(None for _ in kind.__struct_fields__)) for kind in get_args(FromInstance)]
    peer = sessions._Peer(0)
    peer.limits = ModelLimits(64, 100, 1, 100, 16)
    said = [peer.labelled(each) for each in messages if not isinstance(each, Hello)]
    heard = {*map(type, said), *get_args(Feedback | Idle), InstanceReady, InstanceLost}
    assert served.model._readers.keys() == heard
    moves = {type(each.message) for each in said if isinstance(each, InstanceMove)}
    assert moves == {*get_args(get_type_hints(Coordinator.heard)["message"])}


def test_a_server_that_shuts_down_gives_streams_their_text_so_far(served: Model, run_directory: Path) -> None:
    sender = served.ask(1)
    served.tell(tokens(1, 5))
    wait_for(lambda: sender.sent, 10)
    [stream] = served.table._streams.values()
    served.table.delivery.interval_s = 30.0
    served.tell(tokens(1, 5, 6))
    wait_for(lambda: len(stream.tokens) == 2, 10)
    assert stream.has_news, "the second token waits for company"
    assert ask(run_directory, Order("status"))["open"] == 1
    ask(run_directory, Order("close"))
    assert sender.is_closed
    assert ask(run_directory, Order("status"))["open"] == 0
    assert not stream.has_news
    assert sender.sent[-1] == (True, "the server is shutting down [shutting_down]")


def test_a_request_with_which_the_engine_fails_whenever_it_runs_has_a_code_of_its_own(served: Model) -> None:
    """So the front does not send it again."""
    sender = served.ask(1)
    [stream] = served.table._streams.values()
    for _ in range(3):
        served.tell(InstanceReady(0, Hello(ModelLimits(64, 100, 1, 100, 16))))
        wait_for(lambda: stream.submitted, 10)
        served.tell(InstanceLost(0))
        wait_for(lambda: not stream.submitted, 10)
    wait_for(lambda: sender.is_closed, 10)
    said = "the engine failed while it ran this request alone; it is not tried again [engine_failed]"
    assert sender.sent[-1] == (True, said)


@pytest.mark.parametrize("served", [ENCODED], indirect=True)
def test_no_stream_waits_for_a_predictor_that_sleeps(served: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its calls come from a thread of their own."""
    asked, woken = threading.Event(), threading.Event()

    def sleep(questions: Any) -> Any:
        asked.set()
        woken.wait(60)
        return []

    monkeypatch.setattr(served.model._predictor, "_call", sleep)
    try:
        subject = Subject("translate", "hello", 1, 12)
        senders = [served.ask(number, subject=subject) for number in (1, 2)]
        limits = ModelLimits(64, 100, 1, 100, 16)
        served.tell(InstanceLoad(0, limits, Load(num_running=1, num_waiting=1, num_slots=1)))
        assert asked.wait(60), "requests compete for a slot"
        for number in (1, 2):
            served.tell(tokens(number, 5, 6, finish=Finish.STOP))
        wait_for(lambda: all(sender.is_closed for sender in senders), 10)
        assert all(sender.sent[-2:] == [(False, "window"), (True, "")] for sender in senders)
    finally:
        woken.set()


def test_why_requests_wait_is_a_metric_and_is_logged(served: Model, caplog: pytest.LogCaptureFixture) -> None:
    """There is no instance. The log is what a server prints: warnings and errors."""
    served.ask(1)
    served.ask(2)
    served.pass_seconds(1)
    gauges = served.model._metrics.gauges
    wait_for(lambda: gauges["gapless_waiting", (("reason", "no_instance"),)] == 2, 10)
    assert sum(value for (name, _), value in gauges.items() if name == "gapless_waiting") == 2
    served.model._shown._tell_at_s = 0.0
    served.pass_seconds(1)
    wait_for(
        lambda: any(
            "2 requests wait for a slot: 2 no_instance" in record.message for record in caplog.records
        ),
        10,
    )


def test_tokens_are_put_together_once_sending_takes_too_long(
    served: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send_slowly(sender: Sender, *response: Any, **flags: Any) -> None:
        time.sleep(0.1)
        send(sender, *response, **flags)

    send = Sender.send
    monkeypatch.setattr(delivery, "MOST_HELD_S", 0.06)
    monkeypatch.setattr(Sender, "send", send_slowly)
    served.ask(1)
    assert served.table.delivery.interval_s == 0
    served.tell(tokens(1, 5))
    wait_for(lambda: served.table.delivery.interval_s > 0, 10)


@pytest.mark.parametrize("served", [{"prediction.enabled": "true"}], indirect=True)
def test_every_request_is_predicted_from_its_tokens_when_it_comes(served: Model) -> None:
    assert served.model._predictor is None, "no encoder is named"
    weights, lengths = np.zeros(WIDTH), np.full(30, 7.0)
    model = StateModel(LAYER, weights, np.log(7.0), np.log(lengths), lengths, np.ones(30, bool))
    served.model._learned._known = (version(), StageModels({TEXT: model}))
    sender = served.ask(1, subject=Subject("Say it", "hello", 1, 12))
    wait_for(lambda: served.table.find(1).prediction, 10)
    assert served.table.find(1).prediction.mean == pytest.approx(7)
    served.model._learned._known = None
    other = served.ask(2, subject=Subject("Say it", "hello", 1, 12))
    served.tell(tokens(1, 5, finish=Finish.STOP), tokens(2, 5))
    wait_for(lambda: sender.is_closed, 10)
    assert served.table.find(2).prediction is None
    assert is_undisturbed(other)


def version() -> Version:
    return Version(4, 0.0, 0.0, 30, "", 30, Learned.REGRESSIONS)


class TestStates:
    """Hidden states, as an instance gives them."""

    STATE = np.array([3.0, 0.0], np.float32)

    def learned(self, mean_tokens: float) -> Any:
        lengths = np.full(30, mean_tokens)
        return StateModel(18, np.zeros(2), np.log(mean_tokens), np.log(lengths), lengths, np.ones(30, bool))

    def prompts(self, *numbers: int, layer: int = 18) -> HiddenStates:
        count = len(numbers)
        states = np.tile(self.STATE, count)
        return HiddenStates(np.array(numbers, np.int64), *np.zeros((2, count), np.int32), states, layer)

    @pytest.mark.parametrize("served", [{"prediction.enabled": "true"}], indirect=True)
    def test_every_request_is_predicted_when_its_prompt_has_been_computed(self, served: Model) -> None:
        subject = Subject("Say it", "hello", 1, 12)
        sender = served.ask(1, subject=subject)
        served.tell(self.prompts(1))
        wait_for(lambda: served.model._predictions._stages, 10)
        assert not served.model._predictions.is_known(1), "nothing was learned yet"
        assert served.table.find(1).prediction is None
        served.model._learned._known = version(), StageModels({PROMPT_END: self.learned(7)})
        served.tell(self.prompts(1, 99))
        wait_for(lambda: served.model._predictions.is_known(1), 10)
        assert served.table.find(1).prediction.mean == pytest.approx(7)
        assert served.model._predictions._stages[1][PROMPT_END].version == 4
        assert is_undisturbed(sender)

    @pytest.mark.parametrize("served", [{"prediction.enabled": "true"}], indirect=True)
    def test_a_request_is_predicted_again_when_its_answer_has_reached_a_stage(self, served: Model) -> None:
        """Of two that are written, only of the one whose states have all come."""
        for number in (1, 2):
            served.ask(number, subject=Subject("Say it", "hello", 1, 12), sampling=Sampling(max_tokens=500))
        models = {PROMPT_END: self.learned(200), WRITTEN[0]: self.learned(30)}
        served.model._learned._known = version(), StageModels(models)
        served.tell(self.prompts(1, 2))
        wait_for(lambda: served.table.find(2).prediction, 10)
        assert served.table.find(1).prediction.mean == pytest.approx(200)
        for written in range(READ_EVERY, WRITTEN[0] + 1, READ_EVERY):
            numbers = np.array([1, 2] if written != 2 * READ_EVERY else [1], np.int64)
            counts = np.full(len(numbers), written, np.int32)
            states = np.tile(self.STATE, len(numbers))
            served.tell(HiddenStates(numbers, np.zeros_like(counts), counts, states, 18))
        wait_for(lambda: WRITTEN[0] in served.model._predictions._stages[1], 10)
        assert served.table.find(1).prediction.mean > WRITTEN[0]
        assert served.table.find(2).prediction.mean == pytest.approx(200)

    @pytest.mark.parametrize("served", [{"prediction.enabled": "true"}], indirect=True)
    def test_a_predictor_that_raises_or_says_nonsense_harms_no_stream(
        self, served: Model, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sender = served.ask(1, subject=Subject("Say it", "hello", 1, 12))
        broken = self.learned(7)
        object.__setattr__(broken, "lengths", np.full(3, np.nan))
        served.model._learned._known = version(), StageModels({PROMPT_END: broken})
        served.tell(self.prompts(1), tokens(1, 5))
        wait_for(lambda: len(served.table.find(1).tokens) == 1, 10)
        monkeypatch.setattr(StateModel, "predict", lambda *_: 1 / 0)
        served.tell(self.prompts(1), tokens(1, 5, 6))
        wait_for(lambda: len(served.table.find(1).tokens) == 2, 10)
        assert served.table.find(1).prediction is None
        assert is_undisturbed(sender)
