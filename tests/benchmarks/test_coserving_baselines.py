"""The baselines that `coserving.py` compares with co-serving do what their names say."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.coserving.__main__ import Result, before_added
from benchmarks.coserving.report import add_shares, medians
from benchmarks.coserving.temporal import Temporal
from benchmarks.results_file import machine
from python_backends.engine.torch.training.pack_run import PackRun
from python_backends.nouns.step import StepPlan
from python_backends.nouns.training import Tile
from tests.cpu.test_coserving import Server
from tests.cpu.test_finetuning import new_job
from tests.support.tiny_models import TinyModel


def test_one_whole_sequence_is_trained_after_so_many_steps(
    one: TinyModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, job = Server(one, tmp_path), new_job(tmp_path, steps=100)
    tiles: list[Tile] = []
    tile = PackRun.backward

    def counted(pack: PackRun, each: Tile) -> None:
        tiles.append(each)
        tile(pack, each)

    monkeypatch.setattr(PackRun, "backward", counted)
    temporal = Temporal(server.engine, server.scheduler.blocks, job, steps=3)  # type: ignore[arg-type]
    lengths = {len(example.ids) for example in job.examples}
    num_layers = len(server.engine.start_training()(job.shape, 1).facts)  # type: ignore[attr-defined]
    plan = StepPlan(
        0,
        (),
        *[np.zeros(1, np.int32)] * 4,
        1,
        np.ones(1, np.bool_),
        np.zeros(0, np.int32),
    )
    for _ in range(2):
        tiles.clear()
        assert [temporal.work(10.0, plan) for _ in range(3)] == [False, False, True]
        assert sum(each.last - each.first for each in tiles) / num_layers in lengths
    tiles.clear()
    assert temporal.work(0.0, None)
    assert sum(each.last - each.first for each in tiles) / num_layers in lengths
    server.close()


def test_shares_are_of_the_same_round() -> None:
    rounds = [
        {
            "serve_only": {"trained_tok_s": 0.0, "busy_share": 0.25, "served_tok_s": 200.0},
            "train_only": {"trained_tok_s": 800.0 * speed, "busy_share": None},
            "train_only_peft": {"trained_tok_s": 400.0 * speed, "busy_share": None},
            "coserving": {"trained_tok_s": 300.0 * speed, "busy_share": 1.0, "served_tok_s": 190.0},
        }
        for speed in (1.0, 0.5, 0.9)
    ]
    for each in rounds:
        add_shares(each)
    rows = {row["mode"]: row for row in medians("light", rounds, 0.05)}
    assert rows["coserving"]["share_of_peft"] == pytest.approx(0.75)
    assert rows["coserving"]["share_of_own"] == pytest.approx(0.5)
    assert rows["coserving"]["served_of_serve_only"] == pytest.approx(0.95)
    assert rows["coserving"]["spread"]["trained_tok_s"] == [150.0, 300.0]
    assert rows["train_only"]["share_of_own"] is None
    assert rows["coserving"]["slo_ms"] == 50.0


def test_no_share_is_told_of_time_that_serving_hardly_leaves() -> None:
    shares = []
    for busy_share in (0.94, 0.96):
        alone = {"trained_tok_s": 100.0}
        served = {"trained_tok_s": 0.0, "served_tok_s": 50.0, "busy_share": busy_share}
        both = {"trained_tok_s": 3.0, "served_tok_s": 50.0}
        round_ = {"serve_only": served, "train_only": alone, "train_only_peft": {**alone}, "coserving": both}
        add_shares(round_)
        shares.append(round_["coserving"]["share_of_own"])
    assert shares == [pytest.approx(0.5), None]


def test_rounds_are_added_to_those_of_the_same_machine_and_type(tmp_path: Path) -> None:
    path = tmp_path / "coserving.json"
    with pytest.raises(ValueError, match="names no file"):
        before_added(path, "float32")
    for name, change in (("dtype", {"dtype": "bfloat16"}), ("machine", {"machine": {"cores": 0}})):
        path.write_text(json.dumps({"dtype": "float32", "machine": machine(), **change}))
        with pytest.raises(ValueError, match=f"is of another {name}"):
            before_added(path, "float32")


def test_a_result_to_which_rounds_were_added_has_the_commits_and_commands_of_all(tmp_path: Path) -> None:
    path = tmp_path / "coserving.json"
    calls = [{"commit": each, "dirty": False, "date": "2026-11-26", "command": "c"} for each in ("a", "b")]
    before = {**calls[1], "dtype": "float32", "machine": machine(), "earlier": calls[:1], "shapes": {}}
    path.write_text(json.dumps(before))
    Result(Namespace(json=path, add=True, dtype="float32")).write()
    assert json.loads(path.read_text())["earlier"] == calls
