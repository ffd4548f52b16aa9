"""A request that moves between two engines with its KV blocks gets the tokens and log-probabilities of an
undisturbed run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.engine.cpu.library import library
from python_backends.engine.kv.device_blocks import DeviceBlocks
from python_backends.engine.protocol import Engine, ExportsBlocks, FollowsGuides
from python_backends.guides.grammars import grammar_of
from python_backends.nouns.request import Ids, Request, Sampling
from python_backends.scheduling.state.sequence import Sequence, Status
from tests.cpu.test_log_probs import Scored
from tests.support.guided import END, guides
from tests.support.tiny_models import VOCABULARY, TinyModel, random_requests

PROMPT = np.random.default_rng(11).integers(0, VOCABULARY, 37).astype(np.int32)
ANSWER = 40  # tokens
PARTLY, FULL = 50, 65  # tokens at a move: the last block has 1 or 17 computed ones; it is full
AHEAD = {"torch, ahead": 1}  # steps launched before the oldest is read
MAKE: dict[str, Callable[[TinyModel], Engine]] = {
    "torch": lambda tiny: tiny.engine(slots=3),
    "torch, fixed shapes": lambda tiny: tiny.engine(slots=3, cuda_graphs="eager"),
    "torch, ahead": lambda tiny: tiny.engine(slots=3),
    "torch, bfloat16": lambda tiny: tiny.engine(slots=3, dtype="bfloat16"),
    "torch, blocks of 32": lambda tiny: tiny.engine(slots=3, block_tokens=32, cpp_layers="off"),
}
SERVED: tuple[str, ...] = ("torch", "torch, fixed shapes", "torch, ahead")
if library() is not None:
    MAKE["layers"] = lambda tiny: tiny.layers_engine(slots=3)
    SERVED += ("layers",)

Engines = Callable[[str, str], list[Engine]]


class Instance(Scored):
    @property
    def exporting(self) -> ExportsBlocks:
        assert isinstance(self.engine, ExportsBlocks)
        return self.engine

    @property
    def size(self) -> int:
        return self.engine.limits.block_tokens

    def step_until(self, request: Request, count: int) -> None:
        """Until the request has `count` tokens, prompt and output, if the launched steps are counted."""
        while (
            len(request.prompt) + len(self.answers[request.request_id]) + len(self._launched) < count
            or not self.answers[request.request_id]
        ):
            self.step()

    def settle(self, request: Request, count: int) -> Ids:
        """Holds it when it has `count` tokens. All its tokens."""
        self.step_until(request, count)
        sequence = self.sequence(request)
        self.scheduler.handover.suspend(sequence)
        while not self.scheduler.slots.is_settled(sequence.slot):
            self.step()
        tokens = self.scheduler.handover.tokens(sequence)
        assert len(tokens) == count
        return tokens

    def sequence(self, request: Request) -> Sequence:
        """Of a request that runs here."""
        sequence = self.scheduler.find(request.request_id)
        assert sequence is not None
        assert sequence.status is Status.RUNNING
        return sequence

    def blocks_of(self, request: Request, num_tokens: int) -> bytes:
        """The blocks that its first `num_tokens` tokens fill."""
        handover = self.scheduler.handover
        blocks = handover.lend(self.sequence(request), 0, num_tokens // self.size)
        handover.give_back(blocks)
        return self.exporting.export_blocks(blocks).tobytes()


@dataclass
class Move:
    """`number` counts the moves of the request: it has got so many lives before."""

    number: int
    request: Request
    source: Instance
    destination: Instance
    num_found: int = 0  # blocks, at the destination
    num_copied: int = 0
    coming: Sequence = field(init=False)  # at the destination

    def make(self, count: int) -> None:
        """It goes on at the destination when it has `count` tokens; full blocks are copied before."""
        self.source.step_until(self.request, count - 12)
        self.reserve()
        leaving, handover = self.source.sequence(self.request), self.source.scheduler.handover
        self.copy(handover.num_full_blocks(leaving))
        known = handover.tokens(leaving)[: self.num_copied * self.source.size]
        self.destination.scheduler.handover.publish(self.coming, known)
        self.finish(count)

    def reserve(self) -> None:
        known, there = np.array(self.source.answers[self.request.request_id], np.int32), self.destination
        self.coming = there.scheduler.new_sequence(self.request, known, self.number)
        there.scheduler.handover.reserve(self.coming)
        self.num_found = self.num_copied = self.coming.num_published

    def finish(self, count: int) -> None:
        tokens = self.source.settle(self.request, count)
        self.copy(-(-(count - 1) // self.source.size))
        self.destination.scheduler.handover.adopt(self.coming, tokens)
        assert self.coming.num_output_tokens == len(self.destination.answers[self.request.request_id])
        assert self.source.scheduler.cancel(self.request.request_id, self.number - 1)

    def copy(self, last: int) -> None:
        first, self.num_copied = self.num_copied, max(self.num_copied, last)
        source, handover = self.source, self.source.scheduler.handover
        blocks = handover.lend(source.sequence(self.request), first, self.num_copied)
        data = source.exporting.export_blocks(blocks)
        into = self.destination.scheduler.handover.extend(self.coming, first, self.num_copied)
        self.destination.exporting.import_blocks(into, memoryview(data.tobytes()))
        handover.give_back(blocks)


@pytest.fixture(scope="module")
def engines(tiny: Callable[[str], TinyModel]) -> Iterator[Engines]:
    """Two of a kind over a model; made once."""
    made: dict[tuple[str, str], list[Engine]] = {}

    def make(name: str, kind: str) -> list[Engine]:
        if (name, kind) not in made:
            made[name, kind] = [following(MAKE[kind](tiny(name))) for _ in range(2)]
        return made[name, kind]

    yield make
    for pair in made.values():
        for engine in pair:
            engine.close()


def following(engine: Engine) -> Engine:
    assert isinstance(engine, FollowsGuides)
    engine.follow(guides())
    return engine


def serving(engine: Engine, kind: str) -> Instance:
    return Instance(engine, ahead=AHEAD.get(kind, 0))


def pair(engines: Engines, kind: str, name: str = "llama_grouped") -> tuple[Instance, Instance]:
    """Answers and log-probabilities of both are in the same place."""
    first, second = (serving(engine, kind) for engine in engines(name, kind))
    second.answers, second.scores = first.answers, first.scores
    return first, second


def ask(number: int = 0, **sampling: Any) -> Request:
    return Request(number, PROMPT, Sampling(**{"max_tokens": ANSWER} | sampling))


def neighbours(first: int, count: int = 2) -> list[Request]:
    return [
        request.changed(request_id=first + number)
        for number, request in enumerate(random_requests(count, seed=first, max_tokens=50))
    ]


def undisturbed(engines: Engines, kind: str, request: Request) -> Instance:
    """It has served the request alone."""
    instance = serving(engines("llama_grouped", kind)[0], kind)
    instance.run([request])
    return instance


@pytest.fixture(scope="module")
def free(engines: Engines) -> Callable[[str], list[int]]:
    """The answer of a kind of engine to a request that asks for nothing else."""
    return cache(lambda kind: undisturbed(engines, kind, ask()).answers[0])


# --- the same answer


@pytest.mark.parametrize("kind", SERVED)
@pytest.mark.parametrize("what", ["greedy", "drawn", "penalized", "banned", "biased", "not before", "guided"])
def test_a_moved_request_gets_the_answer_of_an_undisturbed_run(
    engines: Engines, free: Callable[[str], list[int]], kind: str, what: str
) -> None:
    plain = free(kind)
    at = PARTLY - len(PROMPT)  # output tokens at the move
    sampling = {
        "greedy": {"log_probs": True, "num_top_log_probs": 2},
        "drawn": {"temperature": 0.9, "top_p": 0.95, "seed": 2**40 + 3, "log_probs": True},
        "penalized": {"repetition_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.4},
        "banned": {"bad_words": (tuple(plain[at - 1 : at + 1]),)},  # it would be completed after the move
        "biased": {"logit_bias": tuple((token, -100.0) for token in set(plain[at - 3 : at + 3]))},
        "guided": {"grammar": grammar_of("json", ""), "temperature": 1.0, "stop_ids": (END,)},
        "not before": {"min_tokens": at + 10, "stop_ids": tuple(plain[at + 2 : at + 12])},
    }[what]
    request = ask(**sampling)
    expected = undisturbed(engines, kind, request)
    source, destination = pair(engines, kind)
    source.submit(request)
    Move(1, request, source, destination).make(PARTLY)
    destination.run()
    answer = destination.answers[0]
    assert answer == expected.answers[0]
    assert (answer != plain) == (what != "greedy")
    assert len(answer) > at + 10
    if request.sampling.log_probs:
        ours, wanted = (each.scores[0].since(0) for each in (destination, expected))
        assert len(ours.chosen) == ANSWER
        np.testing.assert_array_equal(ours.chosen, wanted.chosen)
        np.testing.assert_array_equal(ours.top, wanted.top)


@pytest.mark.parametrize(
    ("kind", "name"), [*((kind, "llama_grouped") for kind in SERVED), ("torch", "qwen3_moe")]
)
def test_a_request_moves_to_another_engine_and_back_among_others(
    engines: Engines, tiny: Callable[[str], TinyModel], kind: str, name: str
) -> None:
    """Once with a last block that is partly filled, and once with one that is full."""
    request, others = ask(), neighbours(1)
    first, second = pair(engines, kind, name)
    for instance, other in zip((first, second), others, strict=True):
        instance.submit(other)
        instance.step()
    first.submit(request)
    Move(1, request, first, second).make(PARTLY)
    Move(2, request, second, first).make(FULL)
    second.run()
    answers = first.run()
    for each in (request, *others):
        tiny(name).check(each, answers[each.request_id])


@pytest.mark.parametrize("kind", SERVED)
def test_blocks_of_its_prompt_that_the_destination_has_are_not_copied(
    engines: Engines, kind: str, one: TinyModel
) -> None:
    request, alike = ask(), ask(1, max_tokens=5)
    source, destination = pair(engines, kind)
    destination.run([alike])
    source.submit(request)
    move = Move(1, request, source, destination)
    move.make(PARTLY)
    assert move.num_found == len(PROMPT) // source.size > 0
    one.check(request, destination.run()[0])


@pytest.mark.parametrize(
    ("kind", "name"),
    [*product(sorted({"torch", "layers"} & MAKE.keys()), ["gemma2", "mistral"])],
)
def test_a_request_of_a_model_with_sliding_windows_moves(
    engines: Engines, kind: str, name: str, tiny: Callable[[str], TinyModel]
) -> None:
    request = ask()
    source, destination = pair(engines, kind, name)
    source.submit(request)
    Move(1, request, source, destination).make(PARTLY)
    tiny(name).check(request, destination.run()[0])


@pytest.mark.skipif("layers" not in MAKE, reason="wants a C++ compiler, and AVX2")
def test_a_request_moves_between_torchs_operators_and_layers(engines: Engines, one: TinyModel) -> None:
    request = ask()
    torch_serving, other_serving = (
        serving(engines("llama_grouped", kind)[0], kind) for kind in ("torch, blocks of 32", "layers")
    )
    other_serving.answers, other_serving.scores = torch_serving.answers, torch_serving.scores
    assert torch_serving.exporting.kv_format == other_serving.exporting.kv_format
    torch_serving.submit(request)
    Move(1, request, torch_serving, other_serving).make(PARTLY)
    Move(2, request, other_serving, torch_serving).make(FULL)
    one.check(request, torch_serving.run()[0])


@pytest.mark.skipif("layers" not in MAKE, reason="wants a C++ compiler, and AVX2")
def test_what_layers_left_after_the_last_token_of_a_block_is_not_read_at_the_destination(
    engines: Engines, one: TinyModel
) -> None:
    """They never read it, so it may be no number."""
    request = ask()
    engine, other = engines("llama_grouped", "layers")[0], engines("llama_grouped", "torch, blocks of 32")[0]
    engine.cache.blocks.fill_(torch.nan)  # type: ignore[attr-defined]
    source, destination = serving(engine, "layers"), serving(other, "torch, blocks of 32")
    destination.answers, destination.scores = source.answers, source.scores
    source.submit(request)
    Move(1, request, source, destination).make(PARTLY)
    one.check(request, destination.run()[0])


# --- at the ends of a move


@pytest.mark.parametrize("kind", SERVED)
def test_a_held_request_goes_on_where_it_was(engines: Engines, kind: str, one: TinyModel) -> None:
    request, (other, _) = ask(), neighbours(1)
    source, _ = pair(engines, kind)
    source.submit(request)
    source.submit(other)
    source.settle(request, PARTLY)
    for _ in range(3):
        source.step()
    source.scheduler.handover.resume(source.sequence(request), 1)
    answers = source.run()
    for each in (request, other):
        one.check(each, answers[each.request_id])


@pytest.mark.parametrize("kind", SERVED)
def test_a_slot_whose_earlier_request_is_in_a_launched_step_can_be_taken(
    engines: Engines, kind: str, one: TinyModel
) -> None:
    request, (leaving, staying) = ask(), neighbours(1)
    source, destination = pair(engines, kind)
    source.submit(request)
    source.settle(request, PARTLY)
    for other in (leaving, staying):
        destination.submit(other)
        destination.step_until(other, len(other.prompt) + 3)
    assert destination.scheduler.cancel(leaving.request_id)
    move = Move(1, request, source, destination)
    move.reserve()
    assert list(destination.scheduler.slots.reserved) == [0]
    move.finish(PARTLY)
    answers = destination.run()
    for each in (request, staying):
        one.check(each, answers[each.request_id])


# --- bytes


def test_in_bfloat16_the_blocks_of_a_moved_request_are_those_of_an_undisturbed_run(engines: Engines) -> None:
    request, count = ask(max_tokens=60), 90
    source, destination = pair(engines, "torch, bfloat16")
    source.submit(request)
    source.settle(request, count)
    expected, answer = source.blocks_of(request, count - 1), list(source.answers[0])
    source.scheduler.cancel(0)
    source.run()
    source.submit(request)
    Move(1, request, source, destination).make(PARTLY)
    destination.settle(request, count)
    assert destination.answers[0] == answer
    assert destination.blocks_of(request, count - 1) == expected
    destination.scheduler.cancel(0)
    destination.run()


@pytest.mark.skipif("layers" not in MAKE, reason="wants a C++ compiler, and AVX2")
def test_torchs_operators_and_layers_write_a_block_alike(engines: Engines) -> None:
    """[layers, 2, kv_heads, tokens, dim], as the torch engine has them in its memory."""
    request, found = ask(), []
    for kind in ("torch, blocks of 32", "layers"):
        instance = serving(engines("llama_grouped", kind)[0], kind)
        instance.submit(request)
        instance.settle(request, FULL)
        found.append(np.frombuffer(instance.blocks_of(request, FULL - 1), np.float32))
        instance.scheduler.cancel(0)
        instance.run()
    assert found[0].std() > 0.1
    np.testing.assert_allclose(found[0], found[1], atol=1e-3)


@pytest.mark.parametrize("kind", ["torch", "torch, bfloat16", "torch, blocks of 32"])
def test_torch_gives_blocks_as_they_lie_in_its_cache(tiny: Callable[[str], TinyModel], kind: str) -> None:
    engine: Any = MAKE[kind](tiny("llama_grouped"))
    torch.nn.init.normal_(engine.cache.blocks)
    blocks = np.array([5, 1, 3], np.int32)
    expected = engine.cache.blocks[[5, 1, 3]]
    found = engine.export_blocks(blocks)
    assert found.tobytes() == expected.view(torch.uint8).numpy().tobytes()
    engine.import_blocks(blocks[::-1], found)
    assert torch.equal(engine.cache.blocks[[3, 1, 5]], expected)
    assert found.size == 3 * engine.block_bytes


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        ("torch", "float32 3x2x2x8x16"),
        ("torch, ahead", "float32 3x2x2x8x16"),
        ("torch, bfloat16", "bfloat16 3x2x2x8x16"),
        *([("layers", "float32 3x2x2x32x16")] if "layers" in MAKE else []),
    ],
)
def test_blocks_of_another_size_are_refused(engines: Engines, kind: str, written: str) -> None:
    engine = engines("llama_grouped", kind)[0]
    assert isinstance(engine, ExportsBlocks)
    assert engine.kv_format == written
    blocks = np.array([2, 0], np.int32)
    before = engine.export_blocks(blocks)
    for size in (0, before.size // 2, before.size - 1, before.size + 1):
        with pytest.raises(ValueError, match=f"{size} bytes for 2 blocks of {engine.block_bytes} bytes"):
            engine.import_blocks(blocks, memoryview(bytes(size)))
    assert (engine.export_blocks(blocks) == before).all()


@pytest.mark.parametrize("kind", sorted(AHEAD))
def test_an_import_waits_for_the_steps_that_were_launched_before(engines: Engines, kind: str) -> None:
    """These still write to the blocks."""
    prompt = np.random.default_rng(3).integers(0, VOCABULARY, 300).astype(np.int32)
    engine = engines("llama_grouped", kind)[0]
    instance = Instance(engine, token_budget=300, ahead=1)
    for _ in range(5):
        instance.submit(Request(0, prompt, Sampling(max_tokens=20)))
        instance.step()
        blocks = instance.scheduler.slots.running()[0].blocks[: 300 // instance.size]
        data = np.random.default_rng(4).integers(0, 256, len(blocks) * instance.exporting.block_bytes)
        instance.exporting.import_blocks(blocks, data.astype(np.uint8))
        instance.scheduler.cancel(0)
        instance.run()
        assert (instance.exporting.export_blocks(blocks) == data).all()
        instance.scheduler = Instance(engine, token_budget=300).scheduler  # it finds no prefix


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_blocks_of_a_gpu_are_written_after_the_launched_steps_and_are_there_on_return(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Streams are played: one on a host does everything at once."""
    memory = torch.randn((6, 3, 2, 2, 4, 8)).to(dtype)
    before, seen = memory.clone(), []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            assert device == memory.device

        def wait_stream(self, other: str) -> None:
            seen.append((other, torch.equal(memory, before)))

        def synchronize(self) -> None:
            seen.append(("copied", torch.equal(memory, before)))

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", nullcontext)
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: "the engine's")
    copies = DeviceBlocks(memory)
    data = copies.read(np.array([4, 0], np.int32))
    assert seen == [("copied", True)]
    assert data.tobytes() == before[[4, 0]].view(torch.uint8).numpy().tobytes()
    copies.write(np.array([1, 5], np.int32), memoryview(data.tobytes()))
    assert seen[1:] == [("the engine's", True), ("copied", False)]
    assert torch.equal(memory[[1, 5]], before[[4, 0]])
    assert torch.equal(memory[[0, 2, 3, 4]], before[[0, 2, 3, 4]])
    with pytest.raises(ValueError, match="bytes for 1 blocks"):
        copies.write(np.array([1], np.int32), data)
