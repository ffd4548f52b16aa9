"""Every row of the table in docs/limits.md, through all three doors of a real server."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from client import Client, Retries, UnavailableError
from tests.support.server import doors
from tests.support.server.doors import GrpcDoor, Outcome
from tests.support.server.expected import Expected
from tests.support.server.serving import ROOT, Gapless, wait_for
from tests.support.toy_engine import TOY

ONE, TOKENS_OF_ONE = "a", 1
LONG = {"text_input": "def read(self, size=-1):", "max_tokens": 1500, "min_tokens": 1500}  # fifteen seconds
LONGEST = {"text_input": ONE, "max_tokens": 2040, "min_tokens": 2040}
TWO_TOKENS = {"max_tokens": 2, "min_tokens": 2}
SHORT = {"text_input": ONE, **TWO_TOKENS}
OF_400_MS = {"text_input": ONE, "max_tokens": 40, "min_tokens": 40}
SETTINGS = {
    "engine.kind": TOY,
    "engine.options": "step_ms=10",
    "engine.slots": 1,
    "streams.max_open": 5,
    "streams.max_queued_tokens": 40,
    "scheduling.policy": "tests.support.policies:IMPATIENT",
    "limits.max_prompt_tokens": 30,
}
DOORS = ("generate", "generate_stream", "grpc")


@pytest.fixture(scope="module")
def gapless(toy_model: Path) -> Iterator[Gapless]:
    """One slot, so that a second request waits."""
    with Gapless(**{"model.directory": toy_model, **SETTINGS}) as served:
        yield served


def ask(gapless: Gapless, door: str, timeout_us: int | None = None, **inputs: Any) -> Outcome:
    if door != "grpc":
        timeout = {"timeout": timeout_us} if timeout_us else {}
        return doors.post(
            gapless.http_port, door, doors.body(stream=door == "generate_stream", **inputs, **timeout)
        )
    with GrpcDoor(gapless.grpc_port) as grpc_door:
        return grpc_door.ask(doors.message(timeout_us, stream=True, **inputs))


@contextmanager
def busy(gapless: Gapless) -> Iterator[None]:
    """The only slot is taken meanwhile, for twenty seconds at most."""
    wait_for(gapless.is_idle, 60)
    client = gapless.grpc()
    answer = client.ask(**LONGEST)
    client.read_until(lambda: answer.chunks > 2)
    yield
    client.drain(0.01)
    assert not answer.num_ends, "the slot was free too early for this test"
    client.cancel()
    client.close()


@contextmanager
def waiting_behind_a_busy_slot(gapless: Gapless, count: int, text: str) -> Iterator[None]:
    """Requests that are answered as if nothing had been refused meanwhile."""
    clients = [gapless.grpc() for _ in range(count)]
    with busy(gapless):
        answers = [client.ask(text_input=text, **TWO_TOKENS) for client in clients]
        wait_for(lambda: gapless.metrics()["gapless_requests_waiting"] == count, 60)
        yield
    for client in clients:
        client.finish()
        client.close()
    assert [(answer.error, answer.num_output_tokens) for answer in answers] == [("", 2)] * count


# --- refused for what it is


@dataclass(frozen=True)
class Refusal:
    inputs: dict[str, Any]
    says: str


REFUSED = {
    "a value out of its range": Refusal(
        {"text_input": ONE, "max_tokens": 0}, "max_tokens = 0: must be a whole number between 1 and"
    ),
    "a prompt of too many bytes": Refusal(
        {"text_input": "x" * 961},
        "text_input = 961 bytes: must be at most 960 (32 a token of limits.max_prompt_tokens)",
    ),
    "a prompt of too many tokens": Refusal(
        {"text_input": ONE * 31}, "text_input = 31 tokens: must be at most 30 (limits.max_prompt_tokens)"
    ),
    "more than the model's context": Refusal(
        {"text_input": ONE, "max_tokens": 2048},
        "max_tokens = 2048: must be at most 2047, because text_input has 1 tokens. This model's maximum"
        " context length is 2048 tokens.",
    ),
    "too many or too long stop words or bad words": Refusal(
        {"text_input": ONE, "stop_words": ["x"] * 17}, "stop_words = 17 words: must be at most 16"
    ),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_can_not_be_taken_is_refused_by_name(gapless: Gapless, door: str) -> None:
    for refusal in REFUSED.values():
        check_refusal(ask(gapless, door, **refusal.inputs), door, refusal.says)


def check_refusal(outcome: Outcome, door: str, says: str) -> None:
    assert outcome.num_ends == 1, says
    assert outcome.status == ("OK" if door == "grpc" else "400"), says
    assert outcome.errors[0].startswith(f"in ensemble 'ensemble', {says}")
    assert outcome.text == ""


# --- fields and parameters

UNKNOWN = {
    "tempreature": (0.7, "'tempreature': there is no such field; did you mean temperature?"),
    "stop": ("\n", "'stop': there is no such field; did you mean stop_words?"),
    "max_new_tokens": (5, "'max_new_tokens': there is no such field; did you mean max_tokens?"),
    "n": (4, "'n': there is no such field"),
    "timeout": (False, "timeout = False: must be a whole number between 0 and"),
}
WRONG_TIMEOUTS = ("", "5", 0.0, 1.5, -1, 2**62)
TRITONS = {
    "priority": 1,
    "sequence_id": 5,
    "sequence_start": True,
    "sequence_end": True,
    "triton_enable_empty_final_response": True,
}


@pytest.mark.parametrize("door", ["generate", "generate_stream"])
def test_an_unknown_field_of_http_is_refused_by_name(gapless: Gapless, door: str) -> None:
    for name, (value, says) in UNKNOWN.items():
        check_refusal(doors.post(gapless.http_port, door, doors.body(**SHORT, **{name: value})), door, says)


def test_a_timeout_of_http_that_is_no_number_of_microseconds_is_refused(gapless: Gapless) -> None:
    for value in WRONG_TIMEOUTS:
        outcome = doors.post(gapless.http_port, "generate", doors.body(**SHORT, timeout=value))
        says = f"timeout = {value!r}: must be a whole number between 0 and 1000000000000000"
        check_refusal(outcome, "generate", says)


def test_parameters_of_triton_over_http_are_taken(gapless: Gapless) -> None:
    outcome = doors.post(
        gapless.http_port, "generate", doors.body(**SHORT, **TRITONS, id="mine", timeout=60_000_000)
    )
    assert (outcome.errors, outcome.reasons) == ([], ["length"])


def test_an_unknown_parameter_of_grpc_is_refused_by_name(gapless: Gapless) -> None:
    for name, kind, value, says in [
        ("tempreature", "double_param", 0.7, UNKNOWN["tempreature"][1]),
        (
            "temperature",
            "double_param",
            0.7,
            "temperature: must be an input of the request, not a parameter",
        ),
        ("timeout", "int64_param", -5, "timeout = "),
    ]:
        request = doors.as_message(stream=True, **SHORT)
        setattr(request.parameters[name], kind, value)
        with GrpcDoor(gapless.grpc_port) as door:
            check_refusal(door.ask(request.SerializeToString()), "grpc", says)


def test_parameters_of_triton_over_grpc_are_taken(gapless: Gapless) -> None:
    request = doors.as_message(60_000_000, stream=True, **SHORT)
    for name, value in TRITONS.items():
        setattr(request.parameters[name], "bool_param" if isinstance(value, bool) else "int64_param", value)
    with GrpcDoor(gapless.grpc_port) as door:
        outcome = door.ask(request.SerializeToString())
    assert (outcome.errors, outcome.reasons) == ([], ["length"])


# --- refused because of others


def test_too_many_open_requests(gapless: Gapless) -> None:
    with waiting_behind_a_busy_slot(gapless, 4, ONE):
        says = "too many open requests: 5 are open, the limit is 5 (streams.max_open)"
        for door in DOORS:
            check_refusal(ask(gapless, door, **SHORT), door, says)
    wait_for(gapless.is_idle, 60)
    assert ask(gapless, "generate", **SHORT).reasons == ["length"]


def test_our_client_asks_a_full_server_again_until_it_has_room(gapless: Gapless) -> None:
    def num_refused() -> float:
        return gapless.metrics()['gapless_requests_total{outcome="refused"}']

    url = f"127.0.0.1:{gapless.grpc_port}"
    with (
        Client(url, retries=Retries(attempts=1)) as hasty,
        Client(url, retries=Retries(attempts=20)) as patient,
        ThreadPoolExecutor() as pool,
    ):
        with waiting_behind_a_busy_slot(gapless, 4, ONE):
            with pytest.raises(UnavailableError, match=r"^too many open requests"):
                hasty.generate(ONE, max_tokens=2)
            before = num_refused()
            answer = pool.submit(patient.generate, ONE, max_tokens=2)
            wait_for(lambda: num_refused() > before, 30)
        assert answer.result(60).finish_reason == "length"


def test_too_many_queued_tokens(gapless: Gapless) -> None:
    with waiting_behind_a_busy_slot(gapless, 1, ONE * 30):
        assert gapless.metrics()["gapless_queued_tokens"] == 30
        says = (
            "too many queued tokens: 30 wait for a slot and this prompt has 11, the limit is 40"
            " (streams.max_queued_tokens)"
        )
        for door in DOORS:
            check_refusal(ask(gapless, door, text_input=ONE * 11), door, says)
        taken = ask(gapless, "generate", timeout_us=300_000, text_input=ONE * 10)
        assert taken.reasons == ["deadline"], "this one could be taken"


# --- deadlines


def test_a_deadline_while_waiting(gapless: Gapless) -> None:
    with busy(gapless), ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda door: ask(gapless, door, timeout_us=700_000, **SHORT), DOORS))
    for door, outcome in zip(DOORS, found, strict=True):
        assert (outcome.text, outcome.reasons, outcome.errors) == ("", ["deadline"], [])
        assert outcome.status == ("OK" if door == "grpc" else "200")


@pytest.mark.parametrize("door", DOORS)
def test_a_deadline_while_running(gapless: Gapless, expected: Expected, door: str) -> None:
    wait_for(gapless.is_idle, 60)
    before = gapless.metrics()["gapless_generated_tokens_total"]
    outcome = ask(gapless, door, timeout_us=1_500_000, **LONG)
    assert (outcome.reasons, outcome.errors) == (["deadline"], [])
    assert outcome.status == ("OK" if door == "grpc" else "200")
    assert outcome.text
    whole = expected.text(LONG["text_input"], max_tokens=1500, min_tokens=1500)
    assert whole.startswith(outcome.text.rstrip("\ufffd")), "the last character may be cut in half"
    wait_for(gapless.is_idle, 60)
    assert gapless.metrics()["gapless_generated_tokens_total"] - before < 1500, "no more are computed"


# --- whose turn it is


def test_a_larger_priority(gapless: Gapless) -> None:
    """Four wait, one of them without a priority; the last to come, at each door, has the largest."""
    order: list[int] = []
    threads = []
    with busy(gapless):
        for priority, door in enumerate(("grpc", *DOORS)):
            threads.append(ask_later(gapless, door, order, priority))
            wait_for(lambda: gapless.metrics()["gapless_requests_waiting"] == len(threads), 60)
    for thread in threads:
        thread.join(60)
    assert order == [3, 2, 1, 0]


def test_passed_over_for_too_long(gapless: Gapless) -> None:
    """One slot, requests of 0.4 s that never stop coming, and a patient one of priority −1."""
    order: list[int] = []
    threads = [threading.Thread(target=keep_asking, args=[gapless, order]) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: len(order) > 3, 60)
    patient = ask_later(gapless, "generate", order, priority=-1)
    wait_for(lambda: -1 in order, 60)  # the others go on until it has ended
    order.append(STOP)
    for thread in (patient, *threads):
        thread.join(60)


STOP = 99


def keep_asking(gapless: Gapless, order: list[int]) -> None:
    while STOP not in order:
        outcome = ask(gapless, "grpc", **OF_400_MS)
        assert outcome.reasons == ["length"]
        order.append(0)


def ask_later(gapless: Gapless, door: str, order: list[int], priority: int) -> threading.Thread:
    """In a thread. A priority of 0 is the one of a request that says nothing about it."""

    def run() -> None:
        outcome = ask(gapless, door, **OF_400_MS, **({"request_priority": priority} if priority else {}))
        assert outcome.reasons == ["length"]
        order.append(priority)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


# --- the table itself


TESTED: dict[str, Callable[..., None]] = {
    **dict.fromkeys(REFUSED, test_what_can_not_be_taken_is_refused_by_name),
    "too many open requests": test_too_many_open_requests,
    "too many queued tokens": test_too_many_queued_tokens,
    "a deadline while waiting": test_a_deadline_while_waiting,
    "a deadline while running": test_a_deadline_while_running,
    "a larger priority": test_a_larger_priority,
    "passed over for too long": test_passed_over_for_too_long,
}


def test_every_row_of_the_table_is_tested() -> None:
    limits, _, _ = (ROOT / "docs/limits.md").read_text().partition("## Connections")
    rows = re.findall(r"^\| (.+?) \|", limits, re.MULTILINE)
    assert set(rows[1:]) == set(TESTED)
