"""Where an installed Gapless has its files, and what relative paths mean there."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from python_backends.settings import ROOT, WRITTEN, Settings, SettingsError, folders, load, reading

SECTIONS = dataclasses.fields(Settings)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Returns the folder where the command is given."""
    for module in (folders, reading):
        monkeypatch.setattr(module, "IS_INSTALLED", True)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def test_every_setting_that_says_where_its_path_begins_is_known_as_a_path() -> None:
    sections = {each.name: dataclasses.fields(getattr(Settings(), each.name)) for each in SECTIONS}
    said = {
        (section, each.name)
        for section, declared in sections.items()
        for each in declared
        if "relative to" in str(each.metadata)
    }
    assert len(said) > 5
    assert said <= {(section, name) for section, names in reading.PATHS.items() for name in names}


def test_in_a_checkout_all_is_below_its_folder() -> None:
    assert WRITTEN == ROOT
    assert folders.configuration({}) == ROOT / "gapless.toml"
    assert load(None, {"adapters.directory": "mine"}).adapters_directory == ROOT / "mine"
    assert Settings().finetuning_directory == ROOT / "run/finetuning"


def test_the_state_is_where_xdg_says(tmp_path: Path) -> None:
    assert folders.state({"XDG_STATE_HOME": str(tmp_path)}) == tmp_path / "gapless"
    for environment in ({}, {"XDG_STATE_HOME": ""}, {"XDG_STATE_HOME": "relative"}):
        assert folders.state(environment) == Path.home() / ".local/state/gapless"


def test_the_settings_here_come_before_those_of_the_user(installed: Path, tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert folders.configuration(environment) is None
    (tmp_path / "gapless").mkdir()
    users, here = tmp_path / "gapless/gapless.toml", installed / "gapless.toml"
    users.touch()
    assert folders.configuration(environment) == users
    here.touch()
    assert folders.configuration(environment) == here


def test_a_path_of_the_command_line_begins_where_the_command_is_given(installed: Path) -> None:
    (installed / "model").mkdir()
    given = {"adapters.directory": "mine", "model.directory": "model", "front.api_keys": "keys"}
    settings = load(None, given)
    assert settings.adapters_directory == installed / "mine"
    assert settings.model_directory == installed / "model"
    assert settings.front.api_keys == str(installed / "keys")


@pytest.mark.usefixtures("installed")
def test_a_path_of_a_file_begins_in_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "gapless.toml"
    file.write_text('[adapters]\ndirectory = "mine"\n[finetuning]\ndirectory = "/jobs"\n')
    settings = load(file)
    assert settings.adapters_directory == tmp_path / "mine"
    assert settings.finetuning_directory == Path("/jobs")


@pytest.mark.usefixtures("installed")
def test_defaults_and_names_are_no_paths_of_the_user(tmp_path: Path) -> None:
    """A file of the user may repeat the defaults, as the whole gapless.toml does."""
    file = tmp_path / "gapless.toml"
    file.write_text((ROOT / "gapless.toml").read_text())
    assert load(file) == Settings()
    for name in ("bundled", "auto", "org/name"):
        assert load(None, {"model.directory": name}).model.directory == name


@pytest.mark.usefixtures("installed")
def test_a_path_of_a_wrong_type_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "gapless.toml"
    file.write_text("[adapters]\ndirectory = 5\n")
    with pytest.raises(SettingsError, match=r"^adapters\.directory = 5: must be of type str$"):
        load(file)
    file.write_text("[adapter]\ndirectory = 'x'\n")
    with pytest.raises(SettingsError, match=r"^adapter: must be a section"):
        load(file)
