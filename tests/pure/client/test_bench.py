"""The load test's own parts: arrivals, inputs, percentiles, goodput, and the
loops against a client that answers by a script.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from client import Piece, UnavailableError
from client.bench import __main__ as bench
from client.bench.__main__ import arguments
from client.bench.arrivals import Load, due_times
from client.bench.inputs import Ask, InputsError, asks, read_lines, take
from client.bench.report import Limits, lines, percentiles, provenance, summary
from client.bench.run import Outcome, run
from client.options import chosen

LIMITS = Limits(ttft_ms=100, tpot_ms=10)
CLOSED = Load(concurrency=4)


@pytest.mark.parametrize("cv", [0.25, 1.0, 3.0])
def test_gaps_have_the_rate_and_the_burstiness_that_were_asked_for(cv: float) -> None:
    gaps = np.diff(due_times(Load(rate=5.0, cv=cv), 200_000, seed=1), prepend=0.0)
    assert gaps.min() >= 0
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.03)


def test_poisson_arrivals_are_a_poisson_number_in_every_second() -> None:
    counts = np.bincount(due_times(Load(rate=4.0), 100_000, seed=2).astype(int))[:-1]
    assert counts.mean() == pytest.approx(4, rel=0.02)
    assert counts.var() == pytest.approx(4, rel=0.05)


def test_the_same_seed_gives_the_same_times_and_another_others() -> None:
    first, again, other = (due_times(Load(rate=3, cv=2), 50, seed) for seed in (7, 7, 8))
    assert (first == again).all()
    assert (first != other).all()


def test_even_arrivals_are_even() -> None:
    assert due_times(Load(rate=4, cv=0), 4, seed=0).tolist() == [0.25, 0.5, 0.75, 1.0]


def test_percentiles_lie_between_neighbours() -> None:
    assert percentiles([float(n) for n in range(101)]) == {"p50": 50.0, "p90": 90.0, "p99": 99.0}
    assert percentiles([1.0, 2.0]) == {"p50": 1.5, "p90": 1.9, "p99": 1.99}
    assert percentiles([]) == {"p50": None, "p90": None, "p99": None}


def test_a_report_says_what_the_system_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = provenance("bench", "triton 2.51.0")["machine"]
    assert machine["cores"] == len(os.sched_getaffinity(0))
    assert machine["memory_gib"] > 0
    monkeypatch.setattr("client.bench.report.os", SimpleNamespace(cpu_count=lambda: 8))  # as on Windows
    machine = provenance("bench", "triton 2.51.0")["machine"]
    assert (machine["cores"], machine["memory_gib"]) == (8, None)


def outcome(ttft_s: float, tpot_s: float, tokens: int = 11, due_s: float = 0.0, error: str = "") -> Outcome:
    first_s = due_s + ttft_s
    return Outcome(
        due_s, due_s, first_s, first_s + tpot_s * (tokens - 1), 5, tokens, "" if error else "stop", error
    )


def test_goodput_counts_who_kept_both_limits_and_errors_count_against_it() -> None:
    answers = [
        outcome(0.05, 0.005),
        outcome(0.2, 0.005),
        outcome(0.05, 0.02),
        outcome(0.05, 0.005, error="UnavailableError: no"),
    ]
    result = summary(CLOSED, answers, LIMITS)
    assert result["goodput_share"] == 0.25
    assert result["errors"] == {"UnavailableError: no": 1}
    assert result["finish_reasons"] == {"stop": 3}
    assert result["wall_s"] == 0.25
    assert result["goodput_requests_s"] == 4.0
    assert result["ttft_ms"]["p50"] == 50.0
    assert result["tpot_ms"]["p50"] == 5.0
    assert result["e2e_ms"]["p99"] == pytest.approx(250, rel=0.01)
    assert "goodput 4.00 requests/s (25%)" in "\n".join(lines(result, LIMITS))


def test_an_answer_of_one_token_has_no_time_per_further_token() -> None:
    result = summary(CLOSED, [outcome(0.05, 0.0, tokens=1)], LIMITS)
    assert result["tpot_ms"] == {"p50": None, "p90": None, "p99": None}
    assert result["goodput_share"] == 1.0


def test_a_load_where_everything_fails_is_reported_too() -> None:
    result = summary(CLOSED, [outcome(0.05, 0.0, tokens=0, error="FailedError: broken")] * 3, LIMITS)
    assert result["goodput_share"] == 0.0
    assert "3 × FailedError: broken" in "\n".join(lines(result, LIMITS))


class Scripted:
    """Answers every prompt after `step_s` with two pieces; prompts that say `busy` find no place."""

    def __init__(self, step_s: float, together: int) -> None:
        self._step_s = step_s
        self._together = together  # nothing is answered before so many have been open at once
        self.open = self.most = 0

    async def stream(self, prompt: str, **parameters: Any) -> AsyncIterator[Piece]:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            await asyncio.sleep(self._step_s)
            while self.most < self._together:
                await asyncio.sleep(0.001)
            if prompt == "busy":
                raise UnavailableError("too many open requests")
            yield Piece("a", num_output_tokens=1)
            await asyncio.sleep(self._step_s)
            yield Piece("b", "stop", num_input_tokens=3, num_output_tokens=1)
        finally:
            self.open -= 1


def answers(
    load: Load, prompts: list[str], step_s: float, together: int = 0
) -> tuple[list[Outcome], Scripted]:
    client, outcomes = Scripted(step_s, together), []
    asyncio.run(run(client, load, [Ask(prompt) for prompt in prompts], 0, outcomes.append))  # type: ignore[arg-type]
    return outcomes, client


def test_a_closed_loop_keeps_so_many_open_and_no_more() -> None:
    outcomes, client = answers(Load(concurrency=3), ["x"] * 12, 0.005)
    assert len(outcomes) == 12
    assert client.most == 3
    assert all(
        each.ttft_s >= 0.005 and each.e2e_s >= 0.01 and each.num_output_tokens == 2 for each in outcomes
    )


def test_an_open_loop_does_not_wait_for_answers() -> None:
    outcomes, client = answers(Load(rate=200, cv=0), ["x"] * 20, 0.0, together=20)
    assert client.most == 20
    assert np.diff(sorted(each.due_s for each in outcomes)) == pytest.approx([0.005] * 19)


def test_a_refused_request_is_an_outcome_and_stops_nobody() -> None:
    outcomes, _ = answers(Load(concurrency=2), ["x", "busy", "x"], 0.001)
    assert sorted(each.error for each in outcomes) == ["", "", "UnavailableError: too many open requests"]


def test_the_shipped_prompts_are_those_of_eight_tasks_and_come_shuffled_by_seed() -> None:
    first, again, other = (take(asks("tasks", 0, seed, {"max_tokens": 9}), 400) for seed in (1, 1, 2))
    assert first == again != other
    assert sorted(str(ask) for ask in first) == sorted(str(ask) for ask in other)
    assert all(ask.parameters == {"max_tokens": 9} for ask in first)


def test_random_texts_have_their_number_of_words_and_answers_of_a_fixed_length() -> None:
    (ask, other) = take(asks("random", 30, 5, {}), 2)
    assert len(str(ask.prompt).split()) == 30
    assert ask.prompt != other.prompt
    assert ask.parameters["max_tokens"] == ask.parameters["min_tokens"] == 64
    assert take(asks("random", 3, 5, {"max_tokens": 7}), 1)[0].parameters == {
        "max_tokens": 7,
        "min_tokens": 7,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "must be JSON"),
        ("[]", "must be an object"),
        ("{}", "either text_input, messages or input_ids"),
        ('{"text_input": "x", "messages": []}', "either text_input, messages or input_ids"),
        ('{"text_input": "x", "max_tokens": "many"}', "max_tokens = 'many'"),
        ('{"text_input": "x", "colour": 1}', "colour: there is no such parameter"),
        ('{"input_ids": 5}', "input_ids must be a list"),
        ('{"input_ids": []}', "input_ids must be a list of at least one token id"),
        ('{"input_ids": ["a"]}', "input_ids: must be whole numbers of 32 bits"),
        ('{"input_ids": [2147483648]}', "input_ids: must be whole numbers of 32 bits"),
        ('{"text_input": 5}', "text_input must be a string"),
        ('{"text_input": "\\ud800"}', "text_input: must be text that UTF-8 can encode"),
        ('{"messages": ["x"]}', "messages must be a list of objects"),
        ('{"messages": [{"role": "user", "content": 5}]}', "messages must be a list of objects"),
        (r'{"messages": "[{\"role\": \"user\", \"content\": \"x\"}]"}', "messages must be a list of objects"),
        ("[" * 100_000, "must be JSON"),
    ],
)
def test_a_wrong_line_is_named_with_file_number_and_reason(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text('{"text_input": "fine", "seed": 3}\n' + line + "\n")
    with pytest.raises(InputsError, match=f"asks.jsonl, line 2: .*{reason}"):
        read_lines(path)


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\x85"])
def test_only_a_line_feed_ends_a_line_of_a_file(tmp_path: Path, letter: str) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_text(f'{{"text_input": "a{letter}b"}}\r\n\n{{"text_input": "c"}}', "utf-8")
    assert [ask.prompt for ask in read_lines(path)] == [f"a{letter}b", "c"]


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "asks.jsonl"
    path.write_bytes('{"text_input": "é"}'.encode("latin-1"))
    with pytest.raises(InputsError, match="must be UTF-8"):
        read_lines(path)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--json", "nowhere/b.json"], "--json nowhere/b.json: there is no directory nowhere"),
        (["--plot", "nowhere/b.png"], "--plot nowhere/b.png: there is no directory nowhere"),
        (["--plot", "b.doc"], "--plot b.doc: must end with .png, .svg, .pdf"),
        (["--arrival-seed", "-1"], "--arrival-seed -1: must be 0 or more"),
        (["--rate", "0"], "--rate 0: must be above 0"),
        (["--cv", "101"], "--cv 101: must be between 0 and 100"),
        (["--ttft-limit-ms", "nan"], "--ttft-limit-ms nan: must be above 0"),
        (["--tpot-limit-ms", "-5"], "--tpot-limit-ms -5: must be above 0"),
        (["--json", "."], "--json .: must be a file, and is a directory"),
        (["--continue-final-message", "yes"], "yes: must be true or false"),
    ],
)
def test_an_option_that_can_not_be_used_is_named_before_the_test_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str], reason: str
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", *options])
    with pytest.raises(SystemExit):
        arguments()
    assert reason in capsys.readouterr().err


def test_a_picture_that_nothing_can_draw_is_refused_before_the_test_begins(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "find_spec", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["bench", "--plot", "b.png"])
    with pytest.raises(SystemExit):
        arguments()
    assert "--plot b.png: needs matplotlib" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "value"), [("false", False), ("True", True)])
def test_yes_and_no_are_written_true_and_false(
    monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--continue-final-message", text])
    assert chosen(arguments()) == {"continue_final_message": value}
