"""The baselines that `coserving.py` compares with co-serving do what their names say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.coserving.report import add_shares, medians
from benchmarks.coserving.temporal import Temporal
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
