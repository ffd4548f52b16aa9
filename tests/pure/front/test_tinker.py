"""/api/v1 as Tinker's SDK asks, over a stand-in of the ensemble and with no instance: the tests answer what
is asked of the job. The bodies are those of the SDK.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

from client.errors import RefusedError
from client.wire import Piece
from front.bodies import MAX_BODY_BYTES
from front.keys import Keys
from front.model import Model
from front.tinker import futures, sessions, training
from front.tinker.data import head_of
from front.tinker.proto import ForwardBackwardOutput, SampleResponse
from front.tinker.sampling import ParametersAsk, PromptAsk, Question, SampleAsk, sampled
from front.tinker.sessions import Sessions
from python_backends.finetuning import ask_files, jobs
from python_backends.finetuning.jobs import Job
from python_backends.nouns import asks
from python_backends.nouns.request import AdapterVersion
from tests.pure.front.conftest import BUNDLED
from tests.support.ensemble import Ensemble, Front
from tests.support.tinker_bodies import PROTOBUF, Opened, body, pass_request, said


@pytest.fixture
def sdk(training: Front, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    monkeypatch.setattr(futures, "HOLD_S", 0.3)
    monkeypatch.setattr(futures, "CHECK_EVERY_S", 0.05)
    with httpx2.Client(base_url=f"{training.url}/api/v1/", timeout=60) as client:
        yield client


class Led(Opened):
    """A session with a model in training, whose job the tests answer."""

    def __init__(self, asks: httpx2.Client, directory: Path) -> None:
        super().__init__(asks, BUNDLED.name)
        (self.job,) = jobs.all_jobs(directory)

    def answered(self, number: int, answer: asks.Answer) -> asks.Ask:
        """As the trainer does."""
        ask = ask_files.read_ask(self.job.directory, number)
        ask_files.write_answer(self.job.directory, number, answer)
        return ask


@pytest.fixture
def opened(sdk: httpx2.Client, directory: Path) -> Led:
    return Led(sdk, directory)


def test_a_model_in_training_is_a_job(opened: Led) -> None:
    options = opened.job.options
    assert opened.job.is_asked
    assert (options["rank"], options["alpha"]) == (16, 32.0)
    assert options["targets"] == ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    info = said(opened.asks.post("get_info", json=body("get_info", model_id=opened.model)))
    assert (info["lora_rank"], info["model_data"]["model_name"]) == (16, BUNDLED.name)


def test_a_pass_has_the_log_probability_of_each_target(opened: Led) -> None:
    """Two data, of three and two tokens, as the SDK has sent them."""
    request = said(opened.learn(1))["request_id"]
    assert opened.retrieve(request).status_code == 408
    values = np.arange(5, dtype=np.float32)
    ask = opened.answered(1, asks.Learned([3, 2], 1.5, values.tobytes()))
    assert isinstance(ask, asks.Learn)
    first, second = ask.examples
    assert (first.ids.tolist(), first.labels.tolist()) == ([5, 6, 7], [6, 7, 8])
    assert (second.ids.tolist(), second.weights.tolist()) == ([9, 10], [0.0, 1.0])
    assert ask.learns
    answer = opened.retrieve(request)
    assert answer.headers["content-type"] == "application/x-protobuf"
    found = ForwardBackwardOutput.FromString(answer.content)
    (record,) = found.loss_fn_outputs
    assert [each.key for each in record.fields] == ["logprobs"]
    batch = record.fields[0].value
    assert np.frombuffer(batch.data, np.float32).tolist() == values.tolist()
    assert np.frombuffer(batch.offsets, np.int64).tolist() == [0, 12, 20]
    assert [(each.key, each.value) for each in found.metrics] == [("loss:sum", 1.5)]


def test_a_step_has_its_parameters(opened: Led) -> None:
    request = said(opened.asked("optim_step", 1))["request_id"]
    ask = opened.answered(1, asks.Stepped(2.5))
    assert ask == asks.Step(1e-3, (0.9, 0.95), 1e-12, 0.01, 1.0)
    assert said(opened.retrieve(request)) == {"metrics": {"grad_norm": 2.5}}


def test_what_is_refused_names_the_field_and_keeps_nothing_waiting(opened: Led) -> None:
    for number, (given, says) in enumerate(
        (
            ({"loss_fn": "ppo"}, "loss_fn = 'ppo': must be cross_entropy or importance_sampling"),
            ({"loss_fn": "importance_sampling"}, "loss_fn_inputs.weights: must be target_tokens, advantages"),
        ),
        1,
    ):
        assert says in said(opened.learn(number, **given), 400)["error"]["message"]
        assert opened.answered(number, asks.Nothing()) == asks.Nothing()
    wrong = {"adam_params": body("optim_step")["adam_params"] | {"beta2": 1.0}}
    message = said(opened.asked("optim_step", 3, **wrong), 400)["error"]["message"]
    assert message == "adam_params.beta2 = 1: must be between 0 and 1"
    wrong = {"adam_params": body("optim_step")["adam_params"] | {"eps": 0.0}}
    message = said(opened.asked("optim_step", 3, **wrong), 400)["error"]["message"]
    assert message == "adam_params.eps = 0: must be between 1e-30 and 1"
    message = said(opened.asked("save_weights_for_sampler", 4, path="a/b"), 400)["error"]["message"]
    assert message.startswith("path = 'a/b': must be 1 to 128 letters")
    assert "must be between 1 and" in said(opened.asked("optim_step", 0), 400)["error"]["message"]
    for number, (name, given, says) in enumerate(
        (
            ("optim_step", {"adam_params": {"learning_rate": None}}, "adam_params.learning_rate: "),
            ("save_weights_for_sampler", {"kind": 1}, "kind: "),
            ("save_weights", {"path": 1}, "path: "),
            ("load_weights", {"path": 1}, "path: "),
        ),
        5,
    ):
        assert said(opened.asked(name, number, **given), 400)["error"]["message"].startswith(says)
        assert opened.answered(number, asks.Nothing()) == asks.Nothing()


def sent_in_chunks(data: bytes) -> Iterator[bytes]:
    for start in range(0, len(data), 1 << 16):
        yield data[start : start + (1 << 16)]


def test_a_pass_that_can_not_be_read_keeps_nothing_waiting(opened: Led) -> None:
    def sent(number: int, content: Callable[[bytes], Any], status: int) -> str:
        given = pass_request()
        given.model_id, given.seq_id = opened.model, number
        made = content(given.SerializeToString())
        answer = opened.asks.post("forward_backward", content=made, headers=PROTOBUF)
        assert opened.answered(number, asks.Nothing()) == asks.Nothing()
        return said(answer, status)["error"]["message"]  # type: ignore[no-any-return]

    assert "must be protobuf" in sent(1, lambda data: data[:-1], 400)
    too_large = f"the body must have at most {MAX_BODY_BYTES} bytes"
    assert sent(2, lambda data: data + bytes(MAX_BODY_BYTES), 413) == too_large
    assert sent(3, lambda data: sent_in_chunks(data + bytes(MAX_BODY_BYTES)), 413) == too_large


@pytest.mark.parametrize(
    ("begun", "found"),
    [
        (b"\x0a\x03a:b\x10\x01", ("a:b", 1)),
        (b"\x0a\x03a:b\x10\xac\x02\x1a", ("a:b", 300)),
        (b"\x0a\x04a:b\x10\x01", None),  # the name is longer
        (b"\x0a\x03a:b\x10\x81", None),  # the number goes on
        (b"\x10\x01\x0a\x03a:b", None),
        (b"", None),
    ],
)
def test_the_beginning_of_a_pass_names_its_model_and_its_number(begun: bytes, found: Any) -> None:
    head = head_of(begun)
    assert (head and (head.model_id, head.seq_id)) == found


def test_what_waits_for_a_request_that_has_not_come_says_so(
    opened: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    said(opened.asked("optim_step", 1))
    opened.answered(1, asks.Stepped(1.0))
    third, fourth = (said(opened.asked("optim_step", number))["request_id"] for number in (3, 4))
    assert opened.retrieve(fourth).status_code == 408
    monkeypatch.setattr(training, "GAP_S", 0.0)
    for number, request in ((3, third), (4, fourth)):
        message = f"seq_id = {number}: waits for 2, which has not come: begin a new model"
        assert said(opened.retrieve(request)) == {"error": message, "category": "user"}
    said(opened.asked("optim_step", 2))
    assert opened.retrieve(fourth).status_code == 408


def test_bad_data_is_refused_by_its_place(opened: Led) -> None:
    def second(**tensors: Any) -> dict[str, Any]:
        """The message about a second datum with other tensors."""
        given = pass_request()
        for each in given.data[1].loss_fn_inputs:
            for name, value in tensors.get(each.key, {}).items():
                setattr(each.value, name, value)
        return said(opened.learn(1, given), 400)["error"]["message"]  # type: ignore[no-any-return]

    ids = np.array([1, 1 << 30], np.int64).tobytes()
    assert second(target_tokens={"dense": ids}).startswith("data[1].target_tokens: token ids must be")
    assert "3 numbers: must be 2" in second(target_tokens={"dense": bytes(24)})
    assert "bytes are no float32" in second(weights={"dense": bytes(3)})
    assert "must be dense" in second(weights={"dtype": 7})
    nan = np.full(2, np.nan, np.float32).tobytes()
    assert second(weights={"dense": nan}) == "data[1].weights: must be finite numbers"
    garbage = opened.asks.post("forward_backward", content=b"\xff\xff", headers=PROTOBUF)
    assert "must be protobuf" in said(garbage, 400)["error"]["message"]


def test_tokens_without_a_row_of_the_embedding_are_refused(opened: Led, training: Front) -> None:
    """Of the tokens in the body, 10 is the largest, and the tokenizer has more."""
    training.model.checkpoint = dataclasses.replace(training.model.checkpoint, num_rows=10)
    message = said(opened.learn(1), 400)["error"]["message"]
    assert message == "data[1].model_input: token ids must be between 0 and 9"


def test_requests_of_a_model_that_wait_are_bounded(opened: Led) -> None:
    for number in (2, 64, 1):
        said(opened.asked("optim_step", number))
    assert said(opened.asked("optim_step", 65), 429)["error"]["code"] == "too_many_requests"
    opened.answered(1, asks.Stepped(1.0))
    said(opened.asked("optim_step", 65))
    assert len(list((opened.job.directory / ask_files.ASKS).iterdir())) == 3


def test_a_request_that_is_sent_twice_is_one(opened: Led) -> None:
    first = said(opened.asked("optim_step", 1))
    opened.answered(1, asks.Stepped(1.0))
    assert said(opened.asked("optim_step", 1)) == first
    assert not list((opened.job.directory / ask_files.ASKS).iterdir())


def test_saved_weights_are_there_when_they_can_be_asked_for(
    opened: Led, ensemble: Ensemble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[AdapterVersion] = []
    monkeypatch.setattr(Model, "adapters", property(lambda self: tuple(listed)))
    unnamed = said(opened.asked("save_weights_for_sampler", 1))["request_id"]
    adapter = f"{opened.job.id}@1"
    (tmp_path / "adapters" / opened.job.id / "1").mkdir(parents=True)
    opened.answered(1, asks.Published(adapter))
    assert opened.retrieve(unnamed).status_code == 408
    listed.append(AdapterVersion(opened.job.id, "1", "digest"))
    sampler = said(opened.retrieve(unnamed))["sampling_session_id"]
    sampled = said(opened.asks.post("asample", json=body("asample", sampling_session_id=sampler)))
    assert opened.retrieve(sampled["request_id"]).status_code == 200
    assert {asked["lora_name"] for asked in ensemble.asked} == {adapter}
    named = said(opened.asked("save_weights_for_sampler", 2, path="law"))["request_id"]
    opened.answered(2, asks.Published("law@3"))
    listed.append(AdapterVersion("law", "3", "digest"))
    path = said(opened.retrieve(named))["path"]
    assert path == f"tinker://{opened.model}/sampler_weights/law@3"
    other = opened.sampler(model_path=path)
    assert said(opened.asks.get(f"samplers/{other}"))["model_path"] == path


def test_a_path_that_is_no_saved_weights_is_not_sampled_from(
    opened: Led, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adapters of the same name are there, and the model itself."""
    listed = tuple(AdapterVersion("law", number, "digest") for number in ("1", "2"))
    monkeypatch.setattr(Model, "adapters", property(lambda self: listed))
    state = f"tinker://{opened.job.id}/weights/law"
    for path, says in (
        (state, "given; what save_state has saved can't be sampled from"),
        (
            f"tinker://{opened.model}/sampler_weights/law",
            "must be one that save_weights_for_sampler has given",
        ),
        (f"tinker://{opened.model}/sampler_weights/{BUNDLED.name}", "must be one that"),
        ("law@1", "must be one that"),
    ):
        made = body("create_sampling_session", session_id=opened.session, model_path=path)
        message = said(opened.asks.post("create_sampling_session", json=made), 400)["error"]["message"]
        assert message.startswith(
            f"model_path = {path!r}: must be one that save_weights_for_sampler has given"
        )
        assert says in message
    opened.sampler(model_path=f"tinker://{opened.model}/sampler_weights/law@1")


