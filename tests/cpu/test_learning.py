"""The learner: when it learns, what comes of it, and what becomes of it when something dies."""

from __future__ import annotations

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from python_backends.learner import Learner, lock
from python_backends.nouns.messages import AnswerRecord, AtStage
from python_backends.nouns.request import Finish
from python_backends.nouns.stages import PROMPT_END, TEXT, WRITTEN
from python_backends.prediction import learning, request_log
from python_backends.prediction.forest import Forest, ForestError, Observations, grow
from python_backends.prediction.learning import (
    Fit,
    are_regressions_due,
    is_due,
    learn,
    learn_apart,
    learn_regressions,
    what_is_due,
)
from python_backends.prediction.regressions import Regressions
from python_backends.prediction.request_log import RequestLog, instruction_id
from python_backends.prediction.stage_models import MIN_ANSWERS, StageModels
from python_backends.prediction.token_counts import buckets_of, numbers_of
from python_backends.prediction.versions import CURRENT, KEPT, Learned, Version, current, next_number, publish
from python_backends.settings import ROOT, PredictionSettings
from tests.support.clock import Clock
from tests.support.records import ENCODER, record
from tests.support.server.serving import wait_for

SETTINGS = PredictionSettings(encoder=ENCODER, relearn_s=1.0)


def answers(count: int, factor: int, seed: int = 0) -> list[AnswerRecord]:
    """To inputs of 5 to 50 tokens, `factor` times as long."""
    inputs = np.random.default_rng(seed).integers(5, 50, count)
    return [record(num_input=int(n), num_output=int(factor * n)) for n in inputs]


def expected_mean(directory: Path, num_input: int) -> float:
    version = current(directory)
    assert version is not None
    made = record(num_input=num_input).predicted.features
    assert made is not None
    ids = np.array([instruction_id("Say it")], np.uint64)
    return Forest.load(version.path(directory)).predict(made[None], ids)[0].mean


@pytest.fixture
def log(tmp_path: Path) -> RequestLog:
    return RequestLog(tmp_path, 10_000)


def test_a_first_forest_comes_when_there_is_enough_to_grow_it_from(tmp_path: Path, log: RequestLog) -> None:
    log.add(answers(learning.MIN_OBSERVATIONS - 1, 2))
    assert not is_due(log, ENCODER, None)
    log.add(answers(1, 2))
    assert is_due(log, ENCODER, None)
    version = learn(tmp_path, ENCODER)
    assert version is not None
    assert (version.number, version.num_observations, version.last_id) == (
        1,
        learning.MIN_OBSERVATIONS,
        learning.MIN_OBSERVATIONS,
    )
    assert expected_mean(tmp_path, 30) == pytest.approx(60, abs=6)


def test_another_comes_when_predictions_were_wrong_and_not_before(tmp_path: Path, log: RequestLog) -> None:
    log.add(answers(150, 2))
    version = learn(tmp_path, ENCODER)
    right = [record(num_input=n, num_output=2 * n, mean=2 * n) for n in range(5, 55)]
    log.add(right)
    assert not is_due(log, ENCODER, version)
    log.add(
        [each.changed(num_output_tokens=each.num_output_tokens + 20) for each in right[: learning.MIN_WRONG]]
    )
    assert is_due(log, ENCODER, version)


def test_another_comes_when_twice_as_much_is_known(tmp_path: Path, log: RequestLog) -> None:
    log.add(answers(150, 2))
    version = learn(tmp_path, ENCODER)
    log.add(answers(149, 2))
    assert not is_due(log, ENCODER, version)
    log.add(answers(1, 2))
    assert is_due(log, ENCODER, version)


def test_features_of_another_encoder_are_not_learned_from(tmp_path: Path, log: RequestLog) -> None:
    log.add(answers(150, 2))
    version = learn(tmp_path, ENCODER)
    assert not is_due(log, "LaBSE", version)
    assert learn(tmp_path, "LaBSE") is None


