"""/v1/batches by OpenAI's own client, over a stand-in ensemble and a stand-in scheduler model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import openai
import pytest
from starlette.responses import Response

from client.retries import Retries
from front import attempts
from front.attempts import Patience
from front.batches import answering, pace, work
from front.batches.answering import Asked
from front.batches.pace import Pace
from front.batches.store import BatchStore, Counts, read_requests
from front.errors import ProblemError
from front.files.store import Files
from front.keys import Keys
from tests.pure.front.conftest import ANSWER
from tests.support.ensemble import Ensemble, Front, inputs_of
from tests.support.status import Scheduler, instance, request, status

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
LEAST = -(2**31 - 1)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "LOOK_EVERY_S", 0.02)
    monkeypatch.setattr(work, "WRITE_EVERY_S", 0.02)
    monkeypatch.setattr(work, "TURN_S", 0.02)
    monkeypatch.setattr(pace, "TURN_S", 0.02)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Scheduler]:
    made = Scheduler(tmp_path, status())
    yield made
    made.close()


def line(number: int, **changes: Any) -> dict[str, Any]:
    body = {"prompt": f"prompt {number}", "max_tokens": 4, **changes}
    return {"custom_id": f"{number}", "method": "POST", "url": COMPLETION, "body": body}


def uploaded(sdk: openai.OpenAI, *lines: Any) -> str:
    text = "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines)
    return sdk.files.create(file=("requests.jsonl", text.encode()), purpose="batch").id


def created(sdk: openai.OpenAI, *lines: Any, **changes: Any) -> Any:
    asked = {"endpoint": COMPLETION, "completion_window": "24h", **changes}
    return sdk.batches.create(input_file_id=uploaded(sdk, *lines), **asked)


def wait_for(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.02)


def ended(sdk: openai.OpenAI, batch_id: str) -> Any:
    wait_for(lambda: sdk.batches.retrieve(batch_id).status in ("completed", "cancelled", "expired"))
    return sdk.batches.retrieve(batch_id)


def lines_of(sdk: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    assert file_id is not None
    found = [json.loads(each) for each in sdk.files.content(file_id).text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found), "each once"
    return by_id


def test_all_requests_of_a_file_are_answered_at_the_least_priority(
    sdk: openai.OpenAI, ensemble: Ensemble, scheduler: Scheduler
) -> None:
    made = created(sdk, *map(line, range(30)), metadata={"of": "test"})
    assert (made.object, made.status, made.endpoint) == ("batch", "in_progress", COMPLETION)
    batch = ended(sdk, made.id)
    assert batch.status == "completed"
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (30, 30, 0)
    assert batch.metadata == {"of": "test"}
    assert batch.completed_at >= batch.created_at
    assert batch.error_file_id is None
    found = lines_of(sdk, batch.output_file_id)
    assert found.keys() == {f"{number}" for number in range(30)}
    for each in found.values():
        assert each["response"]["status_code"] == 200
        assert each["response"]["body"]["choices"][0]["text"] == "readAll\u2028Lines"
        assert each["error"] is None
    assert {asked["request_priority"] for asked in ensemble.asked} == {LEAST}
    assert sdk.files.retrieve(batch.output_file_id).purpose == "batch_output"
    assert [each.id for each in sdk.batches.list()] == [made.id]


def test_a_model_that_is_renamed_keeps_its_batches(
    ensemble: Ensemble, model: Path, tmp_path: Path, scheduler: Scheduler
) -> None:
    found = []
    for directory in (model, Path(shutil.copytree(model, tmp_path / "renamed"))):
        front = Front(ensemble, directory, tmp_path, Keys(()))
        with openai.OpenAI(base_url=f"{front.url}/v1", api_key="none", max_retries=0) as sdk:
            if directory == model:
                created(sdk, line(0))
            found.append([each.id for each in sdk.batches.list()])
        front.close()
    first, renamed = found
    assert first == renamed != []


@pytest.mark.parametrize("url", [CHAT, "/v1/responses"])
def test_other_interfaces_are_asked_too(
    sdk: openai.OpenAI, ensemble: Ensemble, scheduler: Scheduler, url: str
) -> None:
    body = {"messages": [{"role": "user", "content": "a"}]} if url == CHAT else {"input": "a"}
    asked = {"custom_id": "a", "method": "POST", "url": url, "body": body}
    batch = ended(sdk, created(sdk, asked, endpoint=url).id)
    assert lines_of(sdk, batch.output_file_id)["a"]["response"]["status_code"] == 200
    assert ensemble.asked[0]["request_priority"] == LEAST


def test_what_is_refused_goes_to_the_file_of_errors(sdk: openai.OpenAI, scheduler: Scheduler) -> None:
    made = created(sdk, line(0), line(1, temperature="hot"), line(2, stream=True), line(3, model="other"))
    batch = ended(sdk, made.id)
    counts = batch.request_counts
    assert (batch.status, counts.completed, counts.failed) == ("completed", 1, 3)
    found = lines_of(sdk, batch.error_file_id)
    said = {name: each["response"]["body"]["error"]["param"] for name, each in found.items()}
    assert said == {"1": "temperature", "2": "stream", "3": "model"}
    assert [each["response"]["status_code"] for each in found.values()].count(400) == 2


def test_a_request_without_a_place_in_the_queue_is_asked_again(
    sdk: openai.OpenAI, ensemble: Ensemble, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("front.batches.answering.AGAIN_S", 0.01)
    ensemble.errors = ["too many open requests [queue_full]"] * 3
    batch = ended(sdk, created(sdk, line(0), line(1)).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (2, 0)
    assert len(ensemble.asked) > 2


class Killed(Ensemble):
    """Ends whenever it is asked for this prompt, with all that it answers then."""

    prompt = "prompt 1"

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """As Triton's service."""
        request = next(requests)
        if inputs_of(request)["text_input"] == self.prompt:
            self.asked.append({})
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        yield from super().ModelStreamInfer(iter([request]), context)


