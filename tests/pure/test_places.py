"""Where each instance runs: processors are divided, GPUs are given out in turn, where they suffice."""

from __future__ import annotations

from pathlib import Path

import pytest

from python_backends.launcher.fleets.local import LocalFleet
from python_backends.launcher.fleets.places import VISIBLE, Place, places, visible_gpus
from python_backends.settings import (
    ClusterSettings,
    EngineSettings,
    ModelSettings,
    Settings,
    SettingsError,
    TensorRTLLMSettings,
)
from python_backends.watching.board import Board


def test_a_single_instance_has_all_processors() -> None:
    assert places(1, None, ["0", "1"]) == [Place(None)]
    assert places(1, frozenset({0, 3}), []) == [Place(frozenset({0, 3}))]


def test_several_instances_share_the_processors_and_no_two_have_the_same() -> None:
    found = [place.processors for place in places(3, frozenset(range(8)), [])]
    assert found == [{0, 3, 6}, {1, 4, 7}, {2, 5}]


def test_more_instances_than_processors_take_turns() -> None:
    assert [place.processors for place in places(3, frozenset({4, 5}), [])] == [{4}, {5}, {4}]


def test_gpus_are_given_out_in_turn(tmp_path: Path) -> None:
    found = places(3, frozenset(range(6)), ["0", "2"])
    assert [place.environment[VISIBLE] for place in found] == ["0", "2", "0"]
    for name in ("nvidia2", "nvidia10", "nvidiactl"):
        (tmp_path / name).touch()
    assert visible_gpus({}, tmp_path) == ["0", "1"]
    assert visible_gpus({VISIBLE: "3,1"}, tmp_path) == ["3", "1"]


def on_gpus(directory: Path, engine: EngineSettings, tensor_parallelism: int = 1) -> list[str]:
    """Those of each of two instances."""
    settings = Settings(
        model=ModelSettings(device="cuda"),
        engine=engine,
        tensorrt_llm=TensorRTLLMSettings(tensor_parallelism=tensor_parallelism),
        cluster=ClusterSettings(max_instances=2),
    )
    fleet = LocalFleet(settings, directory, Board(), None)
    return [place.environment[VISIBLE] for place in fleet._places]


def test_where_instances_share_a_gpu_the_memory_of_each_has_to_be_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, "3")
    with pytest.raises(SettingsError, match=r"max_instances = 2, and GPUs here = 1: .*engine\.kv_memory_gib"):
        on_gpus(tmp_path, EngineSettings(kind="torch"))
    assert on_gpus(tmp_path, EngineSettings(kind="torch", kv_memory_gib=4.0)) == ["3", "3"]
    assert on_gpus(tmp_path, EngineSettings(kind="tensorrt_llm")) == ["3", "3"]
    monkeypatch.setenv(VISIBLE, "3,1")
    assert on_gpus(tmp_path, EngineSettings(kind="torch")) == ["3", "1"]


def test_each_instance_has_the_gpus_that_share_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineSettings(kind="tensorrt_llm")
    monkeypatch.setenv(VISIBLE, "0,1,2,3")
    assert on_gpus(tmp_path, engine, tensor_parallelism=2) == ["0,1", "2,3"]
    monkeypatch.setenv(VISIBLE, "0,1,2")
    with pytest.raises(SettingsError, match="4 GPUs are wanted, 2 for each instance; 3 are here"):
        on_gpus(tmp_path, engine, tensor_parallelism=2)
