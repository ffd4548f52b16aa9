"""The device's slot state: operations in order, append and stop detection for all rows at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from python_backends.engine.slots.columns import Column, Share
from python_backends.engine.slots.slot_state import SlotState
from python_backends.nouns.request import Finish, ModelLimits, Sampling
from python_backends.nouns.step import Admit, Grow, Release
from python_backends.text.door.table import FIELDS

LIMITS = ModelLimits(max_model_tokens=40, vocab_size=100, num_slots=4, num_blocks=40, block_tokens=4)


@pytest.fixture
def state() -> SlotState:
    return SlotState(LIMITS, torch.device("cpu"))


def _admit(slot: int, prompt: int, outputs: int = 0, first_block: int = 0, **sampling: object) -> Admit:
    blocks = np.arange(first_block, first_block + 3, dtype=np.int32)
    return Admit(slot, 1, Sampling(**{"max_tokens": 10} | sampling), prompt, outputs, blocks)  # type: ignore[arg-type]


def _append(state: SlotState, slots: list[int], tokens: list[int]) -> tuple[list[int], list[int]]:
    out, finishes = state.append(torch.tensor(slots), torch.tensor(tokens))
    return out.tolist(), finishes.tolist()


def test_the_next_input_is_the_token_just_appended(state: SlotState) -> None:
    state.apply([_admit(2, prompt=5), _admit(0, prompt=9)])
    _append(state, [0, 2], [77, 55])
    tokens, positions = state.decode_inputs(torch.tensor([2, 0]))
    assert (tokens.tolist(), positions.tolist()) == ([55, 77], [5, 9])


def test_rows_end_by_stop_id_by_max_tokens_and_by_the_models_length(state: SlotState) -> None:
    state.apply(
        [_admit(0, 5, stop_ids=(7, 8)), _admit(1, 5, outputs=9), _admit(2, 39), _admit(3, 5, stop_ids=(9,))]
    )
    assert _append(state, [0, 1, 2, 3], [8, 7, 7, 7])[1] == [
        Finish.STOP,
        Finish.LENGTH,
        Finish.LENGTH,
        Finish.RUNNING,
    ]


def test_a_stop_id_at_the_last_token_is_a_stop(state: SlotState) -> None:
    state.apply([_admit(0, 5, outputs=9, stop_ids=(7,))])
    assert _append(state, [0], [7])[1] == [Finish.STOP]


def test_a_row_that_ended_stays_as_it_is(state: SlotState) -> None:
    state.apply([_admit(1, 5, stop_ids=(7,))])
    _append(state, [1], [7])
    assert _append(state, [1], [3]) == ([0], [Finish.RUNNING])
    tokens, positions = state.decode_inputs(torch.tensor([1]))
    assert (tokens.tolist(), positions.tolist()) == ([7], [5])


def test_blocks_of_admissions_and_growth_stand_in_the_table_row(state: SlotState) -> None:
    state.apply([_admit(3, 5, first_block=10), Grow(3, 1, 3, np.array([30, 31], np.int32))])
    state.apply([Grow(3, 1, 5, np.array([32], np.int32))])
    assert state.table[3, :6].tolist() == [10, 11, 12, 30, 31, 32]


def test_of_several_lives_of_a_slot_in_one_plan_the_last_counts(state: SlotState) -> None:
    state.apply([_admit(0, 5, stop_ids=(1,))])
    grow = Grow(0, 1, 3, np.array([9], np.int32))
    state.apply(
        [
            grow,
            Release(0, 1),
            _admit(0, 20, first_block=4, stop_ids=(2, 3, 4)),
            Grow(0, 2, 3, np.array([8], np.int32)),
        ]
    )
    assert state.table[0, :4].tolist() == [4, 5, 6, 8]
    assert state.decode_inputs(torch.tensor([0]))[1].tolist() == [19]
    assert _append(state, [0], [1])[1] == [Finish.RUNNING]
    assert _append(state, [0], [4])[1] == [Finish.STOP]


def test_a_released_slot_appends_nothing(state: SlotState) -> None:
    state.apply([_admit(0, 5)])
    state.apply([Release(0, 1)])
    assert _append(state, [0], [9]) == ([0], [Finish.RUNNING])


def test_a_new_tenant_inherits_no_stop_ids(state: SlotState) -> None:
    state.apply([_admit(0, 5, stop_ids=(1, 2, 3))])
    state.apply([Release(0, 1), _admit(0, 5, stop_ids=(4,))])
    assert _append(state, [0], [2])[1] == [Finish.RUNNING]


# --- what a request asks for is where the sampler looks for it


def test_every_fraction_is_in_its_own_column(state: SlotState) -> None:
    """`Share` and `_shares` have the same order."""
    asked = [
        next(name for name in Sampling.__struct_fields__ if name.startswith(share.name.lower()))
        for share in Share
    ]
    values = {name: (1 + place) / 8 for place, name in enumerate(asked)}
    state.apply([_admit(2, 5, **values)])
    assert state._sampling.shares[2].tolist() == list(values.values())


def test_every_whole_number_is_in_its_own_column(state: SlotState) -> None:
    """`Column` and `_row` have the same order."""
    state.apply([_admit(1, 5, outputs=3, min_tokens=4, seed=11, top_k=6)])
    assert dict(zip(Column, state._counts[1].tolist(), strict=True)) == {
        Column.LAST_TOKEN: 0,
        Column.LENGTH: 8,
        Column.OUTPUTS: 3,
        Column.MAX_LENGTH: 15,
        Column.MIN_TOKENS: 4,
        Column.SEED: 11,
        Column.TOP_K: 6,
        Column.ENDED: 0,
    }


@pytest.mark.parametrize("field", [name for name, field in FIELDS.items() if field.sampling])
def test_the_host_knows_that_a_slot_asks_for_a_field(field: str) -> None:
    """What it does not know of is left out. Fractions and numbers are 1 or half of the default."""
    name, default = FIELDS[field].sampling, FIELDS[field].default
    asks = {name: True if default is False else default / 2 or 1}
    plain = {} if name == "temperature" else {"temperature": 1.0}
    assert _flags(**plain | asks) != _flags(**plain)


def _flags(**sampling: object) -> dict[str, list[int]]:
    state = SlotState(LIMITS, torch.device("cpu"))
    state.apply([_admit(0, 5, stop_ids=(7,), **sampling)])
    return {name: values.tolist() for name, values in vars(state._sampling._asked).items()}


@pytest.mark.parametrize("seed", range(20))
def test_steps_that_are_booked_together_give_what_each_by_itself_gives(seed: int) -> None:
    """Random steps: the same rows for a while, then others; admissions and
    growth in between; stop ids come up by chance.
    """
    together, each = (SlotState(LIMITS, torch.device("cpu")) for _ in range(2))
    chance = np.random.default_rng(seed)
    slots = torch.tensor([0])
    run = 0
    for step in range(200):
        if step == 0 or chance.random() < 0.1:
            slot = int(chance.integers(4))
            operations = [
                _admit(
                    slot,
                    int(chance.integers(1, 30)),
                    max_tokens=int(chance.integers(2, 12)),
                    stop_ids=(7,) * (slot % 2),
                )
            ]
            together.apply(operations)
            each.apply(operations)
            slots = torch.from_numpy(chance.permutation(4)[: chance.integers(1, 5)])
            run += 1
        tokens = torch.from_numpy(chance.integers(0, 20, len(slots)))
        appended = [values.tolist() for values in together.append_plain(run, slots, tokens.numpy())]
        assert appended == [values.tolist() for values in each.append(slots.clone(), tokens)]
        if chance.random() < 0.1:
            assert all(map(torch.equal, together.decode_inputs(slots), each.decode_inputs(slots)))
            assert np.array_equal(together.last_tokens, each.last_tokens)