@pytest.mark.usefixtures("one_forest")
def test_what_was_learned_survives_the_learner_and_old_versions_go(tmp_path: Path) -> None:
    first = Learner(SETTINGS, tmp_path, learn_here)
    first.take(answers(150, 2))
    for _ in range(KEPT + 2):
        learn_here(tmp_path, ENCODER)
    first.close()
    second = Learner(SETTINGS, tmp_path, learn_here)
    second.take(answers(10, 2))
    version = current(tmp_path)
    assert version is not None
    assert version.number == KEPT + 2
    assert len(list(tmp_path.glob("forest-*.npz"))) == KEPT
    assert expected_mean(tmp_path, 20) == pytest.approx(40, abs=5)
    second.close()


@pytest.mark.usefixtures("one_forest")
@pytest.mark.parametrize(
    "damage", [None, "", "[]", "{", '{"number": 3}', '{"number": "x"}', "\xff", '{"number": 1e400}']
)
def test_learning_goes_on_when_the_file_that_says_what_counts_is_lost_or_damaged(
    tmp_path: Path, damage: str | None
) -> None:
    log = RequestLog(tmp_path, 10_000)
    log.add(answers(150, 2))
    for _ in range(KEPT + 2):
        learn(tmp_path, ENCODER)
    (tmp_path / CURRENT[Learned.FOREST]).unlink()
    if damage is not None:
        (tmp_path / CURRENT[Learned.FOREST]).write_bytes(damage.encode("latin-1"))
    assert current(tmp_path) is None
    assert is_due(log, ENCODER, current(tmp_path))
    for number in range(KEPT + 3, 2 * KEPT + 4):
        learn(tmp_path, ENCODER)
        version = current(tmp_path)
        assert version is not None
        assert version.number == number
        assert expected_mean(tmp_path, 20) == pytest.approx(40, abs=5)
        assert len(list(tmp_path.glob("forest-*.npz"))) == KEPT


def test_a_version_that_counts_is_kept_whatever_other_files_are_called(tmp_path: Path) -> None:
    """A directory that an older release left: current.json restored from
    a backup, and forests of larger numbers.
    """
    forest = learned(tmp_path)
    for number in (7, 8, 9):
        (tmp_path / f"forest-{number:06}.npz").write_bytes(b"")
    (tmp_path / "forest-mine.npz").write_bytes(b"")
    version = Version(2, 0.0, 0.0, 100, ENCODER, 100)
    publish(tmp_path, version, forest.save)
    assert Forest.load(version.path(tmp_path))
    assert sorted(path.name for path in tmp_path.glob("*.npz")) == [
        *("forest-000002.npz", "forest-000008.npz", "forest-000009.npz", "forest-mine.npz")
    ]
    assert next_number(tmp_path) == 10


def test_a_forest_that_is_gone_is_grown_again(tmp_path: Path) -> None:
    clock = Clock(0.0)
    learner = Learner(SETTINGS, tmp_path, learn_here, clock)
    learner.take(answers(150, 2))
    learn(tmp_path, ENCODER)
    (tmp_path / "forest-000001.npz").unlink()
    clock.now_s += 2
    assert learner.learn_if_due()
    assert expected_mean(tmp_path, 20) == pytest.approx(40, abs=5)
    learner.close()


@pytest.fixture
def one_forest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is grown once: all versions have it."""
    grown: list[Forest] = []

    def once(observations: Observations, seed: int) -> Forest:
        if not grown:
            grown.append(grow(observations, seed))
        return grown[0]

    monkeypatch.setattr(learning, "grow", once)


def learned(directory: Path) -> Forest:
    log = RequestLog(directory, 10_000)
    log.add(answers(150, 2))
    version = learn(directory, ENCODER)
    assert version is not None
    return Forest.load(version.path(directory))


def learn_here(directory: Path, encoder: str) -> Fit:
    code = 0 if learn(directory, encoder) else 1
    return lambda: code


def test_a_version_counts_only_when_its_forest_is_whole(
    tmp_path: Path, log: RequestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner dies while it writes: the version before stays."""
    log.add(answers(150, 2))
    learn(tmp_path, ENCODER)
    monkeypatch.setattr(
        "python_backends.prediction.forest.Forest.save", lambda _, path: path.write_bytes(b"half") and 1 / 0
    )
    with pytest.raises(ZeroDivisionError):
        learn(tmp_path, ENCODER)
    assert expected_mean(tmp_path, 30) == pytest.approx(60, abs=6)


