"""Each checkpoint has its own log, forests and jobs, whatever path it is mounted at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from python_backends.checkpoint.digests import NUM_SAMPLES, SAMPLE_BYTES
from python_backends.checkpoint.opening import open_source
from python_backends.finetuning.jobs import jobs_directory
from python_backends.prediction.place import directory_of
from python_backends.settings import Settings, load

ROOT = Path(__file__).resolve().parents[3]
WEIGHTS = bytes(range(256)) * 2 * SAMPLE_BYTES


def write_model(directory: Path, weights: bytes = WEIGHTS, hidden: int = 8) -> Path:
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps({"hidden_size": hidden}))
    (directory / "tokenizer.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(weights)
    return directory


def settings_of(model: Path, learned: Path) -> Settings:
    kept = dict.fromkeys(("prediction.directory", "finetuning.directory"), str(learned))
    return load(ROOT / "gapless.toml", {"model.directory": str(model), **kept})


def test_two_models_in_turn_at_the_same_path_are_kept_apart(tmp_path: Path) -> None:
    """As `docker compose` mounts them: both at /model."""
    mounted, places = tmp_path / "model", []
    for hidden in (8, 16, 8):
        write_model(mounted, hidden=hidden)
        places.append(directory_of(settings_of(mounted, tmp_path / "data")))
        places[-1].mkdir(parents=True, exist_ok=True)
        shutil.rmtree(mounted)
    assert places[0] == places[2] != places[1]
    assert [place.parent for place in places] == [tmp_path / "data"] * 3
    assert all(place.name.startswith("model-") for place in places)


@pytest.mark.parametrize("kept", [directory_of, jobs_directory])
def test_a_model_that_is_moved_or_renamed_keeps_what_was_learned_and_its_jobs(
    tmp_path: Path, kept: Callable[[Settings], Path]
) -> None:
    place = kept(settings_of(write_model(tmp_path / "a/qwen"), tmp_path / "data"))
    assert place.name.startswith("qwen-")
    place.mkdir(parents=True)
    shutil.copytree(tmp_path / "a/qwen", tmp_path / "b/renamed")
    renamed = settings_of(tmp_path / "b/renamed", tmp_path / "data")
    assert kept(renamed) == place
    named = place.with_name(place.name.replace("qwen", "renamed"))
    named.mkdir()
    assert kept(renamed) == named, "what is there under its own name goes first"


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "every 3000th byte": lambda data: bytes(value ^ (i % 3000 == 0) for i, value in enumerate(data)),
    "the first byte": lambda data: b"x" + data[1:],
    "the last byte": lambda data: data[:-1] + b"x",
    "the length": lambda data: data + b"x",
    "none of it left": lambda _data: b"",
}


@pytest.mark.parametrize("what", CHANGES)
def test_other_weights_of_the_same_shape_are_another_model(tmp_path: Path, what: str) -> None:
    same, copied = write_model(tmp_path / "one"), write_model(tmp_path / "two")
    other = write_model(tmp_path / "other", CHANGES[what](WEIGHTS))
    first, second, third = (open_source(model).digest() for model in (same, copied, other))
    assert first == second != third


def test_only_samples_of_large_weights_are_read(tmp_path: Path) -> None:
    """A terabyte without content, which no one could hash while a server starts."""
    model = write_model(tmp_path / "large")
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 40)
    assert len(open_source(model).digest()) == 16
    assert NUM_SAMPLES * SAMPLE_BYTES < 1 << 20
