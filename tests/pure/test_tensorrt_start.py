"""The TensorRT-LLM engine at its start: how much memory it counts
with, whom it lets in, and what it refuses.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorrt_llm.llm import LLM
from tensorrt_llm.manners import manners

from python_backends.engine.choice import choose
from python_backends.engine.tensorrt_llm.limits import model_limits
from python_backends.instance.build import build
from python_backends.nouns.messages import Predicted
from python_backends.nouns.request import LengthPrediction
from python_backends.scheduling.self_planned import SelfPlannedScheduler
from python_backends.settings import SettingsError
from tests.support.gguf_files import LLAMA, byte_level, write
from tests.support.tensorrt import VOCAB_SIZE, Serving, answer_of, make_settings, submit, write_model

# --- memory


def test_no_more_are_let_in_than_the_blocks_hold_to_the_end(model: Path) -> None:
    """Of 20 blocks of 4 tokens each request needs ceil((8 + 25) / 4) = 9."""
    asked = [submit(number, 8, max_tokens=25) for number in range(5)]
    with Serving(make_settings(model, kv_blocks=20), [asked]) as serving:
        serving.instance.turn()
        assert serving.scheduler.num_running == 2
        assert serving.scheduler.blocks.num_used == 18
        assert serving.run() == {number: answer_of(one) for number, one in enumerate(asked)}
        assert serving.llm.max_queued == 0
        assert serving.llm.num_paused == 0


def test_with_max_utilization_what_an_answer_probably_needs_is_reserved(model: Path) -> None:
    """Of 20 blocks each needs 9, and probably 4; the answers are all
    longer, so TensorRT-LLM has to pause some.
    """
    asked = [submit(number, 8, max_tokens=25) for number in range(5)]
    likely = LengthPrediction(6.0, np.array([2, 3, 4, 6, 8, 12], np.float32))
    told = [Predicted(number, likely) for number in range(5)]
    with Serving(
        make_settings(model, kv_blocks=20, capacity="max_utilization"), [[*asked, *told]]
    ) as serving:
        serving.instance.turn()
        assert serving.scheduler.num_running == 3
        assert serving.run() == {number: answer_of(one) for number, one in enumerate(asked)}
        assert serving.llm.num_paused > 0


def test_the_pool_is_as_large_as_we_count_and_one_block_for_padding(model: Path) -> None:
    with Serving(make_settings(model, kv_blocks=20)) as serving:
        assert serving.llm.num_blocks == 21
        assert serving.engine.limits.num_blocks == 20
        assert serving.engine.limits.max_model_tokens == 80
        assert isinstance(serving.scheduler, SelfPlannedScheduler)


def test_a_pool_that_came_out_smaller_is_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = partialmethod(_with_a_small_pool, num_blocks=7)
    monkeypatch.setattr("tensorrt_llm.llm.LLM.__init__", small)
    with pytest.raises(SettingsError, match="20 KV blocks are wanted, TensorRT-LLM had room for 7"):
        build(make_settings(model, kv_blocks=20))


def _with_a_small_pool(
    self: LLM, *args: Any, num_blocks: int, make: Callable[..., None] = LLM.__init__, **kwargs: Any
) -> None:
    make(self, *args, **kwargs)
    self.num_blocks = num_blocks


def test_where_nobody_says_how_many_blocks_there_are_requests_wait_inside_and_none_is_lost(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of three takes four of the six blocks that there are, and longer than LOST_AFTER_S."""
    monkeypatch.setattr("python_backends.engine.tensorrt_llm.engine.STATS_S", 0.01)
    monkeypatch.setattr("python_backends.engine.tensorrt_llm.request_loop.LOST_AFTER_S", 0.2)
    manners.tells_stats = False
    asked = [submit(number, 6, max_tokens=10) for number in range(3)]
    with Serving(make_settings(model, kv_blocks=20), [asked]) as serving:
        manners.step_ms = 30
        serving.llm.num_blocks = 6
        assert serving.run() == {number: answer_of(one) for number, one in enumerate(asked)}
        assert serving.llm.max_queued == 2
        assert not serving.link.failed
    assert "doesn't say how many KV blocks it has" in caplog.text
    assert "has not begun with its request" in caplog.text


def test_the_largest_rank_of_the_adapters_is_asked_for(model: Path, tmp_path: Path) -> None:
    for name, rank in (("law", 8), ("poems", 128)):
        write_adapter(tmp_path / name, {"r": rank, "target_modules": ["q_proj"]})
    with Serving(make_settings(model, adapters=str(tmp_path))) as serving:
        assert serving.llm.arguments["lora_config"].max_lora_rank == 128


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"r": 257}, "r = 257: must be between 1 and 256"),
        ({"r": True}, "r = True: must be between 1 and 256"),
        ({}, "r can't be read (KeyError: 'r')"),
        ([], "r can't be read (TypeError: "),
    ],
)
def test_an_adapter_without_a_rank_that_may_be_is_refused_at_the_start(
    config: Any, says: str, model: Path, tmp_path: Path
) -> None:
    write_adapter(tmp_path / "law", config)
    with pytest.raises(SettingsError) as refused:
        build(make_settings(model, adapters=str(tmp_path)))
    assert str(refused.value).startswith(f"{tmp_path / 'law/adapter_config.json'}: {says}")