def test_a_forest_that_is_gone_is_an_error_by_name(tmp_path: Path, log: RequestLog) -> None:
    log.add(answers(150, 2))
    version = learn(tmp_path, ENCODER)
    assert version is not None
    version.path(tmp_path).unlink()
    with pytest.raises(ForestError, match="forest-000001"):
        Forest.load(version.path(tmp_path))


def test_it_looks_every_few_minutes_and_later_after_learning_that_failed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s, begun, codes = 0.0, [0.0], [1, -24, 1, 1, 1, 1, 1, 0]

    def failing(directory: Path, encoder: str) -> Fit:
        begun.append(now_s)
        code = codes.pop(0)
        return lambda: code

    learner = Learner(replace(SETTINGS, relearn_s=180.0), tmp_path, failing, lambda: now_s)
    learner.take(answers(150, 2))
    while codes:
        now_s += 60
        was_learned = learner.learn_if_due()
        assert was_learned == (not codes)
    pauses = [(after - before) / 180 for before, after in pairwise(begun)]
    assert pauses == [1, 2, 4, 8, 16, 32, 32, 32]
    assert "learning failed (exit code -24); it is tried again in 720 s" in caplog.text
    learner.close()


def test_the_log_is_kept_while_a_fit_takes_its_time(tmp_path: Path) -> None:
    codes: list[int | None] = [None, None, 0]
    learner = Learner(SETTINGS, tmp_path, lambda *_: lambda: codes.pop(0), iter(range(100)).__next__)
    learner.take(answers(150, 2))
    learned = []
    for _ in range(3):
        learner.take(answers(1, 2))
        learned.append(learner.learn_if_due())
    assert learned == [False, False, True]
    learner.close()


def test_a_fit_is_ended_by_the_processor_time_that_it_has_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel counts it, so a busy machine does not matter. SIGXCPU comes after the time that is left."""
    limits: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr("resource.setrlimit", lambda *limit: limits.append(limit))
    monkeypatch.setattr(learning, "learn_what_is_due", lambda *_: None)
    learning._learn_within(tmp_path, ENCODER)
    assert limits == [(resource.RLIMIT_CPU, (120, 125))]


def with_states(count: int, seed: int = 0, finish: Finish = Finish.STOP) -> list[AnswerRecord]:
    """Without features. The first of four numbers says the length: e to its power."""
    states = np.random.default_rng(seed).normal(4, 1, (count, 4)).astype(np.float32)
    return [
        record(num_output=int(np.exp(state[0]).clip(1)), features=False, finish=finish).changed(
            stages=(AtStage(PROMPT_END, state, 18),)
        )
        for state in states
    ]


def test_hidden_states_are_learned_from_first_and_again_when_there_are_a_tenth_more(
    tmp_path: Path, log: RequestLog
) -> None:
    log.add(with_states(MIN_ANSWERS - 1))
    assert not are_regressions_due(log, None)
    log.add(with_states(400, seed=1))
    assert are_regressions_due(log, None)
    version = learn_regressions(tmp_path)
    assert version is not None
    assert version == current(tmp_path, Learned.REGRESSIONS)
    assert current(tmp_path) is None, "no forest"
    models = StageModels.load(version.path(tmp_path))
    for log_length in (4.0, 4.5):
        found = models.predict(PROMPT_END, np.array([log_length, 4, 4, 4], np.float32), 18, 10_000)
        assert found is not None
        assert found.mean == pytest.approx(np.exp(log_length), rel=0.15)
    log.add(with_states(round(learning.MORE * version.num_observations) - 1, seed=2))
    assert not are_regressions_due(log, version)
    log.add(with_states(1, seed=3))
    assert are_regressions_due(log, version)
    assert not is_due(log, ENCODER, None), "there are no features"


def with_tokens(count: int, seed: int = 0) -> list[AnswerRecord]:
    """Prompts of twelve tokens; one that has the token 7 is answered at length."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(count):
        prompt = generator.integers(100, 200, 12).astype(np.int32)
        prompt[3] = 7 if number % 2 else 8
        buckets = buckets_of(prompt)
        answer = record(num_output=200 if number % 2 else 20, features=False)
        found.append(answer.changed(token_buckets=buckets, num_prompt_tokens=12))
    return found


