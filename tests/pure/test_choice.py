"""What `auto` stands for: by checkpoint, processor and device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from python_backends.cluster.policies import policy_of as cluster_policy
from python_backends.engine.choice import choose
from python_backends.engine.cpu import served
from python_backends.engine.kinds import EngineKind, kind_of
from python_backends.scheduling.policies import policy_of as scheduling_policy
from python_backends.settings import (
    ROOT,
    AdapterSettings,
    EngineSettings,
    ModelSettings,
    Settings,
    SettingsError,
    load,
)
from tests.support.published import published
from tests.support.toy_engine import KIND, TOY

AMX = {"avx512_bf16", "amx_bf16"}


def chosen(tmp_path: Path, flags: set[str], config: dict[str, Any], **settings: Any) -> tuple[str, str]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = {name: settings.pop(name) for name in ("kind", "block_tokens") if name in settings}
    adapters = AdapterSettings(settings.pop("adapters", ""))
    given = Settings(
        model=ModelSettings(str(tmp_path), **settings), engine=EngineSettings(**engine), adapters=adapters
    )
    choice = choose(given, flags)
    assert len(choice.reasons) == (given.engine.kind == "auto") + (given.model.dtype == "auto")
    return choice.settings.engine.kind, choice.settings.model.dtype


BF16, F16, F32 = ({"dtype": name} for name in ("bfloat16", "float16", "float32"))


@pytest.mark.parametrize(
    ("flags", "config", "settings", "expected"),
    [
        (AMX, BF16, {}, ("torch", "bfloat16")),
        ({"avx512_bf16"}, {"torch_dtype": "bfloat16"}, {}, ("torch", "bfloat16")),
        ({"avx2"}, BF16, {}, ("torch", "float32")),
        (AMX, F32, {}, ("torch", "float32")),
        (AMX, F16, {}, ("torch", "float32")),
        (AMX, {}, {}, ("torch", "float32")),
        (AMX, {"text_config": {"dtype": "bfloat16"}}, {}, ("torch", "bfloat16")),
        (set(), BF16, {"device": "cuda"}, ("torch", "bfloat16")),
        (set(), F16, {"device": "cuda:1"}, ("torch", "bfloat16")),
        (set(), F32, {"device": "cuda"}, ("torch", "float32")),
        (AMX, BF16, {"kind": TOY}, (TOY, "float32")),
        (AMX, BF16, {"dtype": "float32"}, ("torch", "float32")),
        ({"avx2"}, F32, {"dtype": "bfloat16", "kind": "torch"}, ("torch", "bfloat16")),
    ],
)
def test_the_type_is_the_checkpoints_where_the_processor_multiplies_it(
    tmp_path: Path,
    flags: set[str],
    config: dict[str, Any],
    settings: dict[str, Any],
    expected: tuple[str, str],
) -> None:
    assert chosen(tmp_path, flags, config, **settings) == expected


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}
AVX2 = frozenset(("avx2", "fma", "f16c"))
AVX512 = AVX2 | frozenset(("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"))


@pytest.mark.parametrize(
    ("config", "dtype"),
    [({}, "bfloat16"), ({"torch_dtype": "float16"}, "float32"), ({"intermediate_size": 100}, "float32")],
)
def test_layers_take_bfloat16_where_the_processor_does_not_multiply_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], dtype: str
) -> None:
    monkeypatch.setattr(served, "is_kept", lambda: True)
    assert chosen(tmp_path, set(AVX2), LLAMA | config) == ("torch", dtype)


@pytest.mark.parametrize(
    ("flags", "settings", "dtype"),
    [
        (set(), {}, "float32"),
        (set(), {"weights": "int4"}, "bfloat16"),
        ({"avx512_bf16"}, {}, "bfloat16"),
    ],
)
def test_few_bits_are_read_in_float32_where_the_processor_does_not_multiply_bfloat16(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], settings: dict[str, Any], dtype: str
) -> None:
    monkeypatch.setattr(served, "is_kept", lambda: True)
    given = Settings(model=ModelSettings(str(published("smollm2")), **settings))
    assert choose(given, {*AVX2, *flags}).settings.model.dtype == dtype


MIXTRAL = {"architectures": ["MixtralForCausalLM"], "num_key_value_heads": 4, "num_local_experts": 4}
LAYERS = "engine.kind = torch: with layers in C++"


@pytest.mark.parametrize(
    ("flags", "config", "settings", "reason"),
    [
        (AVX512 | AMX, {}, {}, LAYERS),
        (AVX512, {}, {"dtype": "bfloat16"}, LAYERS),
        (AVX2, {}, {}, LAYERS),
        (AVX2, {}, {"weights": "int8"}, LAYERS),
        ({"avx", "avx2", "f16c"}, {}, {}, "without layers in C++: the processor has no fma"),
        (
            AVX2,
            {"intermediate_size": 100},
            {},
            "intermediate_size = 100: no multiple of 32",
        ),
        (AVX2, MIXTRAL, {}, "mixtures of experts"),
    ],
)
def test_the_start_says_whether_layers_compute_the_model_and_why_not(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: set[str],
    config: dict[str, Any],
    settings: dict[str, Any],
    reason: str,
) -> None:
    monkeypatch.setattr(served, "is_kept", lambda: True)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | config))
    choice = choose(Settings(model=ModelSettings(str(tmp_path), **settings)), flags)
    assert choice.settings.engine.kind == "torch"
    assert reason in choice.reasons[0]


def test_without_a_compiler_torchs_operators_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served, "is_kept", lambda: False)
    monkeypatch.setenv("CXX", "no-such-compiler")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    reasons = choose(Settings(model=ModelSettings(str(tmp_path))), AVX512 | AMX).reasons
    assert "apt-get install g++" in reasons[0]


@pytest.mark.parametrize("config", ["", "[]"], ids=["not JSON", "no table"])
def test_a_checkpoint_that_cannot_be_read_is_left_to_the_engine(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_text(config)
    settings = choose(Settings(model=ModelSettings(str(tmp_path)))).settings
    assert (settings.engine.kind, settings.model.dtype) == ("torch", "float32")


def test_adapters_are_refused_where_the_engine_named_has_none(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=rf"engine\.kind = {TOY} has no adapters; torch, tensorrt_llm have"
    ):
        chosen(tmp_path, AMX, BF16, kind=TOY, adapters="law")


# --- an engine of others: module:NAME


class Echo:
    """An engine of others, as a class."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings


