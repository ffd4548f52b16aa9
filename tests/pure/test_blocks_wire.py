"""The wire between instances and its copier: real sockets, credits, and frames that do not fit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from numpy.typing import NDArray

from python_backends.moving.copier import Copier
from python_backends.moving.copies import CREDITS, Came, Copied, Written
from python_backends.moving.wire import BlocksWire
from python_backends.nouns.messages import pack
from python_backends.nouns.moves import Ack, Blocks, Last, Nak
from python_backends.nouns.request import Ids
from python_backends.wires.network import CurveKeys

BLOCK_BYTES = 64
FORMAT = "test 64"


class Engine:
    """Memory of 64 blocks; block i is full of `start` + i."""

    def __init__(self, start: int = 0) -> None:
        self.kv_format, self.block_bytes = FORMAT, BLOCK_BYTES
        numbers = np.arange(start, start + 64, dtype=np.uint8)
        self.memory = np.repeat(numbers[:, None], BLOCK_BYTES, axis=1)
        self.may_copy = threading.Event()
        self.may_copy.set()
        self.is_copying = threading.Event()

    def export_blocks(self, blocks: Ids) -> NDArray[np.uint8]:
        self.is_copying.set()
        assert self.may_copy.wait(60)
        return self.memory[blocks].reshape(-1)

    def import_blocks(self, blocks: Ids, data: Any) -> None:
        self.is_copying.set()
        assert self.may_copy.wait(60)
        self.memory[blocks] = np.frombuffer(data, np.uint8).reshape(len(blocks), BLOCK_BYTES)


class End:
    """One instance: an engine, a copier and the wire."""

    def __init__(self, endpoint: str, start: int = 0, share: float = 1.0) -> None:
        self.engine = Engine(start)
        self.wire = BlocksWire(endpoint, FORMAT, BLOCK_BYTES)
        self.news: list[Any] = []
        self.copier = Copier(self.wire, self.engine, share)
        self.copier.start(lambda: None)

    def hear(self, kind: type, count: int = 1) -> list[Any]:
        """Waits for `count` news of one kind, and takes them."""

        def found() -> list[Any]:
            self.news += self.copier.received()
            return [news for news in self.news if isinstance(news, kind)]

        wait_until(lambda: len(found()) >= count)
        taken = found()[:count]
        self.news = [news for news in self.news if news not in taken]
        return taken


def wait_until(is_so: Callable[[], bool]) -> None:
    until_s = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until_s
        time.sleep(0.002)


def ids(*numbers: int) -> Ids:
    return np.array(numbers, np.int32)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[tuple[End, End]]:
    made = [End(BlocksWire.endpoint_in(tmp_path, number), 100 * number) for number in range(2)]
    yield made[0], made[1]
    for end in made:
        end.engine.may_copy.set()
        end.copier.close()


@pytest.fixture
def stranger() -> Iterator[zmq.Socket[Any]]:
    """A socket that connects to a destination and may send whatever it likes."""
    context = zmq.Context()
    yield context.socket(zmq.DEALER)
    context.destroy(linger=0)


def test_a_round_and_the_last_blocks_arrive_as_they_were(ends: tuple[End, End]) -> None:
    source, destination = ends
    destination.copier.expect(5)
    source.copier.copy_out(5, destination.wire.endpoint, 2, ids(7, 3, 9))
    num_here = 0
    while num_here < 3:
        came = destination.hear(Came)[0]
        assert came.message.first == 2 + num_here
        blocks = ids(20, 21, 22)[num_here : num_here + came.message.count]
        destination.copier.write(came, blocks)
        destination.hear(Written)
        num_here += came.message.count
    source.hear(Copied)
    assert destination.engine.memory[20:23, 0].tolist() == [7, 3, 9]
    last = Last(5, ids(1, 2, 3), 5, 2)
    source.copier.hand_over(destination.wire.endpoint, last, ids(11, 12))
    came = destination.hear(Came)[0]
    assert (came.message.output_tokens.tolist(), came.message.first, came.message.count) == ([1, 2, 3], 5, 2)
    destination.copier.write_now(ids(30, 31), came.payload)
    assert destination.engine.memory[30:32, -1].tolist() == [11, 12]


def test_the_last_message_may_have_no_blocks(ends: tuple[End, End]) -> None:
    source, destination = ends
    destination.copier.expect(5)
    source.copier.hand_over(destination.wire.endpoint, Last(5, ids(1), 4, 0), ids())
    came = destination.hear(Came)[0]
    destination.copier.write(came, ids())
    destination.hear(Written)


def test_only_so_many_messages_are_under_way_until_they_are_acknowledged(ends: tuple[End, End]) -> None:
    source, destination = ends
    destination.copier.expect(5)
    source.copier._block_s = 1.0  # one block is a chunk
    source.copier.copy_out(5, destination.wire.endpoint, 0, ids(*range(10)))
    came = destination.hear(Came, CREDITS)
    destination.copier.write(came[0], ids(40))
    destination.hear(Came)  # a credit came back
    time.sleep(0.05)
    assert not destination.copier.received() or destination.news
    assert not [news for news in destination.news if isinstance(news, Came)]


def test_a_refused_move_is_heard_of_at_the_source(ends: tuple[End, End]) -> None:
    source, destination = ends
    destination.copier.expect(5)
    source.copier.copy_out(5, destination.wire.endpoint, 0, ids(1))
    destination.hear(Came)
    destination.copier.refuse(5, "memory")
    destination.copier.forget(5)
    assert source.hear(Nak)[0].why == "memory"


@pytest.mark.parametrize("forget", [lambda copier: copier.forget(5), Copier.forget_all])
def test_forgetting_a_move_waits_for_its_chunk_that_is_copied(
    forget: Callable[[Copier], None], ends: tuple[End, End]
) -> None:
    """Its blocks may be used for something else then. Other moves are not waited for."""
    source, destination = ends
    source.engine.may_copy.clear()
    source.copier.copy_out(5, destination.wire.endpoint, 0, ids(1))
    assert source.engine.is_copying.wait(60)
    source.copier.forget(4)
    forgetting = threading.Thread(target=forget, args=(source.copier,))
    forgetting.start()
    time.sleep(0.05)
    assert forgetting.is_alive()
    source.engine.may_copy.set()
    forgetting.join(60)
    assert not forgetting.is_alive()
    assert not source.copier.received()


@pytest.mark.parametrize("is_last", [False, True])
def test_blocks_of_a_forgotten_move_are_not_written(is_last: bool, ends: tuple[End, End]) -> None:
    source, destination = ends
    before, to = destination.engine.memory.copy(), destination.wire.endpoint
    for move in (5, 6):
        destination.copier.expect(move)
    source.copier.copy_out(6, to, 0, ids(1))
    first = destination.hear(Came)[0]
    if is_last:
        source.copier.hand_over(to, Last(5, ids(), 0, 1), ids(2))
    else:
        source.copier.copy_out(5, to, 0, ids(2))
    second = destination.hear(Came)[0]
    destination.engine.may_copy.clear()
    destination.copier.write(first, ids(1))
    assert destination.engine.is_copying.wait(60)
    destination.copier.write(second, ids(2))
    destination.copier.forget(5)
    destination.engine.may_copy.set()
    assert destination.hear(Written)[0].message.move == 6
    source.hear(Copied)
    assert not destination.copier.received()
    assert destination.engine.memory[1, 0] == 1
    assert (destination.engine.memory[2:] == before[2:]).all()


def test_a_fault_of_the_engine_is_heard_by_the_loop(ends: tuple[End, End]) -> None:
    source, destination = ends
    source.copier.copy_out(5, destination.wire.endpoint, 0, ids(1000))
    with pytest.raises(IndexError):
        source.hear(Copied)


def test_after_each_chunk_the_copier_waits_in_proportion_to_its_work(tmp_path: Path) -> None:
    """By its clocks: 2 ms of work at a share of 5 % are followed by 38 ms without."""
    now_s, worked_s = [10.0], [0.0]
    wire = BlocksWire(BlocksWire.endpoint_in(tmp_path, 0), FORMAT, BLOCK_BYTES)
    engine = Engine()
    copier = Copier(wire, engine, 0.05, lambda: now_s[0], lambda: worked_s[0])
    exported = engine.export_blocks

    def export(blocks: Ids) -> NDArray[np.uint8]:
        worked_s[0] += 0.002
        now_s[0] += 0.002
        return exported(blocks)

    engine.export_blocks = export  # type: ignore[method-assign]
    copier.copy_out(5, "ipc:///nothing/is/here", 0, ids(1, 2, 3))
    copier._turn()
    assert copier._wait_s() == pytest.approx(0.038)
    assert copier.copy_s(10) == pytest.approx(0.06), "read, sent and written"
    assert copier._copies.next_sending(1) is not None, "there would be more to send"
    copier.hand_over("ipc:///nothing/is/here", Last(5, ids(), 3, 1), ids(4))
    assert copier._wait_s() == 0.0, "last blocks go at once"
    wire.close()


FORGED = {
    "it is no message": [b"\x00\x01"],
    "such a message does not belong here": [pack((FORMAT, Ack(5)))],
    "it has too few or too many parts": [pack((FORMAT, Blocks(5, 0, 1)))],
    "its size is not that of its blocks": [pack((FORMAT, Blocks(5, 0, 2))), b"x" * BLOCK_BYTES],
    "its blocks are written in another way": [pack(("other", Blocks(5, 0, 1))), b"x" * BLOCK_BYTES],
    "blocks of a move that is not expected": [pack((FORMAT, Blocks(6, 0, 1))), b"x" * BLOCK_BYTES],
}


@pytest.mark.parametrize("kind", FORGED)
def test_a_frame_that_does_not_fit_is_dropped_and_logged_once(
    kind: str, ends: tuple[End, End], stranger: zmq.Socket[Any], caplog: pytest.LogCaptureFixture
) -> None:
    source, destination = ends
    before = destination.engine.memory.copy()
    destination.copier.expect(5)
    stranger.connect(destination.wire.endpoint)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            stranger.send_multipart(FORGED[kind])
        wait_until(lambda: kind in destination.wire.dropped.kinds)
        source.copier.copy_out(5, destination.wire.endpoint, 0, ids(1))
        came = destination.hear(Came)[0]
    assert came.payload.tobytes() == bytes([1]) * BLOCK_BYTES, "the true one"
    assert not destination.news
    assert (destination.engine.memory == before).all()
    assert caplog.text.count(kind) == 1


@pytest.mark.parametrize("parts", [[], [b""], [pack((FORMAT, Blocks(5, -1, 1))), b"x" * BLOCK_BYTES]])
def test_empty_frames_and_negative_numbers_are_dropped(
    parts: list[bytes], ends: tuple[End, End], stranger: zmq.Socket[Any]
) -> None:
    _, destination = ends
    destination.copier.expect(5)
    stranger.connect(destination.wire.endpoint)
    stranger.send_multipart(parts or [b""])
    wait_until(lambda: bool(destination.wire.dropped.kinds))
    assert not destination.copier.received()


def test_only_the_instance_that_sent_first_is_listened_to(
    ends: tuple[End, End], stranger: zmq.Socket[Any]
) -> None:
    source, destination = ends
    destination.copier.expect(5)
    source.copier.copy_out(5, destination.wire.endpoint, 0, ids(1))
    destination.hear(Came)
    stranger.connect(destination.wire.endpoint)
    stranger.send_multipart([pack((FORMAT, Blocks(5, 1, 1))), b"x" * BLOCK_BYTES])
    wait_until(lambda: bool(destination.wire.dropped.kinds))
    assert destination.wire.dropped.kinds == {"blocks of a move that another instance sends"}
    assert not destination.copier.received()


def test_more_blocks_than_were_acknowledged_are_dropped(
    ends: tuple[End, End], stranger: zmq.Socket[Any]
) -> None:
    _, destination = ends
    destination.copier.expect(5)
    stranger.connect(destination.wire.endpoint)
    for first in range(CREDITS + 1):
        stranger.send_multipart([pack((FORMAT, Blocks(5, first, 1))), b"x" * BLOCK_BYTES])
    destination.hear(Came, CREDITS)
    wait_until(lambda: destination.wire.dropped.kinds == {"more blocks than were acknowledged"})


def test_answers_to_what_was_not_sent_are_dropped(ends: tuple[End, End]) -> None:
    source, destination = ends
    destination.copier.expect(5)
    source.copier.copy_out(5, destination.wire.endpoint, 0, ids(1))
    destination.copier.write(destination.hear(Came)[0], ids(2))
    source.hear(Copied)
    sender = destination.copier._copies.sender(5)
    destination.copier._answers += [(sender, Ack(5)), (sender, Nak(77, "busy"))]
    destination.wire.wake()
    wait_until(lambda: len(source.wire.dropped.kinds) == 2)
    assert not source.copier.received()


def test_frames_from_a_dead_connection_do_no_harm_to_the_next_move(tmp_path: Path) -> None:
    """The destination is started again at the same place while blocks wait to be sent there."""
    endpoint = BlocksWire.endpoint_in(tmp_path, 1)
    source, first = End(BlocksWire.endpoint_in(tmp_path, 0)), End(endpoint)
    first.copier.close()
    source.copier.copy_out(5, endpoint, 0, ids(1))
    wait_until(lambda: not source.copier._copies.has_chunk)
    second = End(endpoint, start=100)
    wait_until(lambda: "blocks of a move that is not expected" in second.wire.dropped.kinds)
    source.copier.forget(5)
    second.copier.expect(6)
    source.copier.copy_out(6, endpoint, 0, ids(2))
    assert second.hear(Came)[0].message == Blocks(6, 0, 1)
    for end in (source, second):
        end.copier.close()


# --- TCP


def keys() -> CurveKeys:
    return CurveKeys.new()


def test_tcp_without_a_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="through TCP only with a CURVE key, and there is none"):
        BlocksWire("tcp://127.0.0.1:*", FORMAT, BLOCK_BYTES)
    wire = BlocksWire(BlocksWire.endpoint_in(tmp_path, 0), FORMAT, BLOCK_BYTES)
    with pytest.raises(ValueError, match="CURVE"):
        wire.check_endpoint("tcp://127.0.0.1:7")
    with pytest.raises(ValueError, match="through ipc:// or tcp:// only"):
        wire.check_endpoint("udp://127.0.0.1:7")
    wire.close()


def frames_of(wire: BlocksWire, count: int, timeout_s: float = 60.0) -> list[Any]:
    frames: list[Any] = []
    until_s = time.monotonic() + timeout_s
    while len(frames) < count and time.monotonic() < until_s:
        frames += wire.receive(0.05)
    return frames


def test_tcp_takes_blocks_from_those_that_have_the_clusters_keys_alone() -> None:
    own = keys()
    destination = BlocksWire("tcp://127.0.0.1:*", FORMAT, BLOCK_BYTES, own)
    source = BlocksWire("tcp://127.0.0.1:*", FORMAT, BLOCK_BYTES, own)
    # it knows the public key, and has another secret one
    stranger = zmq.Context()
    knocking = stranger.socket(zmq.DEALER)
    knocking.curve_serverkey = own.public
    knocking.curve_publickey, knocking.curve_secretkey = zmq.curve_keypair()
    plain = stranger.socket(zmq.DEALER)
    for socket in (knocking, plain):
        socket.connect(destination.endpoint)
        socket.send_multipart([pack((FORMAT, Blocks(1, 0, 1))), b"x" * BLOCK_BYTES])
    assert not frames_of(destination, 1, 0.5)
    source.send(destination.endpoint, Blocks(2, 0, 1), memoryview(b"y" * BLOCK_BYTES))
    (frame,) = frames_of(destination, 1)
    assert (frame.message, frame.payload.tobytes()) == (Blocks(2, 0, 1), b"y" * BLOCK_BYTES)
    destination.answer(frame.sender, Ack(2))
    assert [answer.message for answer in frames_of(source, 1)] == [Ack(2)]
    stranger.destroy(linger=0)
    source.close()
    destination.close()
