"""The client, the chat and the load test against a real server, as users run them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client import AsyncClient, Client, Piece, RefusedError, Retries, TimedOutError, UnavailableError, user
from client.parameters import TABLE
from tests.server.test_serving import some_word
from tests.support.server.expected import FORTY, PROMPT, Expected
from tests.support.server.serving import ROOT, Gapless, wait_for
from tests.support.server.terminal import Terminal
from tests.support.server.toy_model import VOCAB_SIZE
from tests.support.toy_engine import toy_log_probs

LONG = {"max_tokens": 1500, "min_tokens": 1500}


@pytest.fixture
def client(gapless: Gapless) -> Iterator[Client]:
    with Client(url(gapless)) as made:
        yield made


def url(gapless: Gapless) -> str:
    return f"127.0.0.1:{gapless.grpc_port}"


def num_cancelled(gapless: Gapless) -> float:
    return gapless.metrics().get('gapless_requests_total{outcome="cancelled"}', 0.0)


def test_pieces_are_the_answer_and_the_last_one_says_why_it_ended(client: Client, expected: Expected) -> None:
    pieces = list(client.stream(PROMPT, **FORTY, return_num_input_tokens=True, return_num_output_tokens=True))
    assert "".join(piece.text for piece in pieces) == expected.text(PROMPT, **FORTY)
    assert [piece.finish_reason for piece in pieces if piece.finish_reason] == ["length"]
    assert pieces[-1].finish_reason == "length"
    assert sum(piece.num_output_tokens or 0 for piece in pieces) == 40
    assert pieces[-1].num_input_tokens == len(expected.ids(PROMPT))
    assert len(pieces) > 5


def test_generate_is_the_same_in_one_piece(client: Client, expected: Expected) -> None:
    assert client.generate(PROMPT, **FORTY).text == expected.text(PROMPT, **FORTY)
    assert client.generate([user("hello")], max_tokens=20).text == expected.text(
        "<|user|>hello<|end|><|assistant|>", max_tokens=20
    )


def test_both_clients_return_every_log_probability(
    client: Client, gapless: Gapless, expected: Expected
) -> None:
    async def ask() -> list[Piece]:
        async with AsyncClient(url(gapless)) as other:
            return [piece async for piece in other.stream(PROMPT, **asked)]

    asked: Any = {"max_tokens": 200, "min_tokens": 200, "return_log_probs": True}
    asked |= {"return_num_output_tokens": True}
    tokens = expected.tokens(PROMPT, max_tokens=200, min_tokens=200)
    for pieces in (list(client.stream(PROMPT, **asked)), asyncio.run(ask())):
        assert [token for piece in pieces for token in piece.output_ids] == tokens
        scores = [score for piece in pieces for score in piece.output_log_probs]
        assert scores == [float(toy_log_probs(token, 1, VOCAB_SIZE).chosen[0]) for token in tokens]
        assert pieces[-1].cum_log_probs == pytest.approx(sum(scores))
        assert sum(piece.num_output_tokens or 0 for piece in pieces) == len(tokens)


def test_parameters_arrive_as_they_were_meant(client: Client, expected: Expected) -> None:
    text = expected.text(PROMPT, max_tokens=60, min_tokens=1)
    word = some_word(text)
    stopped = client.generate(PROMPT, max_tokens=60, min_tokens=1, stop_words=["never there", word])
    assert (stopped.text, stopped.finish_reason) == (text.split(word)[0], "stop")
    assert client.generate(
        PROMPT, max_tokens=10, exclude_input_in_output=False
    ).text == PROMPT + expected.text(PROMPT, max_tokens=10)
    assert client.generate(PROMPT, **LONG, deadline_s=0.3).finish_reason == "deadline"
    seeds = [
        client.generate(PROMPT, max_tokens=20, temperature=0.8, top_p=0.9, top_k=40, seed=seed).text
        for seed in (7, 7, 2**64 - 1)
    ]
    assert seeds[0] == seeds[1] != seeds[2]


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row.is_list])
def test_the_server_reads_lists_of_each_type(client: Client, name: str) -> None:
    """Or refuses them for its own reason; Triton itself has nothing against type and shape."""
    said = ""
    try:
        client.generate(PROMPT, **{"max_tokens": 2, name: [{int: 1, float: 0.5, str: "x"}[TABLE[name].kind]]})
    except RefusedError as refused:
        said = str(refused)
    assert not said or said.startswith((f"{name} = ", f"{name}: ")), said


def test_a_refusal_names_field_value_and_limit(client: Client) -> None:
    with pytest.raises(RefusedError, match=r"^max_tokens = 0: must be a whole number between 1 and"):
        client.generate(PROMPT, max_tokens=0)
    with pytest.raises(RefusedError, match=r"^messages\[0\].role = 'pirate': must be one of"):
        list(client.stream([{"role": "pirate", "content": "arr"}]))


def test_many_refusals_leave_the_server_alive(client: Client, gapless: Gapless) -> None:
    """With the header that brings status codes, the second one would end tritonserver 2.51."""
    pid = gapless.server_pid()
    for _ in range(100):
        with pytest.raises(RefusedError):
            client.generate(PROMPT, max_tokens=0)
    assert gapless.server_pid() == pid


def test_leaving_the_loop_frees_the_slot(client: Client, gapless: Gapless) -> None:
    before = num_cancelled(gapless)
    for piece in client.stream(PROMPT, **LONG):
        assert piece.text
        break
    wait_for(lambda: num_cancelled(gapless) > before, 60)


def test_cancelling_the_task_frees_the_slot(gapless: Gapless) -> None:
    async def ask_and_cancel() -> None:
        async with AsyncClient(url(gapless)) as client:
            task = asyncio.create_task(client.generate(PROMPT, **LONG))
            await asyncio.to_thread(wait_for, lambda: gapless.metrics()["gapless_slots_busy"] == 1, 60)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    wait_for(gapless.is_idle, 60)
    before = num_cancelled(gapless)
    asyncio.run(ask_and_cancel())
    wait_for(lambda: num_cancelled(gapless) > before, 60)


def test_a_time_out_ends_the_call(gapless: Gapless) -> None:
    before = num_cancelled(gapless)
    with Client(url(gapless), timeout_s=0.5) as client, pytest.raises(TimedOutError):
        client.generate(PROMPT, **LONG)
    wait_for(lambda: num_cancelled(gapless) > before, 60)


def test_twenty_tasks_share_one_client(gapless: Gapless, expected: Expected) -> None:
    async def ask_all() -> list[str]:
        async with AsyncClient(url(gapless)) as client:

            async def one(n: int) -> str:
                return "".join(
                    [
                        piece.text
                        async for piece in client.stream(f"{PROMPT} # {n}", max_tokens=30, min_tokens=30)
                    ]
                )

            return await asyncio.gather(*(one(n) for n in range(20)))

    assert asyncio.run(ask_all()) == [
        expected.text(f"{PROMPT} # {n}", max_tokens=30, min_tokens=30) for n in range(20)
    ]


def test_nobody_there_is_told_after_the_last_try() -> None:
    with Client("127.0.0.1:1", retries=Retries(attempts=2, first_s=0.05)) as client:
        assert not client.is_ready()
        with pytest.raises(UnavailableError):
            client.generate("x")


# --- the chat

CHAT = (sys.executable, "-m", "client.chat")


def chat(gapless: Gapless, *options: str) -> subprocess.CompletedProcess[str]:
    """One line is said to it through a pipe."""
    words = [*CHAT, "--url", url(gapless), *options]
    return subprocess.run(
        words, check=False, cwd=ROOT, input="hello\n", capture_output=True, text=True, timeout=60
    )


def test_a_piped_chat_answers_line_by_line(gapless: Gapless, expected: Expected) -> None:
    said = chat(gapless, "--max-tokens", "20", "--min-tokens", "20")
    wanted = expected.text("<|user|>hello<|end|><|assistant|>", max_tokens=20, min_tokens=20)
    assert said.stdout.rstrip("\n") == wanted.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")
    assert "20 tokens · " in said.stderr
    assert said.returncode == 0


def test_a_piped_chat_that_got_an_error_says_so_with_its_exit_code(gapless: Gapless) -> None:
    said = chat(gapless, "--max-tokens", "0")
    assert (said.returncode, said.stdout) == (1, "")
    assert "max_tokens = 0: must be a whole number" in said.stderr


def test_ctrl_c_ends_an_answer_and_not_the_chat(gapless: Gapless) -> None:
    words = [*CHAT, "--url", url(gapless), "--max-tokens", "1500", "--min-tokens", "1500"]
    terminal = Terminal(words)
    terminal.wait_for("> ")
    wait_for(gapless.is_idle, 60)
    terminal.type("hello\r")
    terminal.wait_for("hello\r\n")
    wait_for(lambda: gapless.metrics()["gapless_slots_busy"] == 1, 60)
    terminal.type("\x03")
    terminal.wait_for("cancelled")
    terminal.wait_for("> ")
    terminal.type("/quit\r")
    assert terminal.close() == 0


# --- the smallest client


def test_the_smallest_client_says_what_was_refused(gapless: Gapless) -> None:
    words = [sys.executable, "client/stream.py", "x", "--port", str(gapless.grpc_port), "--max-tokens", "0"]
    said = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (said.returncode, said.stdout) == (1, "")
    assert "max_tokens = 0: must be a whole number" in said.stderr


# --- the load test


def bench(gapless: Gapless, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "client.bench", "--url", url(gapless), *options]
    return subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_a_quick_load_test_writes_its_numbers_and_draws_them(gapless: Gapless, tmp_path: Path) -> None:
    report, picture = tmp_path / "bench.json", tmp_path / "bench.png"
    options = ["--quick", "--rate", "20", "40", "--cv", "2", "--max-tokens", "8", "--min-tokens", "8"]
    done = bench(gapless, *options, "--json", str(report), "--plot", str(picture))
    assert done.returncode == 0, done.stderr
    assert "goodput" in done.stdout
    written = json.loads(report.read_text())
    assert [load["load"]["rate"] for load in written["loads"]] == [20, 40]
    for load in written["loads"]:
        assert load["requests"] == 24
        assert load["errors"] == {}
        assert load["output_tokens"] == 24 * 8
        assert 0 < load["ttft_ms"]["p50"] <= load["e2e_ms"]["p50"]
        assert len(load["samples_ms"]["tpot"]) == 24
    assert written["versions"]["server"].startswith("triton ")
    assert {"date", "command", "machine", "limits"} <= set(written)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_load_test_counts_errors(gapless: Gapless) -> None:
    done = bench(gapless, "--requests", "6", "--max-tokens", "100000")
    assert done.returncode == 1
    assert "6 requests in" in done.stdout
    assert "6 errors" in done.stdout
    assert "RefusedError: max_tokens = 100000: must be at most" in done.stdout