def of_kind(kind: str) -> EngineKind:
    return kind_of(load(ROOT / "gapless.toml", {"engine.kind": kind}))


def test_an_engine_of_others_is_a_kind_or_a_class() -> None:
    assert of_kind(TOY) is KIND
    assert of_kind(f"{__name__}:Echo") == EngineKind(Echo)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:ENGINE", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:ENGINE", "AttributeError: module 'json' has no attribute 'ENGINE'"),
        ("this_raises:ENGINE", "ZeroDivisionError: division by zero"),
    ],
)
@pytest.mark.parametrize("name", ["engine.kind", "scheduling.policy", "cluster.policy"])
def test_what_cannot_be_imported_is_refused_by_the_name_of_its_setting(
    name: str, value: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "this_raises.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SettingsError, match=re.escape(f"{name} = {value!r}: {reason}")):
        found(name, value)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("engine.kind", "EngineKind or a class"),
        ("scheduling.policy", "Policy"),
        ("cluster.policy", "ClusterPolicy"),
    ],
)
def test_what_is_of_another_kind_is_refused(name: str, wanted: str) -> None:
    with pytest.raises(SettingsError, match=rf"{name} = 'json:loads': must be {wanted}, not function"):
        found(name, "json:loads")


def found(name: str, value: str) -> object:
    settings = load(ROOT / "gapless.toml", {name: value})
    return {
        "engine.kind": lambda: kind_of(settings),
        "scheduling.policy": lambda: scheduling_policy(settings.scheduling),
        "cluster.policy": lambda: cluster_policy(settings.cluster),
    }[name]()


@pytest.mark.parametrize("kind", ["toy", ":Engine", "module:", "a b:Engine"])
def test_a_name_without_a_module_is_refused(kind: str) -> None:
    with pytest.raises(SettingsError, match=r"must be one of auto, torch, .*, or module:NAME"):
        of_kind(kind)
