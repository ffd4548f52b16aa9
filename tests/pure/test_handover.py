"""What the slot scheduler does for a request that moves: what is suspended, lent, reserved and adopted, and
that every count adds up. Whole moves are in test_moves.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from python_backends.engine.protocol import ExportsBlocks
from python_backends.nouns.request import Finish, Ids, Request
from python_backends.nouns.step import Admit
from python_backends.scheduling.handover import RefusedMove
from python_backends.scheduling.state.sequence import Sequence, Status
from python_backends.settings import EngineSettings, ModelSettings, Settings
from tests.support.scheduling import VOCAB, Instance, answer, request, write_vocabulary
from tests.support.toy_engine import TOY, ToyEngine

SIZE = 4  # tokens of a block
NO_TOKENS: Ids = np.zeros(0, np.int32)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vocabulary(tmp_path_factory.mktemp("toy"))


def turns(instance: Instance, count: int) -> None:
    for _ in range(count):
        instance.turn()
        instance.scheduler.check_integrity()


def running(instance: Instance, number: int) -> Sequence:
    sequence = instance.scheduler.find(number)
    assert sequence is not None
    assert sequence.status is Status.RUNNING
    return sequence


def can_leave(instance: Instance, number: int) -> bool:
    sequence = instance.scheduler.find(number)
    is_running = sequence is not None and sequence.status is Status.RUNNING
    return is_running and instance.scheduler.handover.can_leave(sequence)


def is_settled(instance: Instance, sequence: Sequence) -> bool:
    return instance.scheduler.slots.is_settled(sequence.slot)


def reserve(instance: Instance, ask: Request, delivered: Ids = NO_TOKENS) -> Sequence:
    """Raises RefusedMove."""
    sequence = instance.scheduler.new_sequence(ask, delivered, 1)
    instance.scheduler.handover.reserve(sequence)
    return sequence


def move(source: Instance, destination: Instance, ask: Request) -> Sequence:
    """Whole, at once. The sequence at the destination, whose first blocks may have been there."""
    leaving, handover = running(source, ask.request_id), source.scheduler.handover
    coming = reserve(destination, ask, np.array(source.answers[ask.request_id], np.int32))
    handover.suspend(leaving)
    while not is_settled(source, leaving):
        source.turn()
    tokens = handover.tokens(leaving)
    copy(source, leaving, destination, coming, -(-(len(tokens) - 1) // SIZE))
    destination.scheduler.handover.adopt(coming, tokens)
    destination.answers[ask.request_id] = source.answers[ask.request_id]
    source.scheduler.cancel(ask.request_id, 0)
    return coming


def copy(source: Instance, leaving: Sequence, destination: Instance, coming: Sequence, last: int) -> None:
    """The blocks that the destination does not have, up to `last`."""
    first = coming.num_published
    blocks = source.scheduler.handover.lend(leaving, first, last)
    into = destination.scheduler.handover.extend(coming, first, last)
    destination.engine.import_blocks(into, source.engine.export_blocks(blocks))
    source.scheduler.handover.give_back(blocks)


# --- at the source


def test_a_request_can_leave_once_it_has_got_a_token_here(model: Path) -> None:
    source = Instance(model, slots=1)
    source.submit(request(1, [3] * 30, max_tokens=5))
    source.submit(request(2, [3] * 3, max_tokens=5))
    while not source.answers[1]:
        assert not can_leave(source, 1)
        source.turn()
    assert source.scheduler.handover.num_full_blocks(running(source, 1)) == 7
    assert can_leave(source, 1)
    assert not can_leave(source, 2), "it waits"
    source.run()


def test_blocks_of_launched_steps_are_not_read_before_these_are_booked(model: Path) -> None:
    source = Instance(model, depth=3)
    source.submit(request(1, [3] * 15, max_tokens=30))
    while 1 not in source.finishes:
        source.turn()
        if can_leave(source, 1):
            num_full = source.scheduler.handover.num_full_blocks(running(source, 1))
            assert num_full == (15 + len(source.answers[1]) - 1) // SIZE
            assert len(source.launched) == 2 or len(source.answers[1]) > 25


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_held_request_gets_the_tokens_of_launched_steps_and_no_others(depth: int, model: Path) -> None:
    source = Instance(model, depth=depth)
    asks = [request(number, [2 + number] * 6, max_tokens=50) for number in (1, 2)]
    for ask in asks:
        source.submit(ask)
    turns(source, 10)
    suspended = running(source, 1)
    source.scheduler.handover.suspend(suspended)
    in_flight, count = len(source.launched), len(source.answers[1])
    assert is_settled(source, suspended) == (depth == 1)
    turns(source, 9)
    assert is_settled(source, suspended)
    assert len(source.answers[1]) == count + in_flight
    assert not can_leave(source, 1)
    source.scheduler.handover.resume(suspended, 4)
    source.run()
    assert source.answers == {ask.request_id: answer(ask) for ask in asks}


def test_a_request_that_ends_while_it_is_suspended_has_ended(model: Path) -> None:
    source = Instance(model, depth=2)
    source.submit(request(1, [3] * 5, max_tokens=4))
    while len(source.answers[1]) < 3:
        source.turn()
    source.scheduler.handover.suspend(running(source, 1))
    turns(source, 3)
    assert source.finishes == {1: Finish.LENGTH}
    source.run()


def test_a_held_request_is_not_evicted(model: Path) -> None:
    source = Instance(model, slots=3, blocks=26, reserve=lambda sequence: 0)
    asks = [request(number, [number] * 12, max_tokens=60) for number in (1, 2, 3)]
    for ask in asks:
        source.submit(ask)
    turns(source, 6)
    suspended = running(source, 3)
    source.scheduler.handover.suspend(suspended)
    blocks = suspended.blocks[:3].tolist()
    turns(source, 40)
    assert source.scheduler.num_evictions > 0
    assert is_settled(source, suspended)
    assert suspended.blocks[:3].tolist() == blocks
    source.scheduler.handover.resume(suspended, 0)
    source.run()
    assert source.answers == {ask.request_id: answer(ask) for ask in asks}


def test_what_a_copy_reads_is_not_used_again_before_it_is_given_back(model: Path) -> None:
    source = Instance(model, slots=2, blocks=26)
    source.submit(request(1, [3] * 20, max_tokens=40))
    turns(source, 10)
    lent = source.scheduler.handover.lend(running(source, 1), 0, 6)
    before = source.engine.export_blocks(lent).tobytes()
    source.scheduler.cancel(1)
    for number in range(4, 10):
        source.submit(request(number, [number] * 30, max_tokens=40))
    while source.turn():
        sequences = source.scheduler.slots.running()
        assert not set(lent.tolist()) & {block for each in sequences for block in each.blocks.tolist()}
    assert not source.scheduler.is_idle
    assert source.engine.export_blocks(lent).tobytes() == before
    source.scheduler.handover.give_back(lent)
    source.run()


@pytest.mark.parametrize("policy", ["orca", "ours"])
def test_none_is_admitted_into_blocks_that_a_copy_still_reads(model: Path, policy: str) -> None:
    source, ask = Instance(model, blocks=26, policy=policy), request(2, [4] * 60, max_tokens=30)
    source.submit(request(1, [3] * 40, max_tokens=20))
    turns(source, 5)
    lent = source.scheduler.handover.lend(running(source, 1), 0, 10)
    source.scheduler.cancel(1)
    source.submit(ask)
    turns(source, 5)
    assert source.scheduler.num_waiting == 1
    source.scheduler.handover.give_back(lent)
    source.run()
    assert source.answers[2] == answer(ask)
    assert source.scheduler.num_evictions == 0


# --- at the destination


@pytest.mark.parametrize("depth", [1, 2])
def test_the_destination_decodes_at_once_and_prefills_nothing(depth: int, model: Path) -> None:
    source, destination = (Instance(model, depth) for _ in range(2))
    ask = request(1, [3] * 9, max_tokens=30)
    source.submit(ask)
    turns(source, 8)
    move(source, destination, ask)
    plan = destination.scheduler.plan()
    assert plan is not None
    assert plan.num_decodes == len(plan.slots) == 1
    assert plan.first_starts.tolist() == [9 + len(source.answers[1]) - 1]
    assert isinstance(plan.operations[0], Admit)
    assert not destination.scheduler.take_started(), "nothing was found of its prompt, and it did not wait"


def test_a_common_beginning_is_found_at_the_destination_and_not_copied(model: Path) -> None:
    source, destination = (Instance(model) for _ in range(2))
    destination.submit(request(9, [5] * 14, max_tokens=1))
    destination.run()
    ask = request(1, [5] * 13, max_tokens=20)
    coming = reserve(destination, ask)
    assert coming.num_published == 3
    assert destination.scheduler.blocks.num_retained == 0
    with pytest.raises(ValueError, match="between 3 and"):
        destination.scheduler.handover.extend(coming, 2, 4)
    destination.scheduler.handover.drop(coming)
    source.submit(ask)
    turns(source, 4)
    move(source, destination, ask)
    destination.run()
    assert destination.answers[1] == answer(ask)


def test_blocks_that_have_been_copied_are_found_by_others_even_if_the_move_is_dropped(model: Path) -> None:
    source, destination = (Instance(model) for _ in range(2))
    ask, other = (request(number, [5] * 13, max_tokens=30) for number in (1, 2))
    source.submit(ask)
    turns(source, 8)
    coming = reserve(destination, ask)
    copy(source, running(source, 1), destination, coming, 3)
    destination.scheduler.handover.publish(coming, ask.prompt[:12])
    destination.scheduler.handover.drop(coming)
    destination.submit(other)
    destination.turn()
    assert destination.scheduler.take_started()[0].num_prefix_hit_tokens == 12
    destination.run()
    assert destination.answers[2] == answer(other)


def test_a_reservation_is_counted_and_nothing_else_gets_its_slot_or_blocks(model: Path) -> None:
    destination = Instance(model, slots=2, blocks=26)
    coming = reserve(destination, request(1, [3] * 10, max_tokens=40))
    load = destination.scheduler.load()
    assert (load.num_reserved_slots, load.num_running, load.num_slots) == (1, 0, 2)
    assert load.num_used_blocks == 13, "all of its limit: 50 tokens"
    assert not destination.scheduler.is_idle
    for number in range(2, 6):
        destination.submit(request(number, [number] * 5, max_tokens=6))
    while destination.turn():
        assert destination.scheduler.num_running <= 1
    destination.scheduler.handover.drop(coming)
    destination.run()
    assert destination.scheduler.load().num_reserved_slots == 0


def test_a_move_is_refused_where_slots_or_blocks_are_lacking(model: Path) -> None:
    destination = Instance(model, slots=2, blocks=26)
    with pytest.raises(ValueError, match="token id"):
        reserve(destination, request(1, [VOCAB] * 10))
    destination.submit(request(2, [2] * 60, max_tokens=8))
    turns(destination, 1)
    with pytest.raises(RefusedMove, match="memory"):
        reserve(destination, request(1, [3] * 20, max_tokens=40))
    coming = reserve(destination, request(1, [3] * 5, max_tokens=4))
    with pytest.raises(RefusedMove, match="slots"):
        reserve(destination, request(3, [3] * 5, max_tokens=4))
    destination.scheduler.handover.drop(coming)
    destination.run()


def test_a_reservation_without_blocks_for_a_later_round_is_refused_and_stays(model: Path) -> None:
    """While blocks are scarce it gets those of its next token, as a sequence that runs does."""
    destination = Instance(model, blocks=26, policy="ours")
    scheduler = destination.scheduler
    for number in (2, 3):
        destination.submit(request(number, [number] * 25, max_tokens=10))
    destination.turn()
    before = scheduler.load().num_used_blocks
    coming = reserve(destination, request(1, [3] * 4, max_tokens=96))
    assert scheduler.load().num_used_blocks == before + 2
    assert len(scheduler.handover.extend(coming, 0, 5)) == 5
    with pytest.raises(RefusedMove):
        scheduler.handover.extend(coming, 0, 25)
    scheduler.check_integrity()
    assert scheduler.load().num_used_blocks == before + 5
    scheduler.handover.drop(coming)
    destination.run()


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([3] * 5, "must be more than 5"),
        ([3] * 4 + [4, 4], "another request"),
        ([3] * 5 + [VOCAB], f"token id {VOCAB} in the answer so far"),
        ([3] * 5 + [1] * 92, "fewer than 95"),
        ([3] * 5 + [1] * 12, "17 tokens: only 2 blocks were imported"),
    ],
)
def test_tokens_of_another_request_are_not_adopted(tokens: list[int], message: str, model: Path) -> None:
    destination = Instance(model, blocks=26, policy="ours")
    for number in (2, 4):  # blocks are scarce
        destination.submit(request(number, [number] * 25, max_tokens=10))
    destination.turn()
    coming = reserve(destination, request(1, [3] * 5, max_tokens=90))
    with pytest.raises(ValueError, match=message):
        destination.scheduler.handover.adopt(coming, np.array(tokens, np.int32))
    destination.scheduler.handover.drop(coming)
    destination.run()


# --- the toy engine's blocks


def test_a_toy_block_weighs_what_the_settings_say(model: Path) -> None:
    light, heavy = (
        ToyEngine(Settings(model=ModelSettings(str(model)), engine=EngineSettings(TOY, options=options)))
        for options in ("block_bytes=0", "block_bytes=1000")
    )
    assert isinstance(light, ExportsBlocks)
    assert (light.block_bytes, heavy.block_bytes) == (4 * 32, 1000)
    assert light.kv_format != heavy.kv_format
    blocks = np.array([3, 1], np.int32)
    data = heavy.export_blocks(blocks)
    assert data.shape == (2000,)
    heavy.import_blocks(blocks, memoryview(data.tobytes()))
    with pytest.raises(ValueError, match="1999 bytes for 2 blocks of 1000 bytes"):
        heavy.import_blocks(blocks, memoryview(data.tobytes()[1:]))
