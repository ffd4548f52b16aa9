"""The newest regressions predict; whatever is wrong with it, at most a prediction is missing."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from python_backends.nouns.stages import PROMPT_END, TEXT
from python_backends.prediction.regressions import Regressions
from python_backends.prediction.stage_models import StageModels
from python_backends.prediction.state_model import StateModel
from python_backends.prediction.token_counts import LAYER, WIDTH, buckets_of
from python_backends.prediction.versions import CURRENT, Learned, Version, publish

STATE = np.array([1.0, 2.0], np.float32)


def model(weight: float) -> StateModel:
    """Each answer has 100 tokens."""
    lengths = np.full(30, 100.0)
    return StateModel(18, np.array([weight, 0.0]), 0.0, np.log(lengths), lengths, np.ones(30, bool))


def publish_number(directory: Path, number: int, weight: float) -> None:
    publish_models(directory, number, {PROMPT_END: model(weight)})


def publish_models(directory: Path, number: int, models: dict[int, StateModel]) -> None:
    version = Version(number, 0.0, 0.0, 30, "", 30, Learned.REGRESSIONS)
    publish(directory, version, StageModels(models).save)


def test_tokens_are_read_by_their_own_regression(tmp_path: Path) -> None:
    predictor, buckets = Regressions(lambda: tmp_path), buckets_of(np.array([4, 5], np.int32))
    publish_number(tmp_path, 1, 2.0)
    predictor.look()
    assert predictor.read(buckets, 2, 1000).prediction is None
    lengths, weights = np.full(30, 100.0), np.zeros(WIDTH)
    weights[-1] = 2.0  # of the logarithm of the prompt's length
    made = StateModel(LAYER, weights, 0.0, np.log(lengths), lengths, np.ones(30, bool))
    publish_models(tmp_path, 3, {TEXT: made, PROMPT_END: model(2.0)})
    predictor.look()
    found = predictor.read(buckets, 7, 1000)
    assert found.version == 3
    assert found.prediction is not None
    assert found.prediction.mean == pytest.approx(7**2)
    assert predictor.read(buckets, 7, 30).prediction.quantiles.max() == 30  # type: ignore[union-attr]
    assert predictor.predict(STATE, 18, 1000).version == 3


def test_new_versions_are_taken_when_they_come(tmp_path: Path) -> None:
    predictor = Regressions(lambda: tmp_path)
    predictor.look()
    assert predictor.predict(STATE, 18, 1000).prediction is None, "nothing is learned"
    for number, weight in ((1, 2.0), (2, 3.0)):
        publish_number(tmp_path, number, weight)
        predictor.look()
        found = predictor.predict(STATE, 18, 1000)
        assert found.version == number
        assert found.prediction is not None
        assert found.prediction.mean == pytest.approx(np.exp(weight))
        assert found.state is STATE


@pytest.mark.parametrize("state", [np.ones(3, np.float32), np.full(2, np.nan, np.float32)])
def test_a_state_that_is_none_is_not_predicted_from(tmp_path: Path, state: np.ndarray) -> None:
    publish_number(tmp_path, 1, 2.0)
    predictor = Regressions(lambda: tmp_path)
    predictor.look()
    assert predictor.predict(state, 18, 1000).prediction is None
    assert predictor.predict(STATE, 17, 1000).prediction is None, "after another layer"


def test_a_damaged_version_is_told_of_once_and_the_one_before_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    publish_number(tmp_path, 1, 2.0)
    predictor = Regressions(lambda: tmp_path)
    predictor.look()
    publish_number(tmp_path, 2, 3.0)
    (tmp_path / "regressions-000002.npz").write_bytes(b"nonsense")
    with caplog.at_level(logging.WARNING, "gapless.scheduler"):
        predictor.look()
        predictor.look()
    assert len(caplog.records) == 1
    assert predictor.predict(STATE, 18, 1000).version == 1
    (tmp_path / CURRENT[Learned.REGRESSIONS]).write_text("[]")
    predictor.look()
    assert predictor.predict(STATE, 18, 1000).version == 1


def test_weights_that_are_no_numbers_predict_nothing(tmp_path: Path) -> None:
    publish_number(tmp_path, 1, float("nan"))
    predictor = Regressions(lambda: tmp_path)
    predictor.look()
    assert predictor.predict(STATE, 18, 1000).prediction is None
