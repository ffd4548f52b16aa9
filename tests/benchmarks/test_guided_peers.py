"""What `guided_peers` makes of its engines' answers, and how llama.cpp gets a Llama."""

from __future__ import annotations

import json
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks import guided_peers
from benchmarks.common.work import Job, Timing, Work
from benchmarks.guided_peers import REQUESTS, SCHEMA, load_of, num_records, row_of, whole
from benchmarks.peers.measurement import LeftOut
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


def test_an_engine_that_dies_in_mid_run_is_left_out_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Engine:
        def __init__(self, num_passes: int) -> None:
            self.num_left = num_passes

        def run(self, load: Work) -> tuple[list[Timing], float]:
            self.num_left -= 1
            if self.num_left < 0:
                raise RuntimeError("its process ended with 1")
            return [Timing(1.0, [2.0], 2.0, [0]) for _ in load.jobs], 0.1

    monkeypatch.setattr(guided_peers, "REST_S", 0.0)
    engines: dict[str, Any] = {"one": Engine(1000), "other": Engine(4 * len(REQUESTS))}
    work, left_out = Work([Job([number], 1) for number in range(40)], 16), LeftOut()
    passes = guided_peers.measure(engines, work, 2, left_out)
    assert {name for name, _, _ in passes} == set(engines) == {"one"}
    assert {len(each) for each in passes.values()} == {2}
    assert left_out.reasons == {"other": "its process ended with 1"}


def test_an_answer_that_does_not_follow_the_schema_has_no_row() -> None:
    tokenizer = Tokenizer(models.WordLevel({json.dumps([{**RECORD, "since": 3}]): 0, "[": 1}, "["))
    wrong = [Timing(1.0, [2.0], 2.0, [0])]
    right = [Timing(1.0, [2.0], 2.0, [1])]
    passes: dict[Any, Any] = {
        ("some", at_once, is_guided): [wrong if at_once == 4 else right]
        for at_once in (1, 4)
        for is_guided in (True, False)
    }
    left_out = LeftOut()
    assert [row["at once"] for row in guided_peers.rows_of(passes, tokenizer, left_out)] == [1]
    assert list(left_out.reasons) == ["some, 4 at once"]


def test_the_halves_of_a_llamas_heads_become_neighbours() -> None:
    config = {"model_type": "llama", "num_attention_heads": 2, "num_key_value_heads": 1}
    rows = np.arange(8, dtype=np.float32)[:, None] * np.ones((1, 3), np.float32)
    turned = as_rotated("model.layers.0.self_attn.q_proj.weight", rows, config)
    assert turned[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert as_rotated("model.layers.0.self_attn.k_proj.weight", rows, config)[:3, 0].tolist() == [0, 4, 1]
    for name, kind in (("model.layers.0.self_attn.v_proj.weight", "llama"), ("a.q_proj.weight", "qwen2")):
        assert as_rotated(name, rows, {**config, "model_type": kind}) is rows
