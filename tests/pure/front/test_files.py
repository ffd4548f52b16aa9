"""/v1/files by OpenAI's own client, and bodies that it would not send."""

from __future__ import annotations

import hashlib
import http.client
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from front.errors import ProblemError
from front.files import store
from front.files.store import Files
from front.keys import Keys
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, sent

LINES = b'{"custom_id": "1"}\n{"custom_id": "2"}\r\n\r\n--line\r\n'
BOUNDARY = "a boundary"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Where the front keeps them."""
    return tmp_path / "front directory/files"


def part(name: str, content: bytes, file_name: str | None = None) -> bytes:
    named = f'; filename="{file_name}"' if file_name is not None else ""
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'
    return head.encode() + content + b"\r\n"


END = f"--{BOUNDARY}--\r\n".encode()
FILE = part("file", b"{}\n", "a.jsonl")
PURPOSE = part("purpose", b"batch")


def posted(front: Front, body: bytes, kind: str = f'multipart/form-data; boundary="{BOUNDARY}"') -> Any:
    status, _, said = ask(front, "/v1/files", body, content_type=kind)
    return status, said.get("error", said)


def test_an_uploaded_file_comes_back_as_it_was(sdk: openai.OpenAI) -> None:
    before = int(time.time())
    made = sdk.files.create(file=("lines.jsonl", LINES), purpose="batch")
    assert made.id.startswith("file-")
    assert (made.object, made.bytes, made.filename, made.purpose) == (
        "file",
        len(LINES),
        "lines.jsonl",
        "batch",
    )
    assert before <= made.created_at <= time.time()
    assert sdk.files.retrieve(made.id) == made
    assert sdk.files.content(made.id).content == LINES
    assert sdk.files.wait_for_processing(made.id).status == "processed"


def test_a_file_larger_than_a_chunk_comes_back_as_it_was(sdk: openai.OpenAI) -> None:
    content = os.urandom(3 << 20)
    made = sdk.files.create(file=("large", content), purpose="fine-tune")
    assert sdk.files.content(made.id).content == content


def test_files_are_listed_newest_first_page_by_page_and_by_purpose(
    sdk: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = []
    for number in range(5):
        monkeypatch.setattr(store.time, "time", lambda now=1e9 + number: now)
        purpose: Any = ("batch", "fine-tune")[number % 2]
        ids.append(sdk.files.create(file=(f"{number}", b"x"), purpose=purpose).id)
    assert [file.id for file in sdk.files.list()] == ids[::-1]
    assert [file.id for file in sdk.files.list(limit=2)] == ids[::-1], "the client asks for the pages"
    first = sdk.files.list(limit=2)
    assert (len(first.data), first.has_more) == (2, True)
    assert [file.id for file in sdk.files.list(order="asc")] == ids
    assert [file.id for file in sdk.files.list(purpose="fine-tune")] == [ids[3], ids[1]]


def test_a_deleted_file_is_gone(sdk: openai.OpenAI, directory: Path) -> None:
    made = sdk.files.create(file=("a", b"x"), purpose="batch")
    assert sdk.files.delete(made.id).deleted
    assert list(directory.iterdir()) == []
    for call in (sdk.files.retrieve, sdk.files.content, sdk.files.delete):
        with pytest.raises(openai.NotFoundError, match="there is no such file"):
            call(made.id)


def test_another_front_sees_the_same_files(
    sdk: openai.OpenAI, ensemble: Ensemble, model: Path, tmp_path: Path
) -> None:
    """One beside the first, or one after it."""
    made = sdk.files.create(file=("a", LINES), purpose="batch")
    other = Front(ensemble, model, tmp_path, Keys(()))
    with openai.OpenAI(base_url=f"{other.url}/v1", api_key="none", max_retries=0) as asks:
        assert asks.files.content(made.id).content == LINES
        asks.files.delete(made.id)
    other.close()
    assert sdk.files.list().data == []


def test_only_the_user_of_the_server_reads_them(sdk: openai.OpenAI, directory: Path) -> None:
    made = sdk.files.create(file=("a", LINES), purpose="batch")
    assert directory.stat().st_mode & 0o777 == 0o700
    files = list((directory / made.id).iterdir())
    assert len(files) == 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


@pytest.mark.parametrize("name", ["..", "%2e%2e", "..%2f..%2fboard", "file-", f"file-{'g' * 24}"])
def test_no_id_leads_out_of_the_folder(front: Front, tmp_path: Path, name: str) -> None:
    (tmp_path / "file.json").write_text("{}")
    for method in ("GET", "DELETE"):
        assert sent(front, f"/v1/files/{name}", method=method)[0] == 404
    assert (tmp_path / "file.json").exists()


BAD: list[tuple[bytes, str]] = [
    (FILE + END, "purpose = '': must be one of fine-tune, batch"),
    (FILE + part("purpose", b"assistants") + END, "purpose = 'assistants': must be one of fine-tune, batch"),
    (PURPOSE + END, "file: must be there, a part with this name"),
    (PURPOSE + FILE + FILE + END, "file: must be there once"),
    (PURPOSE + FILE + part("expires_after[seconds]", b"3600") + END, "expires_after: files are kept until"),
    (PURPOSE + FILE, "the body ends before its last boundary"),
    (b"", "the body ends before its last boundary"),
    (b"{}", "the body is no multipart/form-data"),
    (PURPOSE + FILE + part("x", b"y" * 5000) + END, "x: must have at most 4096 bytes"),
    (PURPOSE * 17 + END, "the body must have at most 16 parts"),
    (part("x" * 9000, b"") + END, "the body is no multipart/form-data: Maximum header size"),
]


@pytest.mark.parametrize(("body", "said"), BAD)
def test_a_bad_body_is_refused_and_leaves_nothing(
    front: Front, directory: Path, body: bytes, said: str
) -> None:
    status, error = posted(front, body)
    assert status == 400
    assert error["message"].startswith(said)
    assert list(directory.iterdir()) == []


def test_what_is_no_multipart_is_refused(front: Front) -> None:
    for kind in ("application/json", "multipart/form-data", "text/plain; boundary=a"):
        status, error = posted(front, FILE, kind)
        assert (status, error["code"]) == (400, "unsupported_content_type")


def test_the_limits_of_files_are_named(
    front: Front, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_BYTES", 10)
    monkeypatch.setattr(store, "MOST_BYTES_OF_ALL", 12)
    monkeypatch.setattr(store, "MOST_FILES", 2)
    status, error = posted(front, PURPOSE + part("file", b"x" * 11, "a") + END)
    assert (status, error["code"], error["message"]) == (
        413,
        "file_too_large",
        "file: must have at most 10 bytes",
    )
    assert posted(front, PURPOSE + part("file", b"x" * 10, "a") + END)[0] == 200
    status, error = posted(front, PURPOSE + part("file", b"x" * 3, "a") + END)
    assert (status, error["message"]) == (413, "file: must have at most 2 bytes: all files may have 12")
    assert posted(front, PURPOSE + part("file", b"xx", "a") + END)[0] == 200
    status, error = posted(front, PURPOSE + FILE + END)
    assert (status, error["message"]) == (400, "there are 2 files, the most there can be: delete some")
    assert len(list(directory.iterdir())) == 2


def test_uploads_at_the_same_time_keep_the_limit_of_all_files(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "MOST_BYTES_OF_ALL", 12)
    files = Files(directory)
    first, second = files.begin(), files.begin()
    for written in (first, second):
        written.file.write(b"x" * 7)
        written.file.flush()
    third = files.begin()
    assert third.left_bytes == -2
    files.drop(third)
    with pytest.raises(ProblemError, match="all files may have 12 bytes") as refused:
        files.end(first, "a", "batch")
    assert refused.value.status == 413
    files.drop(first)
    files.end(second, "b", "batch")
    files.add("of a batch", "batch_output", lambda file: file.write(b"x" * 20))
    assert {file.bytes for file in files.all()} == {7, 20}


def test_a_directory_that_cannot_be_written_is_named(front: Front, tmp_path: Path) -> None:
    (tmp_path / "front directory").write_text("no directory")
    status, error = posted(front, PURPOSE + FILE + END)
    assert status == 500
    assert error["message"].startswith("the file can't be kept (front.directory): ")


def test_an_upload_that_was_killed_is_removed_a_day_later(directory: Path) -> None:
    files = Files(directory)
    for written in (old := files.begin(), files.begin()):
        written.file.close()
    os.utime(old.directory, (1e9, 1e9))
    files.add("a", "batch", lambda file: file.write(b"x"))
    assert len(list(directory.iterdir())) == 2
    assert not old.directory.exists()


def test_a_client_that_leaves_in_the_middle_leaves_nothing(front: Front, directory: Path) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=30)
    connection.putrequest("POST", "/v1/files")
    connection.putheader("content-type", f'multipart/form-data; boundary="{BOUNDARY}"')
    connection.putheader("content-length", "1000000")
    connection.endheaders(PURPOSE + FILE)
    until = time.monotonic() + 30
    while not (directory.exists() and list(directory.iterdir())) and time.monotonic() < until:
        time.sleep(0.01)
    connection.close()
    while list(directory.iterdir()) and time.monotonic() < until:
        time.sleep(0.01)
    assert list(directory.iterdir()) == []


@pytest.fixture
def guarded(ensemble: Ensemble, model: Path, tmp_path: Path) -> Iterator[Front]:
    made = Front(ensemble, model, tmp_path, Keys([hashlib.sha256(b"sk-right").digest()]))
    yield made
    made.close()


def test_files_need_the_key(guarded: Front) -> None:
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="sk-wrong", max_retries=0) as asks,
        pytest.raises(openai.AuthenticationError),
    ):
        asks.files.create(file=("a", b"x"), purpose="batch")