def test_tokens_of_prompts_are_learned_from_and_again_when_there_are_a_tenth_more(
    tmp_path: Path, log: RequestLog
) -> None:
    log.add([*with_tokens(MIN_ANSWERS - 1), *answers(10, 2)])
    assert not are_regressions_due(log, None)
    log.add(with_tokens(200, seed=1))
    assert what_is_due(log, tmp_path, ENCODER) == [Learned.REGRESSIONS]
    version = learn_regressions(tmp_path)
    assert version is not None
    assert version == current(tmp_path, Learned.REGRESSIONS)
    model = Regressions(lambda: tmp_path)
    model.look()
    found = [
        model.read(buckets_of(np.array([*range(150, 161), last], np.int32)), 12, 1000) for last in (7, 8)
    ]
    long, short = (each.prediction for each in found)
    assert long is not None
    assert short is not None
    assert long.mean > 3 * short.mean
    log.add(with_tokens(learning.MIN_MORE, seed=2))
    assert what_is_due(log, tmp_path, ENCODER) == [Learned.REGRESSIONS]


def test_learning_goes_on_in_a_log_whose_ids_begin_again(log: RequestLog) -> None:
    """The one before was lost, or is an older copy now."""
    forest, regressions = (
        Version(1, 0.0, 0.0, 500, ENCODER, 10**6, each) for each in (Learned.FOREST, Learned.REGRESSIONS)
    )
    log.add(with_tokens(49))
    assert not are_regressions_due(log, regressions)
    log.add(with_tokens(1))
    assert are_regressions_due(log, regressions)
    log.add([record(mean=99)] * (learning.MIN_WRONG - 1))
    assert not is_due(log, ENCODER, forest)
    log.add([record(mean=99)])
    assert is_due(log, ENCODER, forest)


@pytest.mark.parametrize("is_replaced", [False, True])
def test_a_learner_whose_log_is_gone_ends_so_that_another_begins_a_new_one(
    tmp_path: Path, is_replaced: bool
) -> None:
    clock = Clock(0.0)
    learner = Learner(SETTINGS, tmp_path, learn_here, clock)
    learner.take(answers(150, 2))
    shutil.rmtree(tmp_path)
    if is_replaced:
        RequestLog(tmp_path, 10).close()
    clock.now_s += 2
    with pytest.raises(OSError, match=request_log.FILE):
        learner.learn_if_due()
    learner.close()


def test_the_oldest_tokens_are_dropped(log: RequestLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_log, "MAX_KNOWN", 10)
    log.add(with_tokens(18))
    assert (log.num_answers(), log.num_known()) == (18, 10)
    known = log.known(TEXT)
    assert known is not None
    assert known.lengths.tolist() == [200, 20] * 5
    expected = with_tokens(18)[-1].token_buckets
    assert expected is not None
    assert known.states[0].tolist() == numbers_of(expected, 12).tolist()


def test_of_hidden_states_only_those_like_the_newest_are_learned_from(log: RequestLog) -> None:
    """Another version of the code may have taken them after another layer."""
    log.add(with_states(30))
    other = AtStage(PROMPT_END, np.ones(4, np.float32), 20)
    log.add([each.changed(stages=(other,)) for each in with_states(3)])
    known = log.known(PROMPT_END)
    assert known is not None
    assert (len(known), known.layer, known.states.shape) == (3, 20, (3, 4))


