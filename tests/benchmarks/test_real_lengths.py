"""The study of real prompts' lengths: its regression, its distributions, and its simulated requests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies import boosted
from benchmarks.real_lengths.__main__ import SPLITS, Study, write_predictions
from benchmarks.real_lengths.regression import Solved, Spread, fit_censored
from benchmarks.real_lengths.scores import Answers, ByRidge, crossed, rank_correlation, score
from benchmarks.real_lengths.states import CHUNKS, States
from benchmarks.real_prompts.prompts import digest, read_prompts
from benchmarks.scheduling.real_pool import read_real_pool
from benchmarks.scheduling.requests import Source
from benchmarks.scheduling.runs import Machine, Work, simulate
from python_backends.nouns.request import ModelLimits
from python_backends.scheduling.lengths.predicted_order import Waits
from python_backends.settings import SchedulingSettings

COUNT, WIDTH = 240, 6
PROMPTS = read_prompts()


def made_up(count: int = COUNT) -> tuple[Answers, States]:
    """Log lengths are a sum of the states, but for a little chance; those above 1,024 are cut."""
    random = np.random.default_rng(3)
    states = random.normal(size=(count, 1, WIDTH)).astype(np.float32)
    logs = 4.5 + states[:, 0] @ np.linspace(-1, 1, WIDTH)
    lengths = np.exp(logs[:, None] + 0.1 * random.normal(size=(count, 3))).round().clip(1)
    counts = random.integers(20, 60, count).astype(np.int32)
    starts = np.repeat(states[:, None], len(CHUNKS), axis=1)
    known = States(states, states, starts, np.ones(count, np.float32), counts, counts)
    return Answers(np.minimum(lengths, 1024.0), lengths <= 1024), known


def test_what_is_said_of_a_row_by_the_others_is_what_they_say_without_it() -> None:
    random = np.random.default_rng(1)
    features, logs = random.normal(size=(40, WIDTH)).astype(np.float32), random.normal(size=40)
    said = Solved.of(features).fit(logs, 1e-6).left_out[7]
    others = np.arange(40) != 7
    assert said == pytest.approx(
        Solved.of(features[others]).fit(logs[others], 1e-6)(features[7:8])[0], abs=1e-4
    )


def test_more_features_than_rows_give_the_same_as_the_primal() -> None:
    random = np.random.default_rng(1)
    features, logs = random.normal(size=(30, 50)), random.normal(size=30)
    x = (features - features.mean(axis=0)) / features.std(axis=0)
    weights = np.linalg.solve(x.T @ x + 5.0 * np.eye(50), x.T @ (logs - logs.mean()))
    assert Solved.of(features.astype(np.float32)).fit(logs, 5.0)(features) == pytest.approx(
        x @ weights + logs.mean(), abs=1e-4
    )


def test_cut_answers_count_as_longer_than_they_were_seen() -> None:
    random = np.random.default_rng(2)
    features = random.normal(size=(400, WIDTH)).astype(np.float32)
    logs = 5.0 + features @ np.linspace(-1, 1, WIDTH) + 0.2 * random.normal(size=400)
    most = random.uniform(3.0, 7.0, 400)
    seen, ended = np.minimum(logs, most), logs <= most
    solved = Solved.of(features)
    plain, censored = (
        np.abs(fit_censored(solved, seen, flags, 1.0)(features) - logs).mean()
        for flags in (np.ones(400, bool), ended)
    )
    assert censored < 0.7 * plain


def test_a_distribution_is_that_of_the_answers_next_to_it() -> None:
    said, lengths = np.arange(400.0), np.repeat([10.0, 1000.0], 200)
    known = Spread.of(said / 1e3, lengths, np.ones(400, bool))
    assert known.near(0.02)[0].max() < 11.0
    assert known.near(0.38)[0].min() > 900.0
    middle, chances = known.near(0.2)
    assert float(middle @ chances) == pytest.approx(505.0, rel=0.05)


def test_the_states_say_what_a_constant_does_not_on_prompts_not_learned_from() -> None:
    answers, states = made_up()
    study = Study(PROMPTS[:COUNT], answers, states)
    ridge = ByRidge(states.ends[:, 0], answers).at(1.0)
    for by in SPLITS.values():
        found = score(crossed(ridge, study.prompts, by), answers)
        assert found.rank_correlation > 0.95
        assert 0.8 < found.covered < 1.0


def test_equal_values_share_their_rank() -> None:
    a, b = np.array([1.0, 2.0, 2.0, 3.0]), np.array([1.0, 2.0, 3.0, 4.0])
    assert rank_correlation(a, b) == pytest.approx(0.9487, abs=1e-4)
    assert np.isnan(rank_correlation(np.ones(4), b))


def test_lengths_of_other_prompts_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "lengths.json"
    path.write_text(json.dumps({"prompts": "another", "lengths": []}))
    with pytest.raises(ValueError, match="prompts: these lengths belong to other prompts"):
        Answers.read(path, PROMPTS)


def test_predictions_become_requests_of_simulated_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Predicted by words, then by the state once the prompt has been computed."""
    answers, states = made_up(len(PROMPTS))
    study = Study(PROMPTS, answers, states)
    ridge = ByRidge(states.ends[:, 0], answers)
    stages = {"history": 1e6, "forest": 1e5, "words": 1e4, "state": 1.0}
    monkeypatch.setattr(
        study.__class__, "stages", lambda _: {name: ridge.at(at) for name, at in stages.items()}
    )
    lengths, predicted = tmp_path / "lengths.json", tmp_path / "predicted.json"
    write_predictions(predicted, study)
    signed = np.where(answers.ended, answers.lengths, -answers.lengths).astype(int).tolist()
    lengths.write_text(json.dumps({"prompts": digest(PROMPTS), "lengths": signed}))
    pool = read_real_pool(lengths, predicted)
    assert pool.lengths[3] == answers.lengths[1, 0]
    before, after = pool.prediction(3, Source.STATE), pool.later(3, Source.STATE)
    assert after is not None
    assert abs(after.mean - pool.lengths[3]) < abs(before.mean - pool.lengths[3])
    assert pool.prediction(3, Source.TAIL).mean > before.mean
    work = Work(pool, np.zeros(12), np.arange(12) * 3, source=Source.STATE)
    limits = ModelLimits(1200, 100, 4, 60, 32)
    served = simulate(limits, SchedulingSettings(), work, Machine.exact([0.02, 0.0, 0.0, 0.0, 0.0]))
    assert (served.counts == pool.lengths[work.places]).all()


def test_a_boost_lets_a_short_request_pass_but_only_so_far() -> None:
    def first(waited_s: list[float], service_s: list[float]) -> int:
        none = np.zeros(len(waited_s))
        return int(boosted(Waits(np.array(waited_s), np.array(service_s), none, none, 0.0)).argmin())

    assert first([5.0, 4.0], [20.0, 1.0]) == 1
    assert first([500.0, 4.0], [20.0, 1.0]) == 0
