"""What `make fuzz` says of memory: a verdict that can't fail is none."""

from __future__ import annotations

from tests.support.server.fuzzing import left_inside
from tests.support.server.memory import Mark, Verdict, verdicts


def marks(*tokenizer_mib: float) -> list[Mark]:
    counts = (0, 3_000, 6_500, 10_000)
    return [
        Mark(count, {"tokenizer": mib, "shared with the tokenizer": 0.0})
        for count, mib in zip(counts, tokenizer_mib, strict=True)
    ]


def test_two_kilobytes_kept_for_each_request_are_a_leak() -> None:
    kept = 2048 / 2**20
    found = verdicts(marks(24.0, 26.0, 26.0 + 3_500 * kept, 26.0 + 7_000 * kept))[0]
    assert not found.is_flat
    assert "tokenizer GREW: +13.7 MiB in 7000 requests" in str(found)


def test_what_fills_once_is_none() -> None:
    assert all(verdict.is_flat for verdict in verdicts(marks(24.0, 26.0, 30.0, 30.0)))


def test_the_longer_the_run_the_smaller_the_leak_that_shows() -> None:
    smallest = [
        Verdict("scheduler", 0.0, 0.0, count).limit_mib * 2**20 / count for count in (700, 7_000, 70_000)
    ]
    assert smallest == sorted(smallest, reverse=True)
    assert smallest[-1] < 700, "bytes a request"


def test_a_process_that_has_died_gets_no_verdict() -> None:
    assert verdicts(marks(24.0, 26.0, 26.0, 0.0)) == []


def test_requests_left_inside_the_server_are_found_in_its_last_words() -> None:
    log = "Model 'ensemble' (version 1) has 129 in-flight inferences\n" * 3
    assert left_inside(log) == ["129 requests were left inside the model ensemble for ever"]
    assert left_inside("Timeout 3: Found 0 model versions that have in-flight inferences") == []
