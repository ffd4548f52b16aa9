"""Engines of others: the how-to's example answers; a module is found where the server was started."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from python_backends.engine.kinds import kind_of
from python_backends.nouns.request import Finish
from python_backends.scheduling.policies import policy_of
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.settings import ROOT, SettingsError, load
from python_backends.settings.setting import FOLDER
from tests.support.scheduling import Instance, request, write_vocabulary


def test_the_engine_of_the_how_to_repeats_the_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "docs/how-to/engine.md").read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "echo.py").write_text(example[1])
    monkeypatch.syspath_prepend(tmp_path)
    settings = load(ROOT / "gapless.toml", {"engine.kind": "echo:KIND", "engine.slots": "2"})
    instance = Instance(write_vocabulary(tmp_path))
    instance.engine = kind_of(settings).make(settings)  # type: ignore[assignment]
    instance.scheduler = SlotScheduler(instance.engine.limits)
    instance.submit(request(1, [5, 6, 7], max_tokens=7))
    instance.submit(request(2, [8], max_tokens=2))
    instance.submit(request(3, [4, 3, 2], stop_ids=(3,)))
    instance.run()
    assert instance.answers == {1: [5, 6, 7, 5, 6, 7, 5], 2: [8, 8], 3: [4, 3]}
    assert instance.finishes == {1: Finish.LENGTH, 2: Finish.LENGTH, 3: Finish.STOP}


def test_make_finds_a_module_where_it_is_called_and_says_in_one_line_what_is_wrong_with_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", "-C", str(ROOT), "serve", "MODEL=bundled", "SET=engine.kind=broken:KIND"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env={**environment, "PWD": str(tmp_path)},  # as a shell sets it
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("gapless: ")]
    assert said == ["gapless: engine.kind = 'broken:KIND': ZeroDivisionError: division by zero"]


def test_what_is_no_policy_is_refused_by_what_it_is() -> None:
    settings = load(ROOT / "gapless.toml", {"scheduling.policy": "json:dumps"})
    assert not settings.predicts_lengths
    with pytest.raises(SettingsError, match=r"^scheduling\.policy = 'json:dumps': must be .* not function$"):
        policy_of(settings.scheduling)


def test_a_module_of_that_folder_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("KIND = 1\n")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    settings = load(ROOT / "gapless.toml", {"engine.kind": "json:JSONDecoder"})
    assert kind_of(settings).make.__module__ == "json.decoder"
