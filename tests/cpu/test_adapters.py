"""Sequences with LoRA adapters give PEFT's tokens, whatever is computed beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from python_backends.engine.cpu.library import library
from python_backends.engine.protocol import Engine
from python_backends.engine.torch.adapters.factors import Factors
from python_backends.engine.torch.adapters.joined_adapters import JoinedRows
from python_backends.engine.torch.adapters.slot_adapters import SlotAdapters, add_adapters
from python_backends.instance.adapter_files import AdapterFiles
from python_backends.instance.adapter_thread import AdapterThread
from python_backends.instance.adapters import InstanceAdapters
from python_backends.nouns.messages import Failed
from python_backends.nouns.request import BASE, AdapterVersion, Request, Sampling
from python_backends.nouns.step import Admit
from python_backends.scheduling.policies.fcfs import reserve_max_tokens
from python_backends.scheduling.state.view import Reserve
from tests.cpu.test_prompt_log_probs import asking, check
from tests.support.peft_adapters import adapted_model
from tests.support.tiny_models import (
    BY_LAYERS,
    RELATIVES,
    TINY,
    VOCABULARY,
    Serving,
    TinyModel,
    random_requests,
)

# PEFT asks transformers by an older name
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

LAYERS = ["layers"] if library() is not None else []
RANKS = {"law": 4, "poems": 8, "jokes": 32}


class AdaptedServing(Serving):
    """With the adapters of a directory, of which at most `max_loaded` are in the engine."""

    def __init__(
        self, engine: Any, root: Path, max_loaded: int = 8, reserve: Reserve = reserve_max_tokens
    ) -> None:
        super().__init__(engine, reserve=reserve)
        self.listed: tuple[AdapterVersion, ...] = ()
        self.failed: list[Failed] = []
        self.most_loaded = 0
        self._thread = AdapterThread(AdapterFiles(root, engine.read_adapter), lambda: None, 3600)
        self.adapters = InstanceAdapters(self.scheduler, engine, self._thread, max_loaded, self._show)

    def _show(self, listed: tuple[AdapterVersion, ...]) -> None:
        self.listed = listed

    def version(self, name: str) -> AdapterVersion:
        return next(each for each in self.listed if name in (each.name, each.full_name))

    def step(self) -> None:
        self.failed += self.adapters.step()
        self.most_loaded = max(self.most_loaded, self.scheduler.adapters.num_loaded)
        super().step()

    def close(self) -> None:
        self.adapters.close()


class Peft:
    """PEFT's models over one tiny model, and where they are saved."""

    def __init__(self, tiny: TinyModel, root: Path, ranks: dict[str, int]) -> None:
        self.root = root
        self._tiny = tiny
        self._models: dict[str, Any] = {}
        for seed, (name, rank) in enumerate(ranks.items()):
            tiny.model.config.architectures = [type(tiny.model).__name__]
            self._models[name] = adapted_model(tiny.model, rank, seed)
            self._models[name].save_pretrained(root / name)

    def model_of(self, request: Request) -> Any:
        return self._models.get(request.adapter.name, self._tiny.model)

    def check(self, request: Request, answer: list[int]) -> None:
        TinyModel(self.root, self.model_of(request), self._tiny.agreement).check(request, answer)


