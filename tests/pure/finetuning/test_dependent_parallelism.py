"""How LoRA is cut over ranks: the paper's worked values, and that the cheapest forms are exact."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.finetuning.dependent_parallelism import Collective, State, Weight, candidates

T, H, O, R = 5, 8, 12, 3  # noqa: E741


@pytest.mark.parametrize(
    ("states", "elements"),
    [((State.WHOLE, State.CUT), [0, 12, 24, 3072]), ((State.CUT, State.PARTIAL), [0, 12, 3072])],
)
def test_candidates_and_what_they_send(states: tuple[State, State], elements: list[float]) -> None:
    assert [each.elements for each in candidates(*states, 4, 4096, 4096, 16)] == elements


def test_the_cheapest_forms_communicate_nothing() -> None:
    column, row = (
        candidates(*states, 4, 4096, 4096, 16)[0]
        for states in ((State.WHOLE, State.CUT), (State.CUT, State.PARTIAL))
    )
    assert (column.a, column.b) == (Weight.WHOLE, Weight.OUTPUTS)
    assert (row.a, row.b) == (Weight.INPUTS, Weight.WHOLE)
    assert {column.before, column.between, column.after} == {Collective.NONE}
    assert {row.before, row.between, row.after} == {Collective.NONE}


def test_one_rank_sends_nothing() -> None:
    assert all(not each.elements for each in candidates(State.WHOLE, State.CUT, 1, 64, 64, 4))


def test_two_ranks_compute_what_one_does(tmp_path: Path) -> None:
    """Outputs and gradients of both cheapest forms, in float64, over gloo."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    ranks = [
        context.Process(target=_rank, args=(rank, 2, str(tmp_path / "store"), results)) for rank in range(2)
    ]
    for process in ranks:
        process.start()
    errors = [results.get(timeout=120) for _ in ranks]
    for process in ranks:
        process.join()
    assert max(error for found in errors for error in found.values()) <= 1e-13, errors


def _rank(rank: int, n: int, store: str, results: Any) -> None:
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=n)
    draw = np.random.default_rng(0).standard_normal
    x, w, a, b, dy = (torch.from_numpy(draw(size)) for size in ((T, H), (O, H), (R, H), (O, R), (T, O)))
    y, da, db = x @ w.T + (x @ a.T) @ b.T, (dy @ b).T @ x, dy.T @ (x @ a.T)
    dx = dy @ w + dy @ b @ a
    found = {}

    rows = slice(rank * O // n, (rank + 1) * O // n)  # column-parallel: A whole, B cut by outputs
    t = dy[:, rows] @ b[rows]
    mine = {"da": t.T @ x, "dx": dy[:, rows] @ w[rows] + t @ a}
    for each in mine.values():  # dX with the linear's own, dA once a mini-batch
        distributed.all_reduce(each)
    found["column y"] = x @ w[rows].T + (x @ a.T) @ b[rows].T - y[:, rows]
    found["column da"], found["column dx"] = mine["da"] - da, mine["dx"] - dx
    found["column db"] = dy[:, rows].T @ (x @ a.T) - db[rows]

    columns = slice(rank * H // n, (rank + 1) * H // n)  # row-parallel: A cut by inputs, B whole
    u = x[:, columns] @ a[:, columns].T
    sums = {"y": x[:, columns] @ w[:, columns].T + u @ b.T, "db": dy.T @ u}
    for each in sums.values():  # the outputs with the linear's own, dB once a mini-batch
        distributed.all_reduce(each)
    found["row y"], found["row db"] = sums["y"] - y, sums["db"] - db
    found["row da"] = (dy @ b).T @ x[:, columns] - da[:, columns]
    found["row dx"] = dy @ w[:, columns] + (dy @ b) @ a[:, columns] - dx[:, columns]
    results.put({name: float(each.abs().max()) for name, each in found.items()})
    distributed.destroy_process_group()
