"""What benchmarks keep in files is made again when what it depends on has changed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks.cluster import kept
from benchmarks.common import bundled_prompts
from benchmarks.real_lengths.states import kept_file
from benchmarks.real_prompts.prompts import read_prompts


@dataclass
class Case:
    load: float


def test_the_bundled_models_prompts_and_answers_are_named_by_its_recipe_and_its_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = tmp_path / "recipe", tmp_path / "model"
    monkeypatch.setattr(bundled_prompts, "MADE_FROM", folders)
    names = set()
    for folder in folders:
        folder.mkdir()
    for folder in folders:
        (folder / "file").write_text("1")
        names |= {bundled_prompts.sources(), bundled_prompts.sources()}
    assert len(names) == 2
    monkeypatch.undo()
    assert all(any(each.is_file() for each in folder.iterdir()) for folder in bundled_prompts.MADE_FROM)


def test_states_and_answers_of_real_prompts_are_named_by_the_model_and_the_prompts(tmp_path: Path) -> None:
    prompts, names = read_prompts()[:3], set()
    for weights in (b"1", b"2"):
        (tmp_path / "model.safetensors").write_bytes(weights)
        names |= {kept_file(tmp_path, "states", some, tmp_path) for some in (prompts, prompts[:2], prompts)}
    assert len(names) == 4


def test_runs_of_a_cluster_are_named_by_their_case_and_their_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {kept.file_of(tmp_path, Case(load), "npz") for load in (0.5, 0.9, 0.5)}
    monkeypatch.setattr(kept, "code", lambda: "other")
    names.add(kept.file_of(tmp_path, Case(0.5), "npz"))
    assert len(names) == 3
    monkeypatch.undo()
    assert all(list(kept.ROOT.glob(pattern)) for pattern in kept.CODE)