def test_what_several_adapters_change_is_named_and_there_are_no_graphs(model: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "law", {"r": 8, "target_modules": ["model.layers.0.self_attn.q_proj", "o_proj"]})
    settings = make_settings(model, adapters=str(tmp_path))
    with Serving(settings) as serving:
        assert serving.llm.arguments["lora_config"].lora_target_modules == []
        assert serving.llm.arguments["cuda_graph_config"] is None
    write_adapter(tmp_path / "poems", {"r": 8, "target_modules": ["up_proj"]})
    with Serving(settings) as serving:
        named = serving.llm.arguments["lora_config"].lora_target_modules
        assert named == ["attn_dense", "attn_k", "attn_q", "attn_v", "mlp_gate"]
    with Serving(make_settings(model)) as serving:
        assert serving.llm.arguments["cuda_graph_config"].max_batch_size == 3


@pytest.mark.parametrize(
    ("targets", "says"),
    [("all-linear", "must be a list of names"), (["q_proj", "lm_head"], "must be of q_proj, k_proj")],
)
def test_modules_that_can_not_be_named_are_refused_at_the_start(
    targets: Any, says: str, model: Path, tmp_path: Path
) -> None:
    for name in ("law", "poems"):
        write_adapter(tmp_path / name, {"r": 8, "target_modules": targets})
    with pytest.raises(SettingsError, match=says):
        build(make_settings(model, adapters=str(tmp_path)))


def write_adapter(directory: Path, config: Any) -> None:
    directory.mkdir()
    (directory / "adapter_config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("num_gpus", "heads_each"), [(1, 2), (2, 1), (4, 1)])
def test_the_number_of_blocks_follows_from_the_memory_of_each_gpu_and_its_heads(
    tmp_path: Path, num_gpus: int, heads_each: int
) -> None:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64}
    settings = make_settings(
        write_model(tmp_path, **shape), kv_blocks=0, kv_memory_gib=0.001, tensor_parallelism=num_gpus
    )
    with Serving(choose(settings).settings) as serving:
        block_bytes = 2 * 2 * heads_each * 16 * 4 * 4  # K and V, layers, heads, values, float32, tokens
        assert serving.engine.limits.num_blocks == int(0.001 * 2**30) // block_bytes


def test_a_text_config_that_is_null_says_nothing(tmp_path: Path) -> None:
    assert model_limits(make_settings(write_model(tmp_path, text_config=None))).vocab_size == VOCAB_SIZE


# --- what is refused at start


def test_a_configuration_that_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(SettingsError, match=r"config\.json: must hold a JSON object"):
        model_limits(make_settings(tmp_path))


def test_a_gguf_file_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.gguf", LLAMA | byte_level())
    with pytest.raises(SettingsError, match=r"a\.gguf': there is no config\.json"):
        model_limits(make_settings(path))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"arguments": "{"}, "tensorrt_llm.arguments = '{': must be JSON"),
        ({"arguments": "[]"}, "must be a JSON object"),
        ({"arguments": '{"max_batchsize": 4}'}, "max_batchsize: extra inputs are not permitted"),
        ({"arguments": '{"max_batch_size": 4}'}, "max_batch_size"),
        ({"adapters": "/nowhere"}, "adapters.directory = '/nowhere': there is no"),
        ({"kv_blocks": 0}, "config.json has no num_attention_heads: set engine.kv_blocks"),
    ],
)
def test_a_setting_that_can_not_be_used_is_named(model: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        build(make_settings(model, **values))
    assert message in str(refused.value)


def test_what_the_default_sampler_takes_no_notice_of_is_refused(model: Path) -> None:
    refused = set(model_limits(make_settings(model)).unsupported)
    assert {"min_p", "bad_words", "repetition_penalty", "presence_penalty", "frequency_penalty"} < refused
    other = make_settings(model, arguments='{"sampler_type": "TRTLLMSampler"}')
    assert not {"min_p", "bad_words", "repetition_penalty"} & set(model_limits(other).unsupported)


def test_what_only_other_engines_do_is_refused(model: Path) -> None:
    settings = make_settings(model)
    others: dict[str, dict[str, Any]] = {
        "model.device = 'cpu'": {"device": "cpu"},
        "model.device = 'cuda:1': .*CUDA_VISIBLE_DEVICES": {"device": "cuda:1"},
        "model.weights": {"weights": "int8"},
        "model.random_weights = true: .*load_format": {"random_weights": True},
    }
    for name, changed in others.items():
        with pytest.raises(SettingsError, match=name):
            build(replace(settings, model=replace(settings.model, **changed)))
    with pytest.raises(SettingsError, match=r"engine\.cuda_graphs = 'off'"):
        build(make_settings(model, cuda_graphs="off"))


def test_where_tensorrt_llm_is_not_installed_it_says_so(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_llm", None)
    monkeypatch.delitem(sys.modules, "python_backends.engine.tensorrt_llm.engine", raising=False)
    with pytest.raises(
        SettingsError, match=r"engine\.kind = 'tensorrt_llm': .*tensorrt_llm.*docs/tensorrt_llm\.md"
    ):
        build(make_settings(model))


# --- versions


def test_a_version_that_lacks_an_argument_is_refused_at_start(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def older(*, end_id: int, max_tokens: int) -> None: ...

    monkeypatch.setattr("python_backends.engine.tensorrt_llm.engine.SamplingParams", older)
    with pytest.raises(
        SettingsError, match=r"this TensorRT-LLM is not one that this engine knows: .*unexpected keyword"
    ):
        build(make_settings(model))
