"""`make stats`: what the log says of the predictions."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from commands import stats
from python_backends.nouns.request import Finish
from python_backends.prediction.place import directory_of
from python_backends.prediction.request_log import RequestLog
from python_backends.prediction.versions import CURRENT, Learned
from python_backends.settings import load
from tests.support.records import record

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[Path, object]:
    overrides = {"prediction.directory": str(tmp_path)}
    directory = directory_of(load(ROOT / "gapless.toml", overrides))
    monkeypatch.setenv("COLUMNS", "150")
    monkeypatch.setattr(sys, "argv", ["stats", "--set", f"prediction.directory={tmp_path}"])

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
    assert "version 7, learned 2023-11-14" in text
    everything, said, sang = (line.split() for line in text.splitlines() if line.startswith("│ "))
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
    assert "nothing has been learned yet" in text
    assert "no predicted answer has ended yet" in text
