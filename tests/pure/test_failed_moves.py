"""What becomes of a request whose move ends before its time, case by case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from python_backends.moving.copier import Copier
from python_backends.nouns.messages import Cancel
from python_backends.nouns.moves import MoveOut
from python_backends.nouns.request import Feedback, Finish
from python_backends.scheduling.handover import Handover, RefusedMove
from python_backends.scheduling.state.sequence import Sequence
from tests.support.moving import SIZE, STEP_S, Front, World, model, order_to_move, two
from tests.support.scheduling import answer, request
from tests.support.shuffle import SHUFFLE

__all__ = ["model"]  # a fixture


def copy_slowly(world: World) -> None:
    """All take a turn but the copiers."""
    world.tick()
    world.front.turn()
    for host in world.hosts:
        host.turn()


def by_length(world: World) -> None:
    world.until(lambda: world.num_tokens(1) > 80)


def by_deadline(world: World) -> None:
    stream = world.front.table.find(1)
    assert stream is not None
    stream.request = stream.request.changed(deadline_ns=int(world.network.now_s * 1e9 + 20 * STEP_S * 1e9))


def by_stop_word(world: World) -> None:
    world.front.table.feedback(Feedback(1, world.num_tokens(1), stopped_at=5, answered=True))


def by_client(world: World) -> None:
    world.front.table.feedback(Feedback(1, 0, gone=True))


@pytest.mark.parametrize(
    ("end", "finish"),
    [
        (by_length, Finish.LENGTH),
        (by_deadline, Finish.DEADLINE),
        (by_stop_word, Finish.STOP),
        (by_client, Finish.CANCELLED),
    ],
)
def test_a_request_that_ends_while_its_blocks_are_copied_leaves_nothing(
    end: Callable[[World], None], finish: Finish
) -> None:
    world = two()
    if end is by_length:
        end(world)
    world.move(1, 1)
    for _ in range(4):
        copy_slowly(world)
    assert not world.hosts[1].scheduler.handover.is_idle, "a slot is reserved"
    if end is not by_length:
        end(world)
    for _ in range(30):
        copy_slowly(world)
    assert world.hosts[1].scheduler.handover.is_idle
    assert world.front.outcomes() == {"ended": 1}
    world.finish()
    tokens, why = world.front.answers[1]
    assert why is finish
    assert tokens == answer(world.asked[1])[: len(tokens)]


@pytest.mark.parametrize("when", ["round", "last"])
def test_if_the_destination_has_no_block_for_what_comes_the_same_life_goes_on_in_its_slot(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The first round is taken; then there is no memory for a later one, or for the last blocks."""
    world = two()
    world.until(lambda: world.num_tokens(1) > 4 * SIZE)
    sequence = world.hosts[0].scheduler.find(1)
    assert sequence is not None
    slot, epoch = sequence.slot, sequence.request_epoch
    slots, leaving = world.hosts[0].scheduler.slots, world.hosts[0].moves._source._leaving
    extend = Handover.extend

    def refuse_later(handover: Handover, coming: Sequence, first: int, last: int) -> Any:
        if slots.suspended[slot] if when == "last" else leaving[1].num_rounds == 2:
            raise RefusedMove("memory")
        return extend(handover, coming, first, last)

    refusals: list[str] = []
    suspended: list[int] = []
    refuse, suspend = Copier.refuse, Handover.suspend
    monkeypatch.setattr(Handover, "extend", refuse_later)
    monkeypatch.setattr(Copier, "refuse", lambda *a: [refusals.append(a[2]), refuse(*a)][1])
    monkeypatch.setattr(Handover, "suspend", lambda *a: [suspended.append(a[1].request_id), suspend(*a)][1])
    monkeypatch.setattr(Copier, "copy_s", lambda *_: 1.0 if when == "round" else -1.0)
    world.move(1, 1)
    for turn in range(100):
        copy_slowly(world)
        # slow copies: more than a block is full when a round ends
        for host in world.hosts * 8 if when == "last" or turn % (2 * SIZE) == 0 else []:
            host.copy()
        if world.front.outcomes()["refused"]:
            break
    assert refusals == ["memory"]
    assert suspended == [1] * (when == "last"), "before the last round a request is not stopped"
    assert (sequence.slot, sequence.request_epoch) == (slot, epoch)
    assert not slots.suspended[slot]
    moves = world.front.cluster._coordinator
    assert not moves.may_try(0, 1), "the two are left alone for a while"
    assert moves.may_try(1, 0)
    world.tick(1.1)
    assert moves.may_try(0, 1)
    monkeypatch.undo()
    world.check_all()