def test_a_request_that_ends_the_server_each_time_is_not_asked_again_and_again(
    model: Path, tmp_path: Path, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PAUSES", Retries(first_s=0.01, most_s=0.01))
    ensemble, patience = Killed(ANSWER), Patience(lambda: True, lambda: False, 60.0)
    made = Front(ensemble, model, tmp_path, Keys(()), patience=patience)
    with openai.OpenAI(base_url=f"{made.url}/v1", api_key="none", max_retries=0) as sdk:
        batch = ended(sdk, created(sdk, *map(line, range(4))).id)
        (failed,) = lines_of(sdk, batch.error_file_id).values()
    made.close()
    assert (batch.status, batch.request_counts.completed, failed["custom_id"]) == ("completed", 3, "1")
    assert failed["response"]["status_code"] == 500
    assert failed["response"]["body"]["error"]["code"] == "request_lost"
    assert ensemble.asked.count({}) == attempts.MAX_LOST


@pytest.mark.parametrize(
    "says", ["failed to connect: it is not ready", "the server is shutting down [shutting_down]"]
)
def test_requests_of_a_batch_wait_for_a_server_that_is_not_there(
    sdk: openai.OpenAI, ensemble: Ensemble, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    monkeypatch.setattr(answering, "AGAIN_S", 0.01)
    ensemble.errors = [says] * 6
    batch = ended(sdk, created(sdk, line(0)).id)
    assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 0)


@pytest.mark.parametrize("body", [b'{"prompt": "\xff"}', b'{"prompt": "a", "x": 1e999}'])
def test_a_body_that_is_no_json_is_refused_as_from_a_client(body: bytes, tmp_path: Path) -> None:
    """The file is taken: its lines are looked at only so far that their bodies are found."""
    head = json.dumps({**line(0), "body": "BODY"}).encode()
    (tmp_path / "requests.jsonl").write_bytes(head.replace(b'"BODY"', body))
    (read,) = read_requests(tmp_path / "requests.jsonl", COMPLETION)

    def never(body: bytes) -> Response:
        raise AssertionError(body)

    is_answered, entry = asyncio.run(Asked(never).entry(read))
    assert (is_answered, entry["response"]["status_code"]) == (False, 400)
    assert entry["response"]["body"]["error"]["code"] == "invalid_json"


def test_after_a_restart_the_front_goes_on_where_it_was(
    ensemble: Ensemble, model: Path, tmp_path: Path, scheduler: Scheduler
) -> None:
    ensemble.pause_s = 0.05
    first = Front(ensemble, model, tmp_path, Keys(()))
    with openai.OpenAI(base_url=f"{first.url}/v1", api_key="none", max_retries=0) as sdk:
        made = created(sdk, *map(line, range(40)))
        wait_for(lambda: sdk.batches.retrieve(made.id).request_counts.completed >= 5)
    first.close()
    (output,) = (tmp_path / "front directory").glob("batches/*/*/output.jsonl")
    before = output.read_text().splitlines()
    assert 5 <= len(before) < 40
    with output.open("a") as file:
        file.write('{"custom_id": "39", "resp')  # cut off
    second = Front(ensemble, model, tmp_path, Keys(()))
    with openai.OpenAI(base_url=f"{second.url}/v1", api_key="none", max_retries=0) as sdk:
        batch = ended(sdk, made.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 40)
        text = sdk.files.content(batch.output_file_id).text.splitlines()
    second.close()
    assert text[: len(before)] == before
    assert sorted(int(json.loads(each)["custom_id"]) for each in text) == list(range(40))


def test_where_a_batch_stands_is_read_line_by_line(tmp_path: Path) -> None:
    """All answers together may be larger than the memory."""
    store = BatchStore(tmp_path / "batches")
    (name,) = made_in(store, tmp_path, ["in_progress"])
    batch = store.find(name)
    output = store.place(batch) / "output.jsonl"
    with output.open("w") as file:
        for number in range(20):
            file.write(json.dumps({"custom_id": f"{number}", "response": "x" * (1 << 20)}) + "\n")
        file.write('{"custom_id": "20", "resp')  # cut off
    tracemalloc.start()
    answered = work._Run(batch, store, Files(tmp_path / "files"))._answered()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert answered == {f"{number}" for number in range(20)}
    assert batch.request_counts.completed == 20
    assert output.read_bytes().endswith(b'x"}\n')
    assert peak < 10 << 20


def test_of_two_fronts_one_answers(
    sdk: openai.OpenAI, ensemble: Ensemble, model: Path, tmp_path: Path, scheduler: Scheduler
) -> None:
    other = Front(ensemble, model, tmp_path, Keys(()))
    batch = ended(sdk, created(sdk, *map(line, range(20))).id)
    other.close()
    assert batch.request_counts.completed == 20
    assert len(ensemble.asked) == 20


def test_a_cancelled_batch_keeps_what_was_answered(
    sdk: openai.OpenAI, ensemble: Ensemble, scheduler: Scheduler
) -> None:
    ensemble.pause_s = 0.05
    made = created(sdk, *map(line, range(100)))
    wait_for(lambda: sdk.batches.retrieve(made.id).request_counts.completed >= 2)
    assert sdk.batches.cancel(made.id).status in ("cancelling", "cancelled")
    batch = ended(sdk, made.id)
    assert batch.status == "cancelled"
    assert batch.created_at - 1 <= batch.cancelling_at <= batch.cancelled_at
    assert len(lines_of(sdk, batch.output_file_id)) == batch.request_counts.completed < 100
    with pytest.raises(openai.BadRequestError, match="it has ended already"):
        sdk.batches.cancel(made.id)


def test_batches_that_wait_behind_another_can_be_cancelled_and_expire(
    sdk: openai.OpenAI, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.said = status(instances=[])  # no instance, so nothing is answered
    first, cancelled, late = (
        created(sdk, line(0), completion_window=window) for window in ("48h", "48h", "1h")
    )
    sdk.batches.cancel(cancelled.id)
    assert ended(sdk, cancelled.id).status == "cancelled"
    now = time.time()
    monkeypatch.setattr(work.time, "time", lambda: now + 3601)
    assert ended(sdk, late.id).status == "expired"
    assert sdk.batches.retrieve(first.id).status == "in_progress"


def test_a_full_file_store_holds_up_no_results(
    sdk: openai.OpenAI, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = created(sdk, line(0), line(1, temperature="hot"))
    monkeypatch.setattr("front.files.store.MOST_FILES", 1)
    batch = ended(sdk, made.id)
    assert batch.status == "completed"
    assert lines_of(sdk, batch.output_file_id).keys() == {"0"}
    assert lines_of(sdk, batch.error_file_id).keys() == {"1"}
    with pytest.raises(openai.BadRequestError, match="the most there can be"):
        uploaded(sdk, line(0))


def test_a_result_that_can_not_be_written_is_tried_again_and_the_other_is_not_written_twice(
    sdk: openai.OpenAI, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, failures = Files.add, [OSError("no space")] * 3

    def failing(self: Files, name: str, *rest: Any) -> Any:
        if name.endswith("errors.jsonl") and failures:
            raise failures.pop()
        return add(self, name, *rest)

    monkeypatch.setattr(Files, "add", failing)
    batch = ended(sdk, created(sdk, line(0), line(1, temperature="hot")).id)
    assert (batch.request_counts.completed, batch.request_counts.failed, failures) == (1, 1, [])
    results = [file.id for file in sdk.files.list(purpose="batch_output")]
    assert sorted(results) == sorted([batch.output_file_id, batch.error_file_id])


def test_a_batch_that_fails_does_not_hold_up_the_next(
    sdk: openai.OpenAI, scheduler: Scheduler, tmp_path: Path
) -> None:
    said, scheduler.said = scheduler.said, status(instances=[])
    failing = created(sdk, line(0))
    (about,) = (tmp_path / "front directory").glob(f"batches/*/{failing.id}/batch.json")
    next_one = created(sdk, line(0))
    (about.parent / "input.jsonl").rename(about.parent / "moved.jsonl")
    scheduler.said = said
    assert ended(sdk, next_one.id).status == "completed"
    assert sdk.batches.retrieve(failing.id).status == "in_progress"
    (about.parent / "moved.jsonl").rename(about.parent / "input.jsonl")
    assert ended(sdk, failing.id).status == "completed"


def test_requests_are_read_and_written_outside_of_the_event_loop(
    sdk: openai.OpenAI, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    said, scheduler.said = scheduler.said, status(instances=[])
    late = created(sdk, line(0), line(1), completion_window="1h")
    on_loop, entry_of, read_requests = [], work.entry_of, work.read_requests

    def note_loop() -> None:
        with contextlib.suppress(RuntimeError):
            on_loop.append(asyncio.get_running_loop())

    def entry(*given: Any) -> Any:
        note_loop()
        return entry_of(*given)

    def requests(*given: Any) -> Any:
        for each in read_requests(*given):
            note_loop()
            yield each

    monkeypatch.setattr(work, "entry_of", entry)
    monkeypatch.setattr(work, "read_requests", requests)
    now = time.time()
    monkeypatch.setattr(work.time, "time", lambda: now + 3601)
    assert len(lines_of(sdk, ended(sdk, late.id).error_file_id)) == 2
    scheduler.said = said
    assert ended(sdk, created(sdk, line(0), line(1)).id).request_counts.completed == 2
    assert on_loop == []


def test_a_file_may_begin_with_a_byte_order_mark(sdk: openai.OpenAI, scheduler: Scheduler) -> None:
    assert ended(sdk, created(sdk, f"\ufeff{json.dumps(line(0))}").id).request_counts.completed == 1


def test_what_was_not_answered_within_the_window_is_an_error(
    sdk: openai.OpenAI, scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.said = status(instances=[])  # no instance, so nothing is answered
    made = created(sdk, line(0), line(1), completion_window="1h")
    assert made.expires_at == made.created_at + 3600
    now = time.time()
    monkeypatch.setattr(work.time, "time", lambda: now + 3601)
    batch = ended(sdk, made.id)
    assert batch.status == "expired"
    found = lines_of(sdk, batch.error_file_id)
    assert [each["error"]["code"] for each in found.values()] == ["batch_expired"] * 2


REFUSED: list[tuple[Any, dict[str, Any], str]] = [
    (line(0), {"endpoint": "/v1/embeddings"}, "endpoint = '/v1/embeddings': must be one of"),
    (line(0), {"completion_window": "soon"}, "completion_window = 'soon': must be a number of hours"),
    (
        line(0),
        {"endpoint": CHAT},
        "input_file_id: line 1: url = '/v1/completions': must be /v1/chat/completions",
    ),
    ({**line(0), "method": "GET"}, {}, "input_file_id: line 1: method = 'GET': must be POST"),
    ({**line(0), "body": []}, {}, "input_file_id: line 1: body: must be a JSON object"),
    ({**line(0), "custom_id": ""}, {}, "input_file_id: line 1: custom_id: must have 1 to 512 characters"),
    ("{", {}, "input_file_id: line 1: "),
    ("", {}, "input_file_id: it must have at least one line"),
    (f"{json.dumps(line(0))}\n{json.dumps(line(0))}", {}, "custom_id = '0': it is there twice"),
]


@pytest.mark.parametrize(("given", "changes", "said"), REFUSED)
def test_what_no_batch_can_have_is_refused(
    sdk: openai.OpenAI, given: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(openai.BadRequestError) as error:
        created(sdk, given, **changes)
    assert said in error.value.message
    assert sdk.batches.list().data == []


def made_in(store: BatchStore, tmp_path: Path, statuses: list[str], begins: int = 0) -> list[str]:
    """Batches of these statuses, each a second younger than the one before. Returns their ids."""
    (tmp_path / "content").write_text("{}")
    made = []
    for number, said in enumerate(statuses):
        fields = {"endpoint": CHAT, "input_file_id": "file", "completion_window": "1h"}
        batch = store.create(tmp_path / "content", 1, request_counts=Counts(total=1), **fields)
        batch.status, batch.created_at = said, begins + number
        store.write(batch)
        made.append(batch.id)
    return made


def test_a_batch_that_has_ended_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = BatchStore(tmp_path / "batches")
    assert store.open() == []
    done, late, early = made_in(store, tmp_path, ["completed", "in_progress", "in_progress"])
    assert [batch.id for batch in store.open()] == [late, early]
    read, seen = store._read, []
    monkeypatch.setattr(store, "_read", lambda name: (seen.append(name), read(name))[1])
    store.cancel(late)
    assert [(batch.id, batch.status) for batch in store.open()] == [
        (late, "cancelling"),
        (early, "in_progress"),
    ]
    assert done not in seen
    assert [batch.id for batch in store.all()] == [early, late, done]


def test_a_batch_that_has_ended_keeps_its_description_alone(tmp_path: Path) -> None:
    """Also where the process that ended it was killed then."""
    store = BatchStore(tmp_path / "batches")
    done, running = made_in(store, tmp_path, ["completed", "in_progress"])
    for name in ("output.jsonl", "errors.jsonl"):
        (tmp_path / "batches" / done / name).write_text("{}")
    store.open()
    kept = {each: {path.name for path in (tmp_path / "batches" / each).iterdir()} for each in (done, running)}
    assert kept == {done: {"batch.json"}, running: {"batch.json", "input.jsonl"}}
    assert store.find(done).status == "completed"


def test_where_there_are_too_many_the_oldest_that_have_ended_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = BatchStore(tmp_path / "batches")
    running, _, new = made_in(store, tmp_path, ["in_progress", "expired", "completed"])
    monkeypatch.setattr("front.batches.store.MOST_BATCHES", 3)
    (another,) = made_in(store, tmp_path, ["in_progress"], begins=3)
    assert [batch.id for batch in store.all()] == [another, new, running]
    (last,) = made_in(store, tmp_path, ["in_progress"], begins=4)
    assert [batch.id for batch in store.open()] == [running, another, last]
    with pytest.raises(ProblemError, match="3 batches that have not ended, the most there can be") as full:
        made_in(store, tmp_path, ["in_progress"])
    assert full.value.code == "full"


def test_an_unknown_batch_is_not_found(sdk: openai.OpenAI) -> None:
    for name in ("batch_1", "batch_...", "lock"):
        with pytest.raises(openai.NotFoundError):
            sdk.batches.retrieve(name)


def test_beside_others_one_request_is_open_a_tenth_of_the_time_and_later_half_of_the_slots() -> None:
    said = status(instances=[instance(slots=16), instance(1, slots=16, state="lost")])
    now_s = 100.0

    async def asked() -> dict[str, Any]:
        return said

    async def main() -> None:
        nonlocal now_s
        made = Pace(asked, lambda: now_s)

        async def most_after(seconds: float, num_open: int) -> int:
            nonlocal now_s
            now_s += seconds
            return await made.most(num_open)

        assert await most_after(0, 0) == 8
        said.update(status(request(1), request(2)), instances=[instance(slots=16)])
        assert await most_after(1, 2) == 8, "both are the batch's"
        assert await most_after(1, 1) == 1, "one of them is another's"
        assert await most_after(0, 0) == 0, "they were open for 2 s"
        assert await most_after(20, 0) == 0, "a moment without others is waited for"
        assert await most_after(17, 0) == 1, "not for ever"
        assert await most_after(0.5, 0) == 0
        said.update(status(), instances=[instance(slots=16)])
        assert await most_after(4, 0) == 0, "others may come back"
        assert await most_after(1, 0) == 1, "it rests nine times as long as one was open"
        assert await most_after(60, 0) == 8, "others are gone"
        said.clear()
        assert await most_after(1, 0) == 0, "there is no server now"

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [5.0, 15.0])
def test_a_batch_that_comes_soon_after_others_begins_with_one_request(seconds: float) -> None:
    now_s = 100.0

    async def asked() -> dict[str, Any]:
        return status(instances=[instance(slots=16)])

    made = Pace(asked, lambda: now_s)
    made.see_others()
    now_s += seconds
    assert asyncio.run(made.most(0)) == (1 if seconds < pace.QUIET_S else 8)


def test_a_batch_rests_for_a_minute_at_most() -> None:
    said = status(instances=[instance(slots=16)])
    now_s = 0.0

    async def asked() -> dict[str, Any]:
        return said

    async def main() -> None:
        nonlocal now_s
        made = Pace(asked, lambda: now_s)
        assert await made.most(0) == 8
        now_s = 3600.0
        said.update(status(request(1)), instances=[instance(slots=16)])
        assert await made.most(0) == 0
        now_s += 2 * pace.MOST_REST_S
        assert await made.most(0) == 1

    asyncio.run(main())