def test_the_oldest_hidden_states_are_dropped_and_states_that_are_no_numbers_never_kept(
    log: RequestLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MAX_KNOWN", 10)
    monkeypatch.setattr(request_log, "MAX_WRITTEN", 3)
    log.add(with_states(8))
    broken = AtStage(PROMPT_END, np.array([np.nan, 1, 1, 1], np.float32), 18)
    log.add([each.changed(stages=(broken,)) for each in with_states(5)])
    newest = [
        each.changed(stages=(*each.stages, each.stages[0].changed(stage=WRITTEN[0])))
        for each in with_states(8, seed=1)
    ]
    log.add(newest)
    assert (log.num_answers(), log.num_known()) == (21, 10)
    known, later = log.known(PROMPT_END), log.known(WRITTEN[0])
    assert known is not None
    assert later is not None
    assert known.states[0].tolist() == newest[-1].stages[0].state.tolist()
    assert later.states.tolist() == known.states[:3].tolist()
    assert later.numbers.tolist() == known.numbers[:3].tolist() == [21, 20, 19]


def test_a_log_of_an_older_version_gets_what_it_lacks(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / request_log.FILE) as file:
        file.executescript(request_log._SCHEMA)
        file.execute("INSERT INTO answers (num_output_tokens, ended) VALUES (5, 1)")
    log = RequestLog(tmp_path, 100)
    log.add(with_states(2))
    log.add(with_tokens(1))
    assert (log.num_answers(), log.num_known()) == (4, 3)


def test_a_process_of_its_own_learns_what_is_due_and_nothing_else(tmp_path: Path, log: RequestLog) -> None:
    log.add(with_states(MIN_ANSWERS))
    assert ended(learn_apart(tmp_path, ENCODER)) == 0
    assert current(tmp_path) is None
    assert current(tmp_path, Learned.REGRESSIONS) is not None


def ended(fit: Fit) -> int:
    assert wait_for(lambda: fit() is not None, 120)
    code = fit()
    assert code is not None
    return code


DEAF = """
import signal, sys, time
from pathlib import Path
from python_backends.prediction import learning

learning.learn_what_is_due = lambda *_: time.sleep(600)
if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    learning.learn_apart(Path(), "none")
    sys.exit(1)
"""


def test_a_learner_that_ends_does_not_wait_for_its_fit(tmp_path: Path) -> None:
    """It is started deaf to SIGTERM, and so is the fit."""
    script = tmp_path / "deaf.py"
    script.write_text(DEAF)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, script], env=environment, timeout=60, check=False).returncode == 1


def test_a_fit_in_a_process_of_its_own_is_the_same_forest(tmp_path: Path, log: RequestLog) -> None:
    log.add(answers(150, 2))
    assert ended(learn_apart(tmp_path, ENCODER)) == 0
    apart = expected_mean(tmp_path, 30)
    (tmp_path / "current.json").unlink()
    (tmp_path / "forest-000001.npz").unlink()
    learn(tmp_path, ENCODER)
    assert expected_mean(tmp_path, 30) == apart
    assert json.loads((tmp_path / "current.json").read_text())["fit_s"] > 0


def test_answers_that_were_cut_push_predictions_up_and_are_no_lengths(
    tmp_path: Path, log: RequestLog
) -> None:
    """Half of the answers to long inputs hit the limit of 60 tokens."""
    log.add(
        [*answers(150, 2), *(record(num_input=30, num_output=60, finish=Finish.LENGTH) for _ in range(100))]
    )
    learn(tmp_path, ENCODER)
    assert expected_mean(tmp_path, 30) >= 60


def test_one_directory_has_one_writer(tmp_path: Path) -> None:
    held = lock(tmp_path, lambda: False)
    assert held is not None
    tries = iter([False, True])
    assert lock(tmp_path, lambda: next(tries)) is None
    held.close()
    again = lock(tmp_path, lambda: False)
    assert again is not None
    again.close()
