"""Gradients of LoRA adapters, cut into tiles, are those of the whole sequence."""

from __future__ import annotations

import pytest
import torch

from python_backends.engine.torch.training import layer_backward, loss
from python_backends.engine.torch.training.layer_backward import LayerParts, PackState
from python_backends.nouns.training import AdapterShape, Keep, Pack, Tile
from tests.support.tiny_models import RELATIVES, TINY, VOCABULARY, WITH_EXPERTS
from tests.support.training_reference import by_tiles, difference, drawn, random_pack, trained, whole

CUTS = ((100, 100), (7, 100), (100, 5), (9, 4))
LENGTHS = (23, 9, 20)


@pytest.mark.parametrize("name", sorted((TINY | RELATIVES).keys() - WITH_EXPERTS))
def test_gradients_of_every_family_are_those_of_the_whole_sequences(name: str) -> None:
    """Four ways to cut, one of them for relatives; in float64, relative to the largest gradient."""
    pack = random_pack(LENGTHS)
    model, adapter = trained(name, torch.float64)
    expected_loss, expected = whole(name, adapter, pack, torch.float64)
    for cut in CUTS if name in TINY else CUTS[-1:]:
        for keep in Keep if cut == CUTS[-1] else [Keep.PRODUCTS]:
            found_loss, found = by_tiles(model, adapter, pack, cut, keep)
            assert abs(found_loss - expected_loss) <= 1e-12 * expected_loss, (cut, keep)
            assert difference(found, expected) <= 1e-12, (cut, keep)


@pytest.mark.parametrize("name", ["llama_grouped", "gemma2", "gpt_neox"])
@pytest.mark.parametrize("keep", list(Keep))
@pytest.mark.parametrize("projections", [("qkv",), ("o",), ("up",), ("down",), ("o", "down"), ("qkv", "up")])
def test_what_is_pruned_is_not_missed(name: str, keep: Keep, projections: tuple[str, ...]) -> None:
    """Adapters of some products only: the first layer keeps less, and the gradients are the same."""
    pack = random_pack(LENGTHS)
    model, _ = trained(name, torch.float64)
    modules = tuple(part.name for each in projections for part in model.modules[each])
    adapter = drawn(model, AdapterShape(3, 6.0, modules))
    _, expected = whole(name, adapter, pack, torch.float64)
    _, found = by_tiles(model, adapter, pack, (9, 4), keep)
    assert difference(found, expected) <= 1e-12


@pytest.mark.parametrize("projections", [("qkv", "o", "up"), ("up", "down"), ("o",)])
def test_a_plain_relu_keeps_one_bit_a_value(
    monkeypatch: pytest.MonkeyPatch, projections: tuple[str, ...]
) -> None:
    monkeypatch.setitem(RELATIVES["phi"][1], "hidden_act", "relu")
    pack = random_pack(LENGTHS)
    model, _ = trained("phi", torch.float64)
    modules = tuple(part.name for each in projections for part in model.modules[each])
    model, adapter = trained("phi", torch.float64, AdapterShape(3, 6.0, modules))
    _, expected = whole("phi", adapter, pack, torch.float64)
    _, found = by_tiles(model, adapter, pack, (9, 4))
    assert difference(found, expected) <= 1e-12
    assert all(part.plan.keeps_signs != ("down" in projections) for part in model._parts)


def test_gradients_of_earlier_keys_and_values_must_be_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what later tiles give to them, gradients are wrong: the comparison notices it."""
    pack = random_pack(LENGTHS)
    model, adapter = trained("llama_grouped", torch.float64)
    _, expected = whole("llama_grouped", adapter, pack, torch.float64)
    real = layer_backward.backward

    def forgetful(layer: LayerParts, state: PackState, tile: Tile) -> None:
        state.dk.zero_()
        state.dv.zero_()
        real(layer, state, tile)

    monkeypatch.setattr("python_backends.engine.torch.training.pack_run.backward", forgetful)
    _, found = by_tiles(model, adapter, pack, (9, 4))
    assert difference(found, expected) > 1e-3


def test_the_tokens_of_a_pack_do_not_see_other_sequences() -> None:
    """Two sequences in one pack give the sum of what each gives alone."""
    model, adapter = trained("llama_grouped", torch.float64)
    together = random_pack(LENGTHS)
    _, expected = by_tiles(model, adapter, together, (9, 4))
    sums = {key: torch.zeros_like(each) for key, each in expected.items()}
    for begin, end in zip(together.bounds, together.bounds[1:], strict=False):
        alone = Pack(together.tokens[begin:end], together.labels[begin:end], (0, end - begin))
        _, found = by_tiles(model, adapter, alone, (9, 4))
        for key, each in found.items():
            sums[key] += each * (alone.num_labels / together.num_labels)
    assert difference(sums, expected) <= 1e-12


def test_logits_can_be_computed_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pack = random_pack(LENGTHS)
    expected_loss, expected = by_tiles(*trained("gemma2", torch.float64), pack, (100, 100))
    monkeypatch.setattr(loss, "CPU_LOGITS", 3 * VOCABULARY)
    monkeypatch.setattr(loss, "LEAST_ROWS", 1)
    found_loss, found = by_tiles(*trained("gemma2", torch.float64), pack, (100, 100))
    assert abs(found_loss - expected_loss) <= 1e-12 * expected_loss
    assert difference(found, expected) <= 1e-12


def test_bfloat16_gradients_are_close_to_those_of_float32() -> None:
    pack = random_pack(LENGTHS)
    _, expected = by_tiles(*trained("llama_grouped", torch.float32), pack, (9, 4))
    _, found = by_tiles(*trained("llama_grouped", torch.bfloat16), pack, (9, 4))
    assert all(each.dtype == torch.float32 for each in found.values())
    assert difference(found, expected) < 0.25  # 0.12 measured
