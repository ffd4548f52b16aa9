"""A trained adapter comes into the directory of adapters once, as the newest version, and replaces none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from python_backends.finetuning import publish


@pytest.fixture
def job(tmp_path: Path) -> Any:
    """With an adapter that was exported before."""
    made = SimpleNamespace(
        directory=tmp_path / "job", options={"suffix": "law"}, events=[], held_out_losses=[]
    )
    made.say = lambda message, level: made.events.append((level, message))
    write(made.directory / "adapter", b"trained")
    return made


def write(directory: Path, weights: bytes) -> None:
    directory.mkdir(parents=True)
    (directory / "adapter_config.json").write_text("{}")
    (directory / "adapter_model.safetensors").write_bytes(weights)


def test_it_is_the_newest_version_and_is_published_once(job: Any, tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    assert publish.finish(job, adapters) == "law@1"
    assert publish.finish(job, adapters) == "law@1", "after a crash before the job ended"
    write(adapters / "law" / "9", b"of others")
    (job.directory / "adapter" / "adapter_model.safetensors").write_bytes(b"trained again")
    assert publish.finish(job, adapters) == "law@10"
    assert (adapters / "law" / "10" / "adapter_model.safetensors").read_bytes() == b"trained again"
    assert job.events == []


def test_one_that_equals_an_old_version_is_the_newest_nevertheless(job: Any, tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    write(adapters / "law" / "1", b"trained")
    write(adapters / "law" / "2", b"of others")
    assert publish.finish(job, adapters) == "law@3"
    assert publish.finish(job, adapters) == "law@3", "after a crash before the job ended"


def test_without_a_directory_nothing_is_published(job: Any) -> None:
    assert publish.finish(job, None) == ""


def test_it_is_published_only_if_the_loss_of_held_out_examples_has_fallen(job: Any, tmp_path: Path) -> None:
    for before, after in ((1.5, 1.75), (1.5, 1.5), (1.5, float("nan"))):
        job.held_out_losses = [before, after]
        assert publish.finish(job, tmp_path / "adapters") == ""
    said = "the adapter is not served: the loss of the held-out examples was 1.5 before, and is 1.75"
    assert job.events[0] == ("warn", said)
    assert not (tmp_path / "adapters").exists()
    job.held_out_losses = [1.5, 1.25]
    assert publish.finish(job, tmp_path / "adapters") == "law@1"


def test_an_adapter_without_versions_is_not_replaced_and_the_job_says_so(job: Any, tmp_path: Path) -> None:
    write(tmp_path / "adapters" / "law", b"of others")
    assert publish.finish(job, tmp_path / "adapters") == ""
    assert job.events == [
        ("warn", f"the adapter is not served: {tmp_path}/adapters/law is an adapter without versions")
    ]
    assert (tmp_path / "adapters/law/adapter_model.safetensors").read_bytes() == b"of others"


def test_a_broken_version_is_another_one_and_keeps_no_adapter_from_being_served(
    job: Any, tmp_path: Path
) -> None:
    adapters = tmp_path / "adapters"
    (adapters / "law" / "1").mkdir(parents=True)  # half copied
    write(adapters / "law" / "2", b"trained")
    (adapters / "law" / "2" / "adapter_config.json").unlink()
    (adapters / "law" / "3" / "adapter_model.safetensors").mkdir(parents=True)
    (adapters / "law" / "4").write_text("a file")
    (adapters / "law" / "5").symlink_to("nowhere")
    assert publish.finish(job, adapters) == "law@6"
    assert publish.finish(job, adapters) == "law@6"
    assert job.events == []


def test_other_settings_with_the_same_weights_are_another_version(job: Any, tmp_path: Path) -> None:
    adapters = tmp_path / "adapters"
    write(adapters / "law" / "1", b"trained")
    (adapters / "law" / "1" / "adapter_config.json").write_text('{"lora_alpha": 1}')
    assert publish.finish(job, adapters) == "law@2"


def test_after_the_largest_number_there_is_none(job: Any, tmp_path: Path) -> None:
    (tmp_path / "adapters" / "law" / ("9" * 18)).mkdir(parents=True)
    assert publish.finish(job, tmp_path / "adapters") == ""
    assert "no version can come after" in job.events[0][1]
