"""Which model is served where none is named."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from commands.model import located
from front.model import defaults
from python_backends.checkpoint import brought
from python_backends.settings import ROOT, Settings, SettingsError


def of(directory: str) -> Settings:
    settings = Settings()
    return replace(settings, model=replace(settings.model, directory=directory))


def test_it_is_the_packages_file_and_nothing_of_the_package_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / brought.PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('its code is run')")
    (package / brought.FILE).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert located(Settings()).model_directory == package / brought.FILE


@pytest.mark.parametrize("package", ["no_such_package", "json"])
def test_without_the_package_or_its_file_the_small_one_is_served_and_the_start_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, package: str
) -> None:
    monkeypatch.setattr(brought, "PACKAGE", package)
    with caplog.at_level(logging.INFO, "gapless"):
        assert located(Settings()).model_directory == ROOT / "models/bundled"
    (line,) = caplog.messages
    assert "SmolLM2-135M-Instruct is not installed; `build/set-up smollm2`" in line


def test_the_small_one_has_a_name(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "gapless"):
        assert located(of("bundled")).model_directory == ROOT / "models/bundled"
    assert caplog.messages == []


def test_an_empty_name_is_no_model() -> None:
    with pytest.raises(SettingsError, match=r"model\.directory is empty"):
        located(of(""))


def test_its_most_probable_tokens_are_taken_where_a_request_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brought, "smollm2", lambda: tmp_path / "it.gguf")
    assert defaults({**brought.sampling(tmp_path / "it.gguf"), "eos_token_id": [2]}) == brought.SAMPLING
    assert defaults(dict(brought.sampling(tmp_path))) == {"temperature": 1.0}
