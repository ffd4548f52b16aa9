"""The trial of fused layers, with engines whose steps take as long as the test says."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from python_backends.instance import layer_trial
from python_backends.instance.layer_trial import trials, with_faster_layers
from python_backends.settings import EngineSettings, ModelSettings, Settings
from tests.support.scheduling import write_vocabulary
from tests.support.toy_engine import TOY, ToyEngine


class Engines:
    """Makes toy engines; those with fused layers have another step time."""

    def __init__(self, directory: Path, off_ms: float, on_ms: float) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text("{}")
        model = ModelSettings(str(write_vocabulary(directory)), max_model_tokens=200)
        engine = EngineSettings(kind=TOY, slots=2, kv_blocks=8, block_tokens=32)
        self.settings = Settings(model=model, engine=engine)
        self.step_ms = {"off": off_ms, "on": on_ms}
        self.made: list[str] = []

    def make(self, settings: Settings) -> ToyEngine:
        self.made.append(settings.engine.fused_layers)
        step_ms = self.step_ms[settings.engine.fused_layers]
        return ToyEngine(replace(settings, engine=replace(settings.engine, options=f"step_ms={step_ms}")))

    def chosen(self, layers: str = "layers", **engine: Any) -> str:
        settings = replace(self.settings, engine=replace(self.settings.engine, **engine))
        return with_faster_layers(settings, self.make, layers).engine.fused_layers


@pytest.fixture(autouse=True)
def run_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(layer_trial, "ROOT", tmp_path)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("off_ms", "on_ms", "expected"), [(1.0, 3.0, "off"), (3.0, 1.0, "on")], ids=["they lose", "they win"]
)
def test_the_faster_layers_are_chosen_and_the_result_is_kept(
    tmp_path: Path, off_ms: float, on_ms: float, expected: str
) -> None:
    engines = Engines(tmp_path / "model", off_ms, on_ms)
    assert engines.chosen() == expected
    assert engines.made == ["off", "on"]
    assert engines.chosen() == expected
    assert engines.made == ["off", "on"], "the next start reads the result"
    (path,) = (tmp_path / "run/trials").iterdir()
    kept = json.loads(path.read_text())
    assert kept["chosen"] == expected
    assert (kept["on_ms"] < kept["off_ms"]) == (expected == "on")


def test_other_settings_other_layers_and_a_damaged_result_are_tried_again(tmp_path: Path) -> None:
    engines = Engines(tmp_path / "model", 1.0, 2.0)
    engines.chosen()
    engines.chosen(slots=3)
    assert len(engines.made) == 4
    engines.chosen("layers of a later version")
    assert len(engines.made) == 6
    for path in (tmp_path / "run/trials").iterdir():
        path.write_text("{")
    engines.chosen()
    assert len(engines.made) == 8


def test_engines_are_tried_whatever_length_the_server_is_to_take(tmp_path: Path) -> None:
    """An engine refuses model.max_model_tokens that do not fit its KV blocks, of which a trial has few."""
    engines, made = Engines(tmp_path / "model", 1.0, 2.0), []

    def make(settings: Settings) -> ToyEngine:
        made.append(settings)
        return engines.make(settings)

    long = replace(engines.settings, model=replace(engines.settings.model, max_model_tokens=8192))
    assert with_faster_layers(long, make, "layers").model == long.model
    for each in made:
        assert each.model.max_model_tokens <= each.engine.kv_blocks * each.engine.block_tokens


def test_two_instances_do_not_try_at_the_same_time(tmp_path: Path) -> None:
    engines = Engines(tmp_path / "model", 0.5, 1.0)
    threads = [threading.Thread(target=engines.chosen) for _ in range(2)]
    for thread in threads:
        thread.start()
        time.sleep(0.02)
    for thread in threads:
        thread.join()
    assert engines.made == ["off", "on"], "the second one waited, and read the result"


def test_where_files_cannot_be_locked_none_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(tmp_path / "model", 0.5, 1.0)

    def refuse(lock: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    engines.chosen()
    assert engines.made == ["off", "on"]


def test_where_run_cannot_be_written_the_result_is_beside_the_request_log(
    tmp_path: Path, run_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = Engines(tmp_path / "model", 1.0, 2.0)
    monkeypatch.setattr("os.access", lambda path, mode: path != run_directory)
    settings = replace(
        engines.settings, prediction=replace(engines.settings.prediction, directory=str(tmp_path / "data"))
    )
    assert with_faster_layers(settings, engines.make, "layers").engine.fused_layers == "off"
    assert trials(settings) == tmp_path / "data/trials"
    assert len(list((tmp_path / "data/trials").iterdir())) == 1
