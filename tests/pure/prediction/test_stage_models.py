"""A regression for each stage, learned from the same answers; while an answer is written, of what is still to
come.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from python_backends.nouns.request import Floats
from python_backends.nouns.stages import PROMPT_END, READ_EVERY, TEXT, WRITTEN, is_read, until_read
from python_backends.prediction.read_states import ReadStates
from python_backends.prediction.stage_models import MIN_ANSWERS, StageModels, learned_stages
from python_backends.prediction.state_model import CENTRES, KnownStates, StateModelError

LAYER, HIDDEN, MOST = 16, 8, 4000
STAGE = WRITTEN[0]


def known(count: int, says: float = 1.0, seed: int = 0) -> dict[int, KnownStates]:
    """Answers of which half of the log length is in the first number at the prompt's end, and all of it,
    `says` times, in the second one while they are written.
    """
    generator = np.random.default_rng(seed)
    early, late = generator.normal(0, 0.7, (2, count))
    lengths = np.exp(np.log(300) + early + late).round().clip(1).astype(np.float32)
    at_end, written = generator.normal(0, 1, (2, count, HIDDEN)).astype(np.float32)
    at_end[:, 0], written[:, 1] = early, says * (early + late) + (1 - says) * written[:, 1]
    numbers, ended = np.arange(count), np.ones(count, bool)
    longer = np.flatnonzero(lengths > STAGE)[::-1]
    return {
        TEXT: KnownStates(0, at_end, lengths, ended, numbers),
        PROMPT_END: KnownStates(LAYER, at_end, lengths, ended, numbers),
        STAGE: KnownStates(LAYER, written[longer], lengths[longer], ended[longer], numbers[longer]),
    }


def errors(models: StageModels, asked: dict[int, KnownStates]) -> tuple[float, float]:
    """Mean of |log| of predicted to true tokens still to come: by the stage, and by its base."""
    later, at_end = asked[STAGE], asked[PROMPT_END].states
    found = []
    for number, state, length in zip(later.numbers, later.states, later.lengths, strict=True):
        told = models.predict(STAGE, state, LAYER, MOST)
        said = models.models[PROMPT_END].log_length(at_end[number], LAYER)
        assert told is not None
        assert said is not None
        assert told.is_sane
        assert told.quantiles.min() > STAGE
        medians = float(told.quantiles[2]) - STAGE, models.models[PROMPT_END].to_come(said, STAGE)
        found.append([abs(np.log(each / (length - STAGE))) for each in medians])
    stage, base = np.mean(found, axis=0).tolist()
    return stage, base


def test_a_stage_knows_more_than_what_was_said_at_the_prompts_end() -> None:
    models = learned_stages(known(800))
    assert set(models.models) == {TEXT, PROMPT_END, STAGE}
    stage, base = errors(models, known(300, seed=1))
    assert stage < 0.75 * base


def test_its_quantiles_cover_what_they_promise() -> None:
    models, asked = learned_stages(known(800)), known(400, seed=2)
    later = asked[STAGE]
    told = [models.predict(STAGE, state, LAYER, MOST) for state in later.states]
    quantiles = np.stack([each.quantiles for each in told if each is not None])
    covered = (later.lengths[:, None] <= quantiles).mean(axis=0)
    assert 0.4 < covered[2] < 0.6
    assert 0.84 < covered[4] < 0.96


def test_a_stage_that_says_nothing_has_no_regression() -> None:
    """Nor has one of which few answers are known, or which were not read at the prompt's end."""
    assert STAGE not in learned_stages(known(800, says=0.0)).models
    few = known(800)
    few[STAGE] = known(round(1.5 * MIN_ANSWERS))[STAGE]
    assert len(few[STAGE]) > 0
    assert STAGE not in learned_stages(few | {STAGE: _first(few[STAGE], MIN_ANSWERS - 1)}).models
    others = known(800)
    others[STAGE] = _renamed(others[STAGE], 10_000)
    assert STAGE not in learned_stages(others).models
    assert learned_stages({TEXT: _first(few[TEXT], MIN_ANSWERS - 1)}).models == {}


def _first(all_of: KnownStates, count: int) -> KnownStates:
    columns = (all_of.states, all_of.lengths, all_of.ended, all_of.numbers)
    return KnownStates(all_of.layer, *(each[:count] for each in columns))


def _renamed(all_of: KnownStates, by: int) -> KnownStates:
    return KnownStates(all_of.layer, all_of.states, all_of.lengths, all_of.ended, all_of.numbers + by)


