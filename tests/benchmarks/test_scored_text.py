"""How far engines agree with float32 on a text, and what they are given to read it with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from benchmarks import ROOT
from benchmarks.common.scored_text import TEXTS, Scores, text_agreement
from benchmarks.peers.engines import Gapless, Transformers
from benchmarks.peers.workers.quantised_checkpoint import GROUP, write_quantised
from python_backends.checkpoint.opening import open_source

BUNDLED = ROOT / "models" / "bundled"


def test_agreement_counts_likeliest_tokens_and_takes_the_mean_of_all_log_probabilities() -> None:
    reference = [Scores([0.0, 0.0], [1, 2]), Scores([0.0], [3])]
    found = [Scores([-1.0, -2.0], [1, 9]), Scores([-3.0], [3])]
    agreement = text_agreement(reference, found)
    assert agreement.likeliest == pytest.approx(2 / 3)
    assert agreement.perplexity == pytest.approx(math.exp(2))


def test_our_engine_scores_every_token_of_a_text_as_transformers_does() -> None:
    tokenizer = Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))
    texts = [tokenizer.encode(text, add_special_tokens=False).ids[:90] for text in TEXTS[:2]]
    theirs = Transformers(BUNDLED, "float32", 2, 512).score(texts)
    ours = Gapless(BUNDLED, "float32", 2, 512).score(texts)
    for one, other, text in zip(ours, theirs, texts, strict=True):
        assert len(one.log_probs) == len(text) - 1
        assert one.likeliest == other.likeliest
        np.testing.assert_allclose(one.log_probs, other.log_probs, atol=2e-3)


@pytest.mark.parametrize("weights", ["W8A8", "AWQ"])
def test_a_rounded_checkpoint_means_the_weights_within_half_a_step(weights: str, tmp_path: Path) -> None:
    draw = torch.Generator().manual_seed(1)
    name, plain = "model.layers.0.mlp.up_proj.weight", tmp_path / "plain"
    weight = torch.randn(96, 2 * GROUP, generator=draw)
    plain.mkdir()
    save_file({name: weight, "model.norm.weight": torch.ones(4)}, plain / "model.safetensors")
    (plain / "config.json").write_text(json.dumps({"model_type": "llama", "dtype": "float32"}))
    write_quantised(plain, tmp_path / weights, weights)
    source: Any = open_source(tmp_path / weights)
    found = source.read(name).float()
    groups = weight.reshape(96, -1, GROUP)
    steps = {
        "W8A8": (weight.abs().amax(-1) / 127)[:, None].expand(weight.shape),
        "AWQ": ((groups.amax(-1) - groups.amin(-1)) / 15)[..., None]
        .expand(groups.shape)
        .reshape(weight.shape),
    }
    assert ((found - weight).abs() <= 0.52 * steps[weights] + 1e-3).all()
    assert load_file(tmp_path / weights / "model.safetensors")["model.norm.weight"].tolist() == [1] * 4