def test_saved_weights_that_will_not_be_served_say_so(
    opened: Led, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK asks again after each 408, without end."""
    law = tmp_path / "adapters/law"
    requests = []
    for number in (1, 2):
        requests.append(said(opened.asked("save_weights_for_sampler", number, path="law"))["request_id"])
        (law / str(number)).mkdir(parents=True)
        opened.answered(number, asks.Published(f"law@{number}"))
        assert opened.retrieve(requests[-1]).status_code == 408
    (law / "1").rmdir()
    (law / "1").touch()
    removed = "law@1: it was removed before it could be asked for"
    assert said(opened.retrieve(requests[0])) == {"error": removed, "category": "user"}
    monkeypatch.setattr(futures, "SERVED_S", 0.0)
    not_taken = "law@2: the instance did not take it; its log says why"
    assert said(opened.retrieve(requests[1])) == {"error": not_taken, "category": "server"}


def test_a_state_is_saved_and_loaded_by_its_path(opened: Led) -> None:
    request = said(opened.asked("save_weights", 1, path="law"))["request_id"]
    assert opened.answered(1, asks.Saved("law")) == asks.SaveState("law")
    path = said(opened.retrieve(request))["path"]
    assert path == f"tinker://{opened.job.id}/weights/law"
    for number, optimizer in ((2, False), (3, True)):
        request = said(opened.asked("load_weights", number, path=path, optimizer=optimizer))["request_id"]
        ask = opened.answered(number, asks.Loaded())
        assert ask == asks.LoadState(opened.job.id, "law", optimizer)
        assert said(opened.retrieve(request))["type"] == "load_weights"
    info = said(opened.asks.post("weights_info", json=body("weights_info", tinker_path=path)))
    assert (info["base_model"], info["is_lora"], info["lora_rank"]) == (BUNDLED.name, True, 16)
    assert (info["train_attn"], info["train_mlp"], info["train_unembed"]) == (True, True, False)


def test_a_path_that_is_no_saved_state_is_refused(opened: Led) -> None:
    mine = f"tinker://{opened.job.id}/weights"
    for number, path in enumerate(("law", "tinker://x/weights/law", f"{mine}/.."), 1):
        message = said(opened.asked("load_weights", number, path=path), 400)["error"]["message"]
        assert message.startswith(f"path = '{path}': must be one that save_state has given")
    other = body("weights_info", tinker_path="tinker://ftjob-0123/weights/law")
    message = said(opened.asks.post("weights_info", json=other), 404)["error"]["message"]
    assert message == "ftjob-0123: there is no such job"
    assert "path = '../x'" in said(opened.asked("save_weights", 4, path="../x"), 400)["error"]["message"]
    request = said(opened.asked("load_weights", 5, path=f"{mine}/a"))["request_id"]
    opened.answered(5, asks.Refused("it has saved no state a"))
    assert said(opened.retrieve(request)) == {"error": "it has saved no state a", "category": "user"}


def test_samples_have_tokens_and_log_probabilities(opened: Led, ensemble: Ensemble) -> None:
    ensemble.pieces = (
        Piece("a", num_cached_tokens=2, output_ids=(7, 8), output_log_probs=(-1.0, -2.0)),
        Piece("b", "stop", output_ids=(9,), output_log_probs=(-3.0,)),
    )
    sampler = opened.sampler(base_model=BUNDLED.name)
    given = body("asample", sampling_session_id=sampler)
    promised = said(opened.asks.post("asample", json=given))
    assert len(promised["sample_sequence_ids"]) == given["num_samples"] == 2
    found = SampleResponse.FromString(opened.retrieve(promised["request_id"]).content)
    assert len(found.sequences) == 2
    for each in found.sequences:
        assert np.frombuffer(each.tokens, np.int32).tolist() == [7, 8, 9]
        assert np.frombuffer(each.logprobs, np.float32).tolist() == [-1.0, -2.0, -3.0]
        assert each.stop_reason == 0
    asked = sorted(ensemble.asked, key=lambda each: int(each["seed"]))
    assert [each["seed"] for each in asked] == [3, 4]
    first = asked[0]
    assert (first["input_ids"], first["max_tokens"], first["stop_words"]) == ((5, 6, 7), 4, ("\n",))
    assert "lora_name" not in first


def test_log_probabilities_of_a_prompt(opened: Led, ensemble: Ensemble) -> None:
    ensemble.pieces = (
        Piece("a", "length", output_ids=(7,), output_log_probs=(-1.0,), prompt_log_probs=(-2.0, -3.0)),
    )
    sampler = opened.sampler()
    for number, (last, wanted) in enumerate(((None, [np.nan, -2.0, -3.0]), (1, [np.nan, np.nan, -3.0]))):
        given = {"num_samples": 1, "prompt_logprobs": True, "prompt_logprobs_last_n": last, "seq_id": number}
        found = opened.sampled(sampler, **given)
        values = np.frombuffer(found.prompt_logprobs, np.float32)
        assert np.array_equal(values, np.array(wanted, np.float32), equal_nan=True)


def test_a_sample_that_can_not_be_had_says_why(opened: Led, ensemble: Ensemble) -> None:
    sampler = opened.sampler()
    ensemble.error = "temperature = -1: must be at least 0 [invalid_value]"
    request = said(opened.asks.post("asample", json=body("asample", sampling_session_id=sampler)))[
        "request_id"
    ]
    failed = said(opened.retrieve(request))
    assert failed["error"].startswith("temperature = -1")
    for given, says in (
        ({"num_samples": 129}, "num_samples = 129: must be between 1 and 128"),
        ({"prompt": {"chunks": []}}, "prompt: must have at least one token"),
        ({"prompt_logprobs_last_n": 3}, "prompt_logprobs_last_n = 3: must be between 1 and 2"),
        ({"prompt_alt_tokens_k": 1}, "prompt_alt_tokens_k: this server doesn't have it"),
        ({"sampling_params": {"stop": []}}, "sampling_params.stop = []: needs max_tokens"),
    ):
        refused = opened.asks.post("asample", json=body("asample", sampling_session_id=sampler, **given))
        assert said(refused, 400)["error"]["message"].startswith(says)


class OneFails:
    """A client whose sample of seed 1 fails; the others wait."""

    num_open = 0

    async def generate(self, prompt: list[int], seed: int) -> Piece:
        self.num_open += 1
        try:
            await (asyncio.sleep(0.01) if seed == 1 else asyncio.Event().wait())
            raise RefusedError("temperature = -1: must be at least 0")
        finally:
            self.num_open -= 1


def test_a_sample_that_fails_ends_the_others() -> None:
    client: Any = OneFails()
    asked = SampleAsk("a", 0, PromptAsk([]), ParametersAsk())
    question: Question = ([5], [{"seed": seed} for seed in range(3)])

    async def ask() -> tuple[Any, int]:
        return await sampled(client, asyncio.Semaphore(8), asked, question), client.num_open

    problem, num_open = asyncio.run(ask())
    assert (problem.status, num_open) == (400, 0)


def test_a_model_that_can_not_be_trained_is_refused(sdk: httpx2.Client) -> None:
    session = said(sdk.post("create_session", json=body("create_session")))["session_id"]
    lora = body("create_model")["lora_config"]
    for given, status, says in (
        ({"base_model": "other"}, 404, f"base_model = 'other': must be {BUNDLED.name}"),
        ({"lora_config": lora | {"rank": 257}}, 400, "lora_config.rank = 257: must be between 1 and 256"),
        ({"optimizer_config": {"type": "dimuon"}}, 400, "optimizer_config.type: must be adamw"),
        ({"lora_config": lora | {"train_mlp": False, "train_attn": False}}, 400, "lora_config: train_mlp"),
    ):
        made = body("create_model", session_id=session, base_model=BUNDLED.name) | given
        assert said(sdk.post("create_model", json=made), status)["error"]["message"].startswith(says)


def test_a_job_that_has_failed_says_so_to_what_waits(opened: Led) -> None:
    request = said(opened.asked("optim_step", 1))["request_id"]
    Job(opened.job.directory).fail("server_error", "no memory")
    assert said(opened.retrieve(request)) == {"error": "no memory", "category": "server"}


def test_a_session_that_is_finished_takes_its_jobs_along(opened: Led) -> None:
    heartbeat = body("session_heartbeat", session_id=opened.session)
    said(opened.asks.post("session_heartbeat", json=heartbeat))
    said(opened.asks.post(f"sessions/{opened.session}/finish", json={"reason": {"type": "success"}}))
    assert Job(opened.job.directory).status == "cancelled"
    assert not (opened.job.directory / ask_files.ASKS).exists()
    assert said(opened.asks.post("session_heartbeat", json=heartbeat), 410)["error"]["code"]
    assert opened.asked("optim_step", 1).status_code == 410
    assert opened.retrieve(f"{opened.model}:1").status_code == 410


@pytest.fixture
def checked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop refuses what another thread must not ask of it."""
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")


def test_a_session_that_is_finished_ends_its_samples(
    checked_loop: None, ensemble: Ensemble, opened: Led
) -> None:
    ensemble.pieces = (None,)
    sampler = opened.sampler()
    said(opened.asks.post("asample", json=body("asample", sampling_session_id=sampler)))
    opened.retrieve(f"{sampler}:0")
    opened.finish()
    assert ensemble.cancelled.wait(30)


def test_a_session_that_is_not_heard_of_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "LOOK_EVERY_S", 0.01)
    found = Sessions(None)
    silent, heard = found.begin(), found.begin()
    silent.heard_s -= sessions.SILENT_S + 1

    async def until_it_has_ended() -> None:
        ending = asyncio.create_task(found.run())
        while silent.id in found._open:
            await asyncio.sleep(0.01)
        ending.cancel()

    asyncio.run(until_it_has_ended())
    assert found.find(heard.id) is heard


def test_sessions_are_bounded() -> None:
    found = Sessions(None)
    for _ in range(sessions.MOST_SESSIONS):
        found.begin()
    with pytest.raises(Exception, match="64 sessions are open"):
        found.begin()


def test_a_server_that_trains_nothing_says_so(ensemble: Ensemble, tmp_path: Path) -> None:
    made = Front(ensemble, BUNDLED, tmp_path, Keys(()))
    answer = httpx2.post(f"{made.url}/api/v1/create_session", json=body("create_session"))
    made.close()
    assert said(answer, 400)["error"]["code"] == "training_is_off"