def test_a_stage_says_nothing_of_states_that_it_was_not_learned_from() -> None:
    models, state = learned_stages(known(400)), np.zeros(HIDDEN, np.float32)
    assert models.predict(STAGE, state, LAYER, MOST) is not None
    assert models.predict(STAGE, state, LAYER + 1, MOST) is None
    assert models.predict(STAGE, state[1:], LAYER, MOST) is None
    assert models.predict(STAGE, np.full(HIDDEN, np.nan, np.float32), LAYER, MOST) is None
    assert models.predict(WRITTEN[1], state, LAYER, MOST) is None, "not learned"
    short = models.predict(STAGE, state, LAYER, STAGE + 2)
    assert short is not None
    assert short.quantiles.max() <= STAGE + 2


def test_they_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    models, path = learned_stages(known(400)), tmp_path / "models.npz"
    models.save(path)
    again = StageModels.load(path)
    assert set(again.models) == set(models.models)
    assert [len(again.models[stage].centres) for stage in (TEXT, PROMPT_END, STAGE)] == [0, CENTRES, 0]
    assert errors(again, known(50, seed=3)) == errors(models, known(50, seed=3))


@pytest.mark.parametrize("missing", ["weights", "logs", "centres", "scale"])
def test_a_file_that_lacks_what_its_regression_needs_is_refused(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "models.npz"
    learned_stages(known(400)).save(path)
    with np.load(path) as arrays:
        kept = {name: values for name, values in arrays.items() if not name.endswith(f".{missing}")}
    with path.open("wb") as file:
        np.savez(file, **kept)
    with pytest.raises(StateModelError, match=r"models\.npz: "):
        StageModels.load(path)


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"PK\x03\x04"])
def test_a_file_that_is_none_is_refused_in_one_line(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "models.npz"
    path.write_bytes(damage)
    with pytest.raises(StateModelError, match=r"models\.npz: "):
        StageModels.load(path)


def test_a_file_without_a_regression_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "models.npz").open("wb") as file:
        np.savez(file, weights=np.zeros(3))
    with pytest.raises(StateModelError, match="no regression"):
        StageModels.load(tmp_path / "models.npz")


# --- which states are read, and what becomes of them


def test_a_state_is_read_after_each_so_many_tokens_until_the_last_stage() -> None:
    read = [each for each in range(2000) if is_read(np.array([each], np.int32))[0]]
    assert read == list(range(0, WRITTEN[-1] + 1, READ_EVERY))
    assert until_read(np.array([5, 30], np.int32)) == READ_EVERY - 30
    assert until_read(np.array([0], np.int32)) == 0
    assert until_read(np.array([WRITTEN[-1] + 1], np.int32)) > 10**6
    assert until_read(np.zeros(0, np.int32)) > 10**6


def state(*numbers: float) -> Floats:
    return np.array(numbers, np.float32)


def test_a_stage_has_the_mean_of_the_states_since_the_prompt() -> None:
    states = ReadStates()
    assert states.add(0, state(7, 7)) is not None
    found = [states.add(each, state(each, 1)) for each in range(READ_EVERY, STAGE + 1, READ_EVERY)]
    assert [each is not None for each in found] == [False] * (len(found) - 1) + [True]
    assert found[-1].tolist() == [STAGE / 2 + READ_EVERY / 2, 1]  # type: ignore[union-attr]


def test_states_that_are_computed_again_after_a_restart_do_not_count_twice() -> None:
    states = ReadStates()
    for each in (0, READ_EVERY, 2 * READ_EVERY, READ_EVERY, 2 * READ_EVERY):
        states.add(each, state(each))
    for each in range(3 * READ_EVERY, STAGE, READ_EVERY):
        states.add(each, state(each))
    assert states.add(STAGE, state(STAGE)).tolist() == [STAGE / 2 + READ_EVERY / 2]  # type: ignore[union-attr]


def test_a_state_that_comes_after_later_ones_counts_at_the_next_stage() -> None:
    """Of a request that has moved, the source may be heard after the destination."""
    late, states = STAGE - READ_EVERY, ReadStates()
    order = [each for each in range(0, WRITTEN[1], READ_EVERY) if each != late]
    order.insert(order.index(STAGE + READ_EVERY) + 1, late)
    found = [states.add(each, state(each)) for each in order]
    assert all(each is None for each in found[1:])
    assert states.add(WRITTEN[1], state(WRITTEN[1])).tolist() == [WRITTEN[1] / 2 + READ_EVERY / 2]  # type: ignore[union-attr]


def test_a_stream_that_began_in_the_middle_of_its_answer_reaches_no_stage() -> None:
    states = ReadStates()
    for each in range(2 * READ_EVERY, WRITTEN[1] + 1, READ_EVERY):
        assert states.add(each, state(each)) is None
    states = ReadStates()
    states.add(0, state(0))
    for each in range(2 * READ_EVERY, WRITTEN[1] + 1, READ_EVERY):
        assert states.add(each, state(each)) is None