@pytest.fixture(scope="module")
def peft(tiny: Callable[[str], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Peft:
    return Peft(tiny("llama_grouped"), tmp_path_factory.mktemp("adapters"), RANKS)


@pytest.fixture
def serve(peft: Peft) -> Iterator[Callable[..., AdaptedServing]]:
    made: list[AdaptedServing] = []

    def make(engine: Engine, **options: Any) -> AdaptedServing:
        made.append(AdaptedServing(engine, peft.root, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def mixed(serving: AdaptedServing, requests: Iterable[Request]) -> list[Request]:
    """Every fourth of them without an adapter, the others with one each."""
    adapters = [BASE, *(serving.version(name) for name in RANKS)]
    return [request.changed(adapter=adapters[request.request_id % 4]) for request in requests]


@pytest.mark.parametrize("way", ["one after the other", "joined", *LAYERS])
def test_16_requests_over_the_base_and_three_adapters_give_the_tokens_of_peft(
    way: str, peft: Peft, one: TinyModel, serve: Callable[..., AdaptedServing]
) -> None:
    """Other ranks in the same step; prompts that are alike under different adapters; some are cancelled."""
    engine = one.layers_engine(slots=16) if way in LAYERS else one.engine(slots=16)
    if isinstance(engine._adapters, SlotAdapters):
        engine._adapters._joins = way == "joined"  # as on a GPU
    serving = serve(engine)
    requests = mixed(serving, random_requests(16, max_tokens=20))
    serving.run(requests)
    alike = [
        request.changed(request_id=100 + index, prompt=requests[0].prompt)
        for index, request in enumerate(requests[:8])
    ]
    cancelled = [request.changed(request_id=200 + index) for index, request in enumerate(requests[:6])]
    for request in cancelled:
        serving.submit(request)
    for _ in range(5):
        serving.step()
    for request in cancelled:
        serving.scheduler.cancel(request.request_id)
    again = [request.changed(request_id=300 + index) for index, request in enumerate(requests)]
    answers = serving.run([*alike, *again])
    for request in [*requests, *alike, *again]:
        peft.check(request, answers[request.request_id])
    started = [answers[request.request_id] for request in alike[:4]]
    assert len({tuple(answer) for answer in started}) == 4, "each adapter answers otherwise"


@pytest.mark.parametrize("way", ["operators", *LAYERS])
def test_prompts_have_the_log_probabilities_of_peft(
    way: str, peft: Peft, one: TinyModel, serve: Callable[..., AdaptedServing]
) -> None:
    serving = serve(one.layers_engine(slots=4) if way in LAYERS else one.engine(slots=4))
    requests = asking(mixed(serving, random_requests(6, seed=8)))
    serving.run(requests)
    for request in requests:
        if request.wants_prompt_log_probs:
            check(peft.model_of(request), request, serving)


def factors(names: str, rank: int) -> list[dict[str, Factors]]:
    """Of one layer with products of 6 inputs and 10 outputs."""
    return [{name: Factors(torch.randn(rank, 6), torch.randn(10, rank)) for name in names}]


def slot_adapters(joins: bool, weights: list[list[dict[str, Factors]]]) -> SlotAdapters:
    """Slot i has adapter i; the slot after the last one has none."""
    made = SlotAdapters(torch.device("cpu"), joins)
    for number, each in enumerate(weights):
        made.install(f"{number}", each)
        version = AdapterVersion("", "", f"{number}")
        made.apply([Admit(number, 0, Sampling(1), 1, 0, np.zeros(0, np.int32), adapter=version)])
    return made


class Operators(TorchDispatchMode):
    """Counts those that a device computes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def test_adapters_in_one_product_add_the_same_as_one_after_the_other() -> None:
    """Of other ranks and products; rows without one, and rows of padding, are not changed."""
    torch.manual_seed(0)
    weights = [factors("ab", 2), factors("a", 3), factors("b", 1)]
    x, slots = torch.randn(9, 6), np.array([1, 0, 3, 2, 0, 3, 1], np.int32)
    for rows in (slots, slots[:3], slots[::-1]):
        for name in "abc":
            alone, joined = (
                add_adapters(torch.ones(9, 10), x, 0, name, slot_adapters(joins, weights).groups(rows))
                for joins in (False, True)
            )
            torch.testing.assert_close(joined, alone, rtol=1e-5, atol=1e-5)
            assert (joined[len(rows) :] == 1).all()


@pytest.mark.parametrize("num_adapters", [2, 8])
def test_on_a_gpu_a_product_takes_as_many_operators_whatever_the_number_of_adapters(
    num_adapters: int,
) -> None:
    adapters = slot_adapters(True, [factors("a", 2)] * num_adapters)
    groups = adapters.groups(np.arange(24, dtype=np.int32) % num_adapters)
    with Operators() as operators:
        add_adapters(torch.ones(24, 10), torch.randn(24, 6), 0, "a", groups)
    assert operators.count == 5, "ones and randn, two products and a mask"


def test_joined_adapters_stay_until_another_one_comes_or_one_is_dropped() -> None:
    torch.manual_seed(1)
    weights = [factors("a", 2) for _ in range(3)]
    adapters, x = slot_adapters(True, weights), torch.randn(2, 6)
    joined = []
    for rows in ((0, 1), (1, 0), (1, 2)):
        (group,) = adapters.groups(np.array(rows, np.int32))
        assert isinstance(group, JoinedRows)
        joined.append(group._joined)
    assert joined[0] is joined[1] is not joined[2]
    adapters.drop("0")
    (after,) = adapters.groups(np.array((0, 2), np.int32))  # slot 0 keeps what it was admitted with
    y = add_adapters(torch.zeros(2, 10), x, 0, "a", [after])
    a, b = weights[0][0]["a"]
    torch.testing.assert_close(y[0], x[0] @ a.T @ b.T, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("max_loaded", "kind"), [(1, "torch"), (2, "torch"), *((1, kind) for kind in LAYERS)]
)
def test_adapters_make_place_for_each_other_while_sequences_are_evicted(
    max_loaded: int, kind: str, peft: Peft, one: TinyModel, serve: Callable[..., AdaptedServing]
) -> None:
    serving = serve(
        one.engine_of(kind, slots=5, kv_blocks=26 if kind == "torch" else 6),
        max_loaded=max_loaded,
        reserve=lambda sequence: len(sequence.tokens) + 1,
    )
    requests = mixed(serving, random_requests(16, seed=4))
    answers = serving.run(requests)
    for request in requests:
        peft.check(request, answers[request.request_id])
    assert serving.scheduler.num_evictions > 0
    assert serving.most_loaded == max_loaded


def test_blocks_are_found_under_the_same_adapter_alone(
    one: TinyModel, serve: Callable[..., AdaptedServing]
) -> None:
    serving = serve(one.engine())
    prompt = np.arange(50, dtype=np.int32)
    hits = {}
    for number, name in enumerate(("", "law", "poems", "law", "")):
        adapter = serving.version(name) if name else BASE
        serving.run([Request(number, prompt, Sampling(4), adapter=adapter)])
        hits[number] = sum(each.num_prefix_hit_tokens for each in serving.scheduler.take_started())
    assert [hits[number] for number in range(5)] == [0, 0, 0, 48, 48]


def test_steps_of_fixed_shape_compute_adapters(
    peft: Peft, one: TinyModel, serve: Callable[..., AdaptedServing]
) -> None:
    """Where decode steps have a fixed shape, those with adapters are computed in the other way."""
    with closing(one.engine(cuda_graphs="eager")) as engine:
        serving = serve(engine, max_loaded=1)
        requests = mixed(serving, random_requests(8, seed=2))
        answers = serving.run(requests)
    for request in requests:
        peft.check(request, answers[request.request_id])


def test_steps_without_adapters_are_as_if_there_were_none(
    one: TinyModel, serve: Callable[..., AdaptedServing], monkeypatch: pytest.MonkeyPatch
) -> None:
    serving = serve(one.engine())
    serving.run([random_requests(1)[0].changed(adapter=serving.version("law"))])

    def fail(*_: Any) -> None:
        raise AssertionError("a step without adapters looks for some")

    monkeypatch.setattr("python_backends.engine.torch.decoder.add_adapters", fail)
    requests = [request.changed(request_id=9 + request.request_id) for request in random_requests(3)]
    answers = serving.run(requests)
    for request in requests:
        one.check(request, answers[request.request_id])


def test_an_adapter_that_cannot_be_loaded_costs_no_other_request_anything(
    peft: Peft, one: TinyModel, serve: Callable[..., AdaptedServing]
) -> None:
    serving = serve(one.engine())
    requests = mixed(serving, random_requests(4))
    gone = requests[1].changed(request_id=7, adapter=AdapterVersion("gone", "1", "00" * 16))
    other = requests[1].changed(request_id=8, adapter=AdapterVersion("law", "1", "00" * 16))
    answers = serving.run([gone, other, *requests])
    errors = {failed.request_id: failed.error for failed in serving.failed}
    assert "lora_name = 'gone@1': adapter_config.json" in errors[7]
    assert errors[8] == "lora_name = 'law@1': its files have been replaced by others"
    for request in requests:
        peft.check(request, answers[request.request_id])


def test_an_instance_without_adapters_refuses_a_request_with_one(one: TinyModel) -> None:
    serving = Serving(one.engine())
    with pytest.raises(ValueError, match="lora_name = 'law@1': this instance has no adapters"):
        serving.submit(random_requests(1)[0].changed(adapter=AdapterVersion("law", "1", "00" * 16)))


@pytest.mark.parametrize(
    ("kind", "name"),
    [*product(["torch"], sorted(TINY | RELATIVES)), *product(LAYERS, sorted(BY_LAYERS))],
)
def test_every_family_gives_the_tokens_of_peft(
    kind: str, name: str, tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    """In chunks, beside sequences of the base."""
    peft = Peft(tiny(name), tmp_path, {"law": 4})
    with closing(AdaptedServing(tiny(name).engine_of(kind), tmp_path)) as serving:
        prompts = np.random.default_rng(1).integers(0, VOCABULARY, (3, 30)).astype(np.int32)
        adapters = [serving.version("law"), BASE, serving.version("law")]
        requests = [
            Request(number, prompt, Sampling(12), adapter=adapter)
            for number, (prompt, adapter) in enumerate(zip(prompts, adapters, strict=True))
        ]
        answers = serving.run(requests)
    for request in requests:
        peft.check(request, answers[request.request_id])
