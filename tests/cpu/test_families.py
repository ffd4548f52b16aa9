"""Every family once, by torch and by layers in C++, and what only some have: sliding windows, long
rotary embeddings.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from python_backends.checkpoint.families import FAMILIES
from python_backends.engine.cpu.library import library
from python_backends.engine.model.weights import head_order
from python_backends.engine.torch.engine import TorchEngine
from python_backends.nouns.request import Ids, Request, Sampling
from python_backends.settings import EngineSettings, ModelSettings, Settings
from tests.support.tiny_models import (
    BFLOAT16_REGRET,
    BY_LAYERS,
    RELATIVES,
    TINY,
    VOCABULARY,
    WITH_IMAGES,
    Agreement,
    Serving,
    TinyModel,
    build,
    generate,
    random_requests,
)

WINDOW = 16
SERVED = [("torch", name) for name in sorted(TINY | RELATIVES | WITH_IMAGES)]
SERVED += [("layers", name) for name in sorted(BY_LAYERS.union(WITH_IMAGES))] if library() is not None else []


def test_every_family_is_compared_with_transformers() -> None:
    compared = {type(build(name)).__name__ for name in TINY | RELATIVES | WITH_IMAGES}
    assert compared == set(FAMILIES)


@pytest.mark.parametrize(("kind", "name"), SERVED)
def test_every_family_answers_as_transformers_does(
    tiny: Callable[[str], TinyModel], kind: str, name: str
) -> None:
    """In chunks, beside others, beyond the window; and not by repeating one token."""
    model, requests = tiny(name), random_requests(5, max_tokens=20)
    answers = Serving(model.engine_of(kind, slots=3), token_budget=13).run(requests)
    model.check_all(requests, answers)
    assert all(len(set(answer)) >= 0.4 * len(answer) for answer in answers.values())


@pytest.mark.parametrize(("kind", "name"), [("torch", name) for name in sorted(TINY)])
def test_tokens_in_bfloat16_are_nearly_as_good_as_those_of_float32(
    tiny: Callable[[str], TinyModel], kind: str, name: str
) -> None:
    """Prefill and batched decode round differently in bfloat16: how much is
    agreed on is printed, how good a token is asserted.
    """
    model, requests = tiny(name), random_requests(8, seed=8)
    answers = Serving(model.engine_of(kind, dtype="bfloat16")).run(requests)
    model.check_rounding(f"bfloat16, {kind}", requests, answers, BFLOAT16_REGRET)


@pytest.mark.parametrize("name", ["mistral", "gemma2", "gemma3", "phi3_short"])
@pytest.mark.parametrize(("block_tokens", "token_budget"), [(1, 256), (5, 7), (8, 256), (16, 24), (100, 50)])
def test_prompts_far_longer_than_the_window_are_read_right_in_any_chunks_and_blocks(
    tiny: Callable[[str], TinyModel], name: str, block_tokens: int, token_budget: int
) -> None:
    """Beside short ones, so that rows of one group begin their windows in different blocks."""
    requests = [
        Request(index, _prompt(length), Sampling(max_tokens=24))
        for index, length in enumerate((150, 3, 97, WINDOW, WINDOW + 1))
    ]
    engine = tiny(name).engine(block_tokens=block_tokens, slots=5)
    answers = Serving(engine, token_budget).run(requests)
    tiny(name).check_all(requests, answers)


def test_a_decode_step_reads_only_the_blocks_that_the_window_touches(
    tiny: Callable[[str], TinyModel],
) -> None:
    engine = tiny("gemma2").engine(block_tokens=4)
    read: list[dict[int | None, int]] = []
    batch = engine._launcher.batcher.batch

    def watched(plan: Any) -> Any:
        made = batch(plan)
        read.append(
            {
                window: sum(len(group.gather) for group in spans.decodes)
                for window, spans in made.spans.items()
            }
        )
        return made

    engine._launcher.batcher.batch = watched  # type: ignore[method-assign]
    Serving(engine, token_budget=256).run([Request(0, _prompt(150), Sampling(max_tokens=8))])
    rows_a_block = 2 * engine.cache.shape.num_kv_heads
    assert max(step[WINDOW] for step in read) == 5 * rows_a_block
    assert max(step[None] for step in read) == 40 * rows_a_block


def test_the_served_limit_alone_chooses_the_factors_of_a_long_rotary_embedding(
    tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    """Beyond the original length all requests get the long factors,
    short ones and those that grow past it too.
    """
    always_long, prompts = tiny("phi3"), [_prompt(length) for length in (5, 50, 120)]
    directory = _with_original_length(always_long, tmp_path / "long", 64)
    requests = [Request(index, prompt, Sampling(max_tokens=30)) for index, prompt in enumerate(prompts)]
    answers = Serving(_engine(directory, max_model_tokens=0)).run(requests)
    always_long.check_all(requests, answers)


def test_a_limit_within_the_original_length_chooses_the_short_factors(
    tiny: Callable[[str], TinyModel], tmp_path: Path
) -> None:
    directory = _with_original_length(tiny("phi3"), tmp_path / "short", 64)
    model = type(tiny("phi3").model).from_pretrained(directory).eval()
    answers = Serving(_engine(directory, max_model_tokens=64)).run(
        [Request(0, _prompt(30), Sampling(max_tokens=30))]
    )
    assert answers[0] == generate(model, _prompt(30), 30)
    assert answers[0] != tiny("phi3").reference(_prompt(30), 30)


@pytest.mark.parametrize("neighbours", [False, True])
@pytest.mark.parametrize("rotated", [4, 8, 16])
def test_reordered_heads_have_all_dimensions_once_and_pairs_half_a_head_apart(
    rotated: int, neighbours: bool
) -> None:
    order = head_order(16, rotated, neighbours)
    assert sorted(order.tolist()) == list(range(16))
    first, second = order[: rotated // 2], order[8 : 8 + rotated // 2]
    assert torch.equal(second - first, torch.full_like(first, 1 if neighbours else rotated // 2))


def test_bfloat16_gemma_norms_are_applied_before_rounding(tmp_path: Path) -> None:
    """The first hidden states behind a norm are those of transformers in
    bfloat16 too, though 1 + w is no bfloat16 number.
    """
    model = build("gemma2").to(torch.bfloat16)
    tiny = TinyModel(tmp_path, model, Agreement())
    model.save_pretrained(tmp_path)
    engine = tiny.engine(dtype="bfloat16")
    x = torch.randn((7, 64), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
    with torch.inference_mode():
        assert torch.equal(engine.decoder.blocks[0].norm.of(x), model.model.layers[0].input_layernorm(x))


def _prompt(length: int) -> Ids:
    return np.random.default_rng(length).integers(0, VOCABULARY, length).astype(np.int32)


def _engine(directory: Path, max_model_tokens: int) -> TorchEngine:
    model = ModelSettings(directory=str(directory), dtype="float32", max_model_tokens=max_model_tokens)
    return TorchEngine(Settings(model=model, engine=EngineSettings(slots=3, block_tokens=8, threads=1)))


def _with_original_length(tiny: TinyModel, directory: Path, original: int) -> Path:
    """The same weights, made for `original` tokens first."""
    shutil.copytree(tiny.directory, directory)
    config = json.loads((directory / "config.json").read_text())
    config["rope_parameters"]["original_max_position_embeddings"] = original
    config["original_max_position_embeddings"] = original
    (directory / "config.json").write_text(json.dumps(config))
    return directory
