"""Paths that the settings name are checked before anything is started."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from python_backends.launcher.paths import check_paths
from python_backends.settings import ROOT, SettingsError, load


def check(**values: str) -> None:
    check_paths(load(ROOT / "gapless.toml", {name.replace("__", "."): text for name, text in values.items()}))


def test_the_defaults_and_what_is_not_made_yet_are_taken(tmp_path: Path) -> None:
    check()
    check(
        prediction__directory=str(tmp_path / "a/b"),
        prediction__encoder=str(tmp_path),
        server__trace_url="http://[::1]:4318/v1/traces",
    )


@pytest.mark.parametrize("url", ["foo", "127.0.0.1:4318", "ftp://a/b", "http://", "http://a:x/"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match=r"server\.trace_url = .*: must be a URL"):
        check(server__trace_url=url)


@pytest.mark.parametrize("name", ["server.model_repository", "prediction.encoder"])
def test_a_directory_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} = '/nonexistent': there is no such directory"):
        check(**{name: "/nonexistent"})


WRITTEN = ["prediction.directory", "front.directory", "finetuning.directory", "adapters.directory"]


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("below", ["", "/model/jobs"])
def test_a_file_in_the_place_of_a_directory_is_refused(tmp_path: Path, name: str, below: str) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(SettingsError, match=f"{name} = '{path}{below}': {path} is not a directory"):
        check(**{name: f"{path}{below}"})


@pytest.mark.parametrize("name", WRITTEN)
def test_a_directory_that_can_not_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    with caplog.at_level(logging.WARNING):
        check(**{name: f"{tmp_path}/a"})
    assert caplog.messages == [
        f"{name} = '{tmp_path}/a': {tmp_path} can't be written, so nothing new is kept there"
    ]


def test_where_nothing_is_trained_adapters_may_lie_on_a_disk_that_is_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    check(adapters__directory=str(tmp_path), finetuning__enabled="false")
    assert caplog.messages == []
