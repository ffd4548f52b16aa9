"""`make stats`: what the log says of the predictions."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from commands import stats
from python_backends.nouns.messages import AtStage
from python_backends.nouns.request import Finish
from python_backends.nouns.stages import PROMPT_END, WRITTEN
from python_backends.prediction.place import directory_of
from python_backends.prediction.request_log import RequestLog
from python_backends.prediction.versions import CURRENT, Learned
from python_backends.settings import load
from tests.support.records import prediction, record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, object]:
    overrides = {"prediction.directory": str(tmp_path), "model.directory": "models/bundled"}
    directory = directory_of(load(ROOT / "gapless.toml", overrides))
    monkeypatch.setenv("COLUMNS", "150")
    given = [word for name, value in overrides.items() for word in ("--set", f"{name}={value}")]
    monkeypatch.setattr(sys, "argv", ["stats", *given])

    def told() -> tuple[int, str]:
        code = stats.main()
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return directory, told


def test_it_says_how_far_off_predictions_were_and_how_honest(run) -> None:  # type: ignore[no-untyped-def]
    directory, told = run
    log = RequestLog(directory, 100)
    log.add(
        [record("Say it", num_output=20, mean=20, user_input="x")] * 3
        + [record("Sing", num_output=60, mean=20)]
    )
    log.add([record("Sing", num_output=99, mean=20, finish=Finish.LENGTH), record("Sing")])
    log.close()
    (directory / CURRENT[Learned.FOREST]).write_text(
        '{"number": 7, "learned_at_s": 1.7e9, "fit_s": 2.5, "num_observations": 321, "encoder": "packaged",'
        ' "last_id": 1}'
    )
    code, text = told()
    assert code == 0
    assert "forest: version 7, learned 2023-11-14" in text
    assert "regressions: nothing has been learned yet" in text
    stage, everything, said, sang = (line.split() for line in text.splitlines() if line.startswith("│ "))
    assert [cell for cell in stage if cell != "│"] == ["text", "4", "30", "10.0", "10.0", "-", "75%", "75%"]
    assert everything[1:14:2][:1] == ["all"]
    assert [cell for cell in everything if cell != "│"] == [
        "all",
        "4",
        "100%",
        "30",
        "10.0",
        "25%",
        "75%",
        "75%",
    ]
    assert [cell for cell in said if cell != "│"][-3:] == ["0%", "100%", "100%"]
    assert sang[1].startswith("#")
    assert (directory / "stats.svg").stat().st_size > 1000


def test_an_instruction_is_shown_as_it_is_but_for_what_controls_a_terminal(run) -> None:  # type: ignore[no-untyped-def]
    directory, told = run
    log = RequestLog(directory, 100)
    for text in ("[/INST] go on", "[list] of :heart:", "a\x1b[2Jb\nc"):
        log.add([record(text, num_output=20, mean=20, user_input="x")])
    log.close()
    code, text = told()
    assert code == 0
    for shown in ("[/INST] go on", "[list] of :heart:", "a [2Jb c"):
        assert f"│ {shown} " in text


@pytest.mark.parametrize("columns", ["", "80"])
def test_words_of_an_instruction_and_numbers_are_whole(run, columns: str, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    directory, told = run
    log = RequestLog(directory, 100)
    log.add([record("Convert to camelCase: internationalization", num_output=20, mean=20, user_input="x")])
    log.close()
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    else:
        monkeypatch.delenv("COLUMNS")
    code, text = told()
    assert code == 0
    assert "…" not in text
    words = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert "Convert to camelCase: internationalization" in words if not columns else "camelCase:" in words


def at(stage: int, mean: float) -> AtStage:
    return AtStage(stage, np.ones(4, np.float32), 18, prediction(mean), 2)


def test_each_stage_has_its_error_and_its_rank_correlation_and_json_has_every_answer(  # type: ignore[no-untyped-def]
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, told = run
    log = RequestLog(directory, 100)
    for length in (10, 20, 40, 80):
        # the text is wrong about the order, the state is a tenth too much
        stages = (at(PROMPT_END, 1.1 * length), *([at(WRITTEN[0], 81)] if length > 50 else []))
        log.add([record(num_output=length, mean=90 - length).changed(stages=stages)])
    log.add([record(num_output=7, finish=Finish.LENGTH).changed(stages=(at(PROMPT_END, 9),))])
    log.close()
    path = tmp_path / "answers.json"
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--json", str(path)])
    code, text = told()
    assert code == 0
    lines = [[cell for cell in line.split() if cell != "│"] for line in text.splitlines() if "│" in line]
    assert ["text", "4", "38", "50.0", "50.0", "-1.00", "75%", "75%"] in lines
    assert ["prompt", "4", "38", "3.8", "3.8", "1.00", "100%", "100%"] in lines
    assert ["128", "1", "80", "1.0", "1.0", "-", "100%", "100%"] in lines
    listed = json.loads(path.read_text())
    assert [each["length"] for each in listed] == [10, 20, 40, 80, 7]
    assert [each["ended"] for each in listed] == [True] * 4 + [False]
    assert listed[1]["predicted"] == pytest.approx(22)
    assert listed[1]["quantiles"][2] == pytest.approx(22)
    assert listed[1]["text"]["predicted"] == pytest.approx(70)
    assert listed[2]["written"] == {}
    assert listed[3]["written"]["128"]["predicted"] == pytest.approx(81)
    assert listed[4]["text"] == {"predicted": None, "mean": None, "quantiles": None}
    monkeypatch.setattr(sys, "argv", [*sys.argv[:-1], "-"])
    code, text = told()
    assert json.loads(text) == listed


@pytest.mark.parametrize("plot", ["nowhere/stats.svg", "stats.doc"])
def test_a_picture_that_can_not_be_written_costs_nothing_else(  # type: ignore[no-untyped-def]
    run, plot: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, told = run
    log = RequestLog(directory, 100)
    log.add([record("Say it", num_output=20, mean=20)])
    log.close()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--plot", str(tmp_path / plot)])
    code, text = told()
    assert code == 1
    assert "predicted lengths" in text
    assert "no picture: " in text


def test_without_what_draws_pictures_the_tables_are_there(  # type: ignore[no-untyped-def]
    run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installation by pip has no matplotlib."""
    directory, told = run
    log = RequestLog(directory, 100)
    log.add([record("Say it", num_output=20, mean=20)])
    log.close()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, text = told()
    assert code == 0
    assert "predicted lengths" in text
    assert "no picture: `pip install matplotlib`" in text


def test_it_reads_the_environment_as_the_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAPLESS_PREDICTION__DIRECTORY", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["stats"])
    assert stats.main() == 1
    assert str(tmp_path) in capsys.readouterr().err


def test_before_anything_is_logged_it_says_so(run) -> None:  # type: ignore[no-untyped-def]
    directory, told = run
    code, text = told()
    assert code == 1
    assert "requests.sqlite" in text
    RequestLog(directory, 100).close()
    code, text = told()
    assert code == 0
    assert "forest: nothing has been learned yet" in text
    assert "no predicted answer has ended yet" in text
