"""What `guided_peers` makes of its engines' answers, and how llama.cpp gets a Llama."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.common.work import Job, Timing, Work
from benchmarks.guided_peers import REQUESTS, SCHEMA, load_of, num_records, row_of, whole
from benchmarks.peers.workers.gguf_file import as_rotated

RECORD = {"name": "A", "kind": "thing", "since": 1999, "tags": [], "is_open": True}


def test_records_are_counted_up_to_where_their_list_is_cut() -> None:
    text = json.dumps([RECORD] * 3, indent=1)
    assert [num_records(each) for each in (text, text[:-20], "", "[", "Well")] == [3, 2, 0, 0, 0]
    with pytest.raises(jsonschema.ValidationError):
        num_records(json.dumps([{**RECORD, "since": 3}]))


def test_a_load_has_the_schema_in_every_request_or_in_none() -> None:
    chats = Work([Job([number], 64) for number in range(40)], 16)
    for at_once, count in REQUESTS.items():
        for is_guided in (True, False):
            load = load_of(chats, at_once, is_guided)
            assert (load.in_flight, len(load.jobs)) == (at_once, count)
            assert {job.schema for job in load.jobs} == {SCHEMA if is_guided else ""}


def answered(took_s: float) -> list[Timing]:
    """One answer of two tokens."""
    return [Timing(1.0, [1.5, 1.0 + took_s], 1.0 + took_s, [0, 0])]


def test_a_row_has_the_medians_of_rounds_and_of_their_ratios() -> None:
    tokenizer = Tokenizer(models.WordLevel({"x": 0}, "x"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    passes: dict[Any, Any] = {
        ("some", 4, True): [answered(4.0), answered(2.0), answered(1.0)],
        ("some", 4, False): [answered(1.0), answered(1.0), answered(1.0)],
    }
    row = row_of(passes, "some", 4, tokenizer)
    assert (row["no guide, tok/s"], row["JSON, tok/s"]) == (2.0, 1.0)
    assert (row["of no guide"], row["least"], row["most"], row["records"]) == (0.5, 0.25, 1.0, 0)


def test_an_answer_that_ended_early_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match=r"another number of tokens: \[2\]"):
        whole(answered(1.0), Work([Job([1], 3)], 1))


def test_the_halves_of_a_llamas_heads_become_neighbours() -> None:
    config = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1}
    rows = np.arange(8, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    turned = as_rotated("model.layers.0.self_attn.q_proj.weight", rows, config)
    assert turned[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert as_rotated("model.layers.0.self_attn.k_proj.weight", rows, config)[:3, 0].tolist() == [0, 4, 1]
    for name, kind in (("model.layers.0.self_attn.v_proj.weight", "llama"), ("a.q_proj.weight", "qwen2")):
        assert as_rotated(name, rows, {**config, "model_type": kind}) is rows
