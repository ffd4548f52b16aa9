"""What is kept of a token: worked values."""

from __future__ import annotations

import pytest

from python_backends.finetuning.pruning import first_layer, kept, needs, plans
from python_backends.nouns.training import PROJECTIONS, Keep, LayerFacts

ALL = frozenset(PROJECTIONS)
LLAMA_8B = LayerFacts(hidden=4096, query=4096, kv=1024, up=2 * 14336)
RELU = LayerFacts(hidden=64, query=64, kv=64, up=256, is_plain_relu=True)


@pytest.mark.parametrize(("policy", "hiddens"), [("products", 10.5), ("attention", 3.5), ("inputs", 1.5)])
def test_a_layer_of_an_8b_model_keeps_so_many_times_its_hidden_width(policy: str, hiddens: float) -> None:
    values = sum(kept(1, LLAMA_8B, {0: ALL, 1: ALL}, Keep(policy)).values())
    assert values == hiddens * LLAMA_8B.hidden


def test_with_down_alone_the_first_layer_keeps_gate_and_up_alone_and_others_all() -> None:
    targets = dict.fromkeys(range(2), frozenset({"down"}))
    assert set(kept(0, LLAMA_8B, targets, Keep.PRODUCTS)) == {"gate_up"}
    assert set(kept(1, LLAMA_8B, targets, Keep.PRODUCTS)) == {"x1", "q", "kv", "x2", "gate_up"}


def test_layers_before_the_first_adapter_keep_nothing_and_the_backward_pass_stops() -> None:
    targets = {2: ALL, 3: ALL}
    made = plans([LLAMA_8B] * 4, targets, Keep.PRODUCTS)
    assert [bool(each.kept) for each in made] == [False, False, True, True]
    assert [each.needs.input for each in made] == [False, False, False, True]
    assert first_layer(targets) == 2


def test_a_plain_relu_keeps_a_bit_a_value_unless_down_has_an_adapter() -> None:
    with_down, without = ({0: ALL}, {0: ALL - {"down"}})
    assert kept(0, RELU, with_down, Keep.PRODUCTS)["gate_up"] == 256
    assert kept(0, RELU, without, Keep.PRODUCTS)["gate_up"] == 8
    assert not plans([RELU], with_down, Keep.PRODUCTS)[0].keeps_signs
    assert plans([RELU], without, Keep.PRODUCTS)[0].keeps_signs


def test_of_parallel_branches_only_the_one_with_an_adapter_is_gone_through() -> None:
    targets = {0: frozenset({"o"})}
    assert not needs(0, targets, parallel=True).down
    assert needs(0, targets, parallel=False).down
    parallel = LayerFacts(hidden=64, query=64, kv=64, up=256, parallel=True)
    assert set(kept(0, parallel, targets, Keep.PRODUCTS)) == {"q", "kv"}
