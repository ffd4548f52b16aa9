"""The parts of `benchmarks/peers.py` that all engines share."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks import peer_environments
from benchmarks.peer_models import VOCABULARY, make_tokenizer, num_tokens, text_of
from benchmarks.peer_report import Row, ratios, row_of
from benchmarks.peer_work import Job, Timing, Work, closed_loop, load_work
from benchmarks.peers import Peers


class OneTokenAStep:
    """Answers all of its requests with one token a step, and remembers how many it had at once."""

    def __init__(self) -> None:
        self.left: dict[int, int] = {}
        self.most = 0

    def submit(self, index: int, job: Job) -> None:
        self.left[index] = job.max_tokens
        self.most = max(self.most, len(self.left))

    def step(self) -> list[tuple[int, int]]:
        came = [(index, 1) for index in self.left]
        self.left = {index: left - 1 for index, left in self.left.items() if left > 1}
        return came


def test_the_closed_loop_keeps_as_many_in_flight_as_it_may_and_counts_every_token():
    engine, work = OneTokenAStep(), load_work(quick=False)
    timings = closed_loop(work, engine.submit, engine.step)
    assert engine.most == work.in_flight == 16
    assert [len(timing.tokens) for timing in timings] == [job.max_tokens for job in work.jobs]
    assert all(timing.submitted <= timing.tokens[0] <= timing.ended == timing.tokens[-1] for timing in timings)


def test_a_round_has_the_lengths_of_the_others_and_no_prompt_of_theirs():
    work = load_work(quick=False)
    shifted = work.shifted(1, VOCABULARY)
    assert [(len(job.prompt), job.max_tokens) for job in shifted.jobs] == [(len(job.prompt), job.max_tokens) for job in work.jobs]
    assert not any(one.prompt == other.prompt for one, other in zip(work.jobs, shifted.jobs, strict=True))
    assert all(token < VOCABULARY for job in shifted.jobs for token in job.prompt)


def test_every_sequence_of_ids_has_one_text(tmp_path: Path):
    make_tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ids = random.Random(1).choices(range(VOCABULARY), k=500)
    assert tokenizer.encode(text_of(ids)).ids == ids
    assert tokenizer.decode(ids) == text_of(ids)
    assert num_tokens(text_of(ids)) == 500


def test_a_row_is_worked_out_by_hand():
    timings = [Timing(0.0, [1.0, 1.5, 3.0], 3.0), Timing(1.0, [2.0], 5.0)]
    row = row_of("some", "S", "bfloat16", timings, 2.0)
    assert (row.tok_s, row.req_s, row.latency_mean_s, row.itl_p50_ms) == (4 / 5, 2 / 5, 3.5, 1000.0)


def test_ratios_are_ours_over_theirs_and_through_triton_over_alone():
    def row(engine: str, tok_s: float) -> Row:
        return Row(engine, "S", "bfloat16", tok_s, 1, 1, 1, 1, 1, 1, 1)

    found = ratios([row("gapless", 10), row("gapless_triton", 9), row("vllm", 5)])
    assert found == {"S: gapless / vllm": 2.0, "S: gapless_triton / vllm": 1.8, "S: gapless_triton / gapless": 0.9}


def test_an_engine_whose_environment_cannot_be_made_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fails(*_: object) -> None:
        raise subprocess.CalledProcessError(1, ["pip", "install"])

    monkeypatch.setattr(peer_environments, "FOLDER", tmp_path)
    monkeypatch.setattr(peer_environments, "run", fails)
    peers = Peers("S", "bfloat16", Work([], 1), tmp_path)
    peers.start(["openvino", "vllm"])
    assert list(peers.left_out) == ["S: openvino", "S: vllm"]
    assert peers.run(1) == []
    assert not list(tmp_path.rglob("made"))