def test_a_reservation_for_which_nothing_comes_is_dropped() -> None:
    """The order to move out is lost, and no one says that the move is off."""
    world = two()
    world.ask(request(2, [7, 7], max_tokens=90, min_tokens=90))
    world.move(1, 1)
    for _ in range(3):
        copy_slowly(world)
        drop_from_front(world, MoveOut)
    assert not world.hosts[1].scheduler.handover.is_idle
    world.network.now_s += 31.0
    world.hosts[1].turn()
    assert world.hosts[1].scheduler.handover.is_idle
    world.check_all()
    assert world.front.outcomes() == {"timeout": 1}


@pytest.mark.parametrize("first", [0, 1])
def test_a_request_decodes_on_in_its_slot_when_both_instances_find_the_other_one_silent(first: int) -> None:
    """Whichever of them is heard first."""
    world = two()
    world.until(lambda: world.num_tokens(1) > 2 * SIZE)
    world.move(1, 1 - world.where(1))
    source = world.hosts[world.where(1)]
    for host in (*world.hosts[::-1], *world.hosts):
        world.front.turn()
        host.turn()
    source.copy()
    for host in world.hosts:
        world.network.drop(receiver=f"blocks-{host.number}")
    world.network.now_s += 31.0
    for host in world.hosts:
        host.turn()
    world.front.turn(world.hosts[first].name)
    world.front.turn()
    stream = world.front.table.find(1)
    assert stream is not None
    assert (stream.seated, stream.instance, stream.request_epoch) == (True, source.number, 0)
    world.check_all()
    assert world.front.outcomes() == {"timeout": 1}


def drop_from_front(world: World, kind: type) -> None:
    """Messages of this kind that are on their way to instances."""
    for frames in world.network.frames.values():
        for _, messages in list(frames) if frames and isinstance(frames[0], tuple) else []:
            messages[:] = [each for each in messages if not isinstance(each, kind)]


def test_another_scheduler_model_finds_nothing_of_earlier_moves() -> None:
    world = two()
    world.until(lambda: world.num_tokens(1) > 4 * SIZE)
    world.move(1, 1)
    for _ in range(4):
        copy_slowly(world)
    assert world.hosts[0].scheduler.blocks.is_lending
    assert not world.hosts[1].scheduler.handover.is_idle
    world.network.drop()
    world.front, world.asked = Front(world.network, 2, "round_robin", "blocks"), {}
    for number in range(2):
        world.front.lose(number)  # its sessions have other names than those before
    for _ in range(3):
        world.turn()
    for host in world.hosts:
        assert host.scheduler.is_idle
        assert host.scheduler.blocks.num_used == 0
    world.ask(request(1, [5, 8, 9], max_tokens=30, min_tokens=30))
    world.until(lambda: world.num_tokens(1) > 8)
    assert "done" in order_to_move(world, 1, 1 - world.where(1))
    world.check_all()


def test_no_request_moves_while_one_is_suspected() -> None:
    """Else a request that ends its instance could be moved, or others could come where it is on trial."""
    world = World(3, SHUFFLE)
    for number in range(1, 4):
        world.ask(request(number, [5, number, 9], max_tokens=90, min_tokens=90))
    world.until(lambda: all(world.num_tokens(number) > 4 for number in (1, 2, 3)))
    world.until(lambda: not len(world.front.cluster._coordinator))
    dead = world.where(1)
    world.kill(dead)
    world.front.lose(dead)
    quarantine, before = world.front.table.submissions.quarantine, world.front.outcomes()
    streams = world.front.table.streams
    assert not quarantine.is_calm(streams)
    for _ in range(60):
        if quarantine.is_calm(streams):
            break
        assert not len(world.front.cluster._coordinator)
        assert world.front.outcomes() == before
        world.turn()
    assert quarantine.is_calm(streams), "it has come past where it was"
    world.until(lambda: world.front.outcomes() != before)
    world.check_all()


def test_a_late_message_of_an_earlier_life_changes_nothing() -> None:
    """To the other instance, back, and there again: what is meant for the first life there comes last."""
    world = two()
    world.move(1, 1)
    world.until(lambda: world.where(1) == 1)
    for there in (0, 1):
        count = world.num_tokens(1)
        world.until(lambda: world.num_tokens(1) > count)  # noqa: B023
        world.move(1, there)
        world.until(lambda: world.where(1) == there)  # noqa: B023
    stream = world.front.table.find(1)
    assert stream is not None
    world.front.post(1, [Cancel(1, stream.request_epoch - 2)])
    world.check_all()
    assert world.front.outcomes() == {"done": 3}
