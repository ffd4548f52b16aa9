"""The study of real prompts' lengths: its regression, its distributions, and its simulated requests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.policies import boosted
from benchmarks.real_lengths.__main__ import SPLITS, Study, write_predictions
from benchmarks.real_lengths.regression import Spread
from benchmarks.real_lengths.scores import Answers, ByRidge, crossed, score
from benchmarks.real_lengths.stages import Stages
from benchmarks.real_lengths.states import CHUNKS, States
from benchmarks.real_lengths.written import Written
from benchmarks.real_prompts.prompts import digest, read_prompts
from benchmarks.scheduling.real_pool import read_real_pool
from benchmarks.scheduling.requests import Source
from benchmarks.scheduling.runs import Machine, Work, simulate
from commands.logged_answers import rank_correlation
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


def test_a_distribution_is_that_of_the_answers_next_to_it() -> None:
    said, lengths = np.arange(400.0), np.repeat([10.0, 1000.0], 200)
    known = Spread.of(said / 1e3, lengths, np.ones(400, bool))
    assert known.near(0.02)[0].max() < 11.0
    assert known.near(0.38)[0].min() > 900.0
    middle, chances = known.near(0.2)
    assert float(middle @ chances) == pytest.approx(505.0, rel=0.05)


def test_the_states_say_what_a_constant_does_not_on_prompts_not_learned_from() -> None:
    answers, states = made_up()
    study = Study(list(range(COUNT)), answers, states)
    ridge = ByRidge(states.ends[:, 0], answers).at(1.0)
    for by in SPLITS.values():
        found = score(crossed(ridge, study.prompts, by), answers)
        assert found.rank_correlation > 0.95
        assert 0.8 < found.covered < 1.0


def test_tokens_of_prompts_say_what_they_can_on_prompts_not_learned_from() -> None:
    """One token goes with long answers, another with short ones."""
    answers, states = made_up()
    random = np.random.default_rng(5)
    middle = np.median(answers.lengths[:, 0])
    tokens = [[*random.integers(100, 200, 10), 7 + (length > middle)] for length in answers.lengths[:, 0]]
    study = Study(list(range(COUNT)), answers, states, tokens)
    case = next(case for case in study._before_the_prompt() if case.name == "tokens of the prompt, as served")
    for split in SPLITS:
        assert study.row(case, split)["rank_correlation"] > 0.5


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
    study = Study(list(range(len(PROMPTS))), answers, states)
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
    errors = []
    for place in range(0, len(pool), 30):
        before, after = pool.prediction(place, Source.STATE), pool.later(place, Source.STATE)
        assert after is not None
        errors.append([abs(said.mean - pool.lengths[place]) for said in (before, after)])
        assert pool.prediction(place, Source.TAIL).mean > before.mean
    assert np.mean(errors, axis=0)[1] < np.mean(errors, axis=0)[0]
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


def test_the_committed_answers_and_predictions_belong_together() -> None:
    pool = read_real_pool()
    assert len(pool) >= 300
    assert pool.lengths.min() >= 1
    assert pool.lengths.max() <= 1024
    errors = [
        np.median(np.abs([pool.prediction(place, source).mean for place in range(len(pool))] - pool.lengths))
        for source in (Source.TRUTH, Source.WORDS)
    ]
    assert errors[0] == 0 < errors[1]


def test_what_a_server_says_while_an_answer_is_written_is_better_where_its_states_tell_more() -> None:
    random = np.random.default_rng(4)
    early, late = random.normal(0, 0.5, (2, COUNT))
    lengths = np.exp(6.0 + early + late).round().clip(1, 2000)
    rows = [
        (number, made) for number in range(COUNT) for made in range(32, 257, 32) if made < lengths[number]
    ]
    prompt, made = np.array(rows, np.int32).T
    newest = random.normal(size=(len(rows), 3)).astype(np.float32)
    newest[:, 0] = (early + late)[prompt]
    written = Written(prompt, made, newest, lengths.astype(np.int32))
    ends = np.hstack([early[:, None], random.normal(size=(COUNT, 2))]).astype(np.float32)
    folds = [np.arange(COUNT) % 4 == part for part in range(4)]
    found = Stages(written, ends, 2000).rows(folds)
    assert [row["after"] for row in found] == [128, 256]
    for row in found:
        assert row["answers"] == np.count_nonzero(lengths > row["after"])
        assert row["with_a_regression"] == 1
        assert row["error"] < 0.8 * row["error_of_the_base"] < row["error_of_a_constant"]
        assert 0.8 < row["covered_0.9"] <= 1
