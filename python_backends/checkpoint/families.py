"""The model families that are served: what their configuration and the names of their tensors mean, and what
holds where config.json leaves a field out.

A table, read by `facts` and `tensor_names`. A family is here because tests/cpu compare it with transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from python_backends.checkpoint import layer_kinds
from python_backends.checkpoint.kinds import NormKind
from python_backends.checkpoint.layer_kinds import LayerKinds


class Windows(Enum):
    """Which layers have the configuration's sliding window."""

    NONE = 0
    ALL = 1
    BY_LAYER_TYPE = 2


class RotaryLayers(Enum):
    ALL = 0
    SLIDING = 1  # those with a window, if there are any
    FLAGGED = 2  # those with a 1 in `no_rope_layers`: transformers' name says the opposite


class HeadNorm(Enum):
    """A norm of queries and of keys: q_norm, k_norm."""

    NONE = 0
    HEAD = 1  # over each head
    WIDTH = 2  # over all heads at once


HAS, FIELD = True, "attention_bias"
Bias = bool | str  # whether there is one, or the field of the configuration that says so


@dataclass(frozen=True, slots=True)
class Family:
    """Names of modules in a layer, "" where there is none; names of configuration fields, "" where there is
    none; and facts. The names of layers, mlp, q_norm and k_norm are the same in all families.
    """

    model_type: str
    defaults: Mapping[str, Any]  # of fields that config.json leaves out, as transformers has them
    rope_theta: float = 10_000.0
    partial_rotary: float | None = None  # how much of a head turns; None: all of it in any checkpoint
    rotary_names: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    longrope_names: tuple[str, ...] = ("longrope",)
    layer_kinds: LayerKinds = layer_kinds.all_full
    kinds_have_rotaries: bool = False  # sliding and full layers have rotary embeddings of their own

    body: str = "model"
    embedding: str = "embed_tokens"
    heads: tuple[str, ...] = ("lm_head",)  # transformers' name of the head, and others in files
    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    qkv_by_head: bool = False  # rows of the fused product: q, k and v of head 0, then of head 1 …
    head_norm: HeadNorm = HeadNorm.NONE
    output: str = "o_proj"
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gated: bool = True
    activation: str = "hidden_act"
    gelu_is_tanh: bool = False  # "gelu" in its oldest files means the approximation

    qkv_bias: Bias = FIELD
    output_bias: Bias = FIELD
    feed_forward_bias: Bias = False
    norm_bias: bool = False
    head_bias: bool = False

    norm_kind: NormKind = NormKind.RMS
    norm_eps: str = "rms_norm_eps"
    norm_adds_one: bool = False  # the checkpoint has w for 1 + w
    attention_norm: str = "input_layernorm"
    attention_output_norm: str = ""
    feed_forward_norm: str = "post_attention_layernorm"
    feed_forward_output_norm: str = ""
    final_norm: str = "norm"

    parallel: bool = False
    parallel_field: str = ""  # of the configuration, in place of `parallel`
    parallel_shares_norm: bool = False  # then there is no feed_forward_norm
    neighbours_turn: bool = False  # rotary pairs are (0, 1), (2, 3) …
    windows: Windows = Windows.NONE
    windows_field: str = ""  # a flag of the configuration: without it no layer has one
    rotary_layers: RotaryLayers = RotaryLayers.ALL

    attention_softcap: str = ""
    attention_scale: str = ""  # "": head_dim ** -0.5
    attention_scalar: str = ""  # its power of -0.5
    logit_softcap: str = ""
    embedding_scale: str = ""
    embedding_root: bool = False  # embeddings · the root of hidden_size
    residual_scale: str = ""
    logit_scale: str = ""
    logit_divisor: str = ""
    refused: tuple[str, ...] = ()  # configuration fields that must be absent, None, 0 or false


def rope_type(family: Family | None, said: Mapping[str, Any]) -> Any:
    """Of rotary parameters, in their old and new spelling."""
    name = said.get("rope_type") or said.get("type") or "default"
    return "longrope" if family and name in family.longrope_names else name


def _family(
    model_type: str, tokens: int, eps: float = 1e-6, kv_heads: int | None = None, **others: Any
) -> Family:
    """`others`: fields of a `Family`, and in `defaults` what else the configuration may leave out."""
    name = others.get("norm_eps", "rms_norm_eps")
    ours = {"max_position_embeddings": tokens, name: eps, "num_key_value_heads": kv_heads}
    defaults = MappingProxyType(_DEFAULTS | ours | others.pop("defaults", {}))
    return Family(model_type, defaults, **others)


_DEFAULTS: dict[str, Any] = {
    "head_dim": None,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "sliding_window": None,
}
_TIED = {"tie_word_embeddings": True}
_WINDOW = {"sliding_window": 4096}
_QWEN: dict[str, Any] = {**_WINDOW, "use_sliding_window": False, "max_window_layers": 28}
_NO_BIAS: dict[str, Any] = {"qkv_bias": False, "output_bias": False}
_LAYER_NORM: dict[str, Any] = {"norm_kind": NormKind.LAYER, "norm_eps": "layer_norm_eps", "norm_bias": True}
_BY_LAYER: dict[str, Any] = {"windows": Windows.BY_LAYER_TYPE}

LLAMA = _family("llama", 2048, feed_forward_bias="mlp_bias")
_GEMMA_DEFAULTS: dict[str, Any] = {**_TIED, "head_dim": 256}
GEMMA = _family(
    "gemma",
    8192,
    kv_heads=16,
    defaults={**_GEMMA_DEFAULTS, "hidden_act": "gelu_pytorch_tanh"},
    norm_adds_one=True,
    embedding_root=True,
    gelu_is_tanh=True,
    refused=("use_bidirectional_attention",),
)
GEMMA2 = _family(
    "gemma2",
    8192,
    kv_heads=4,
    defaults={
        **_GEMMA_DEFAULTS,
        **_WINDOW,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
    },
    layer_kinds=layer_kinds.every(2),
    norm_adds_one=True,
    embedding_root=True,
    activation="hidden_activation",
    attention_output_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_output_norm="post_feedforward_layernorm",
    **_BY_LAYER,
    attention_scalar="query_pre_attn_scalar",
    attention_softcap="attn_logit_softcapping",
    logit_softcap="final_logit_softcapping",
    refused=("use_bidirectional_attention",),
)
OLMO2 = _family(
    "olmo2",
    2048,
    1e-5,
    head_norm=HeadNorm.WIDTH,
    attention_norm="",
    attention_output_norm="post_attention_layernorm",
    feed_forward_norm="",
    feed_forward_output_norm="post_feedforward_layernorm",
)
GLM = _family(
    "glm",
    131_072,
    1.5625e-7,
    kv_heads=2,
    defaults={"head_dim": 128, "attention_bias": True},
    partial_rotary=0.5,
    up=("gate_up_proj",),
    output_bias=False,
    neighbours_turn=True,
)
COHERE = _family(
    "cohere",
    8192,
    1e-5,
    defaults={**_TIED, "logit_scale": 0.0625},
    rope_theta=500_000.0,
    norm_kind=NormKind.LAYER,
    norm_eps="layer_norm_eps",
    feed_forward_norm="",
    parallel=True,
    neighbours_turn=True,
    logit_scale="logit_scale",
    refused=("use_qk_norm",),
)
QWEN2 = _family(
    "qwen2",
    32_768,
    kv_heads=32,
    defaults=_QWEN,
    qkv_bias=HAS,
    output_bias=False,
    layer_kinds=layer_kinds.last_ones,
    **_BY_LAYER,
    windows_field="use_sliding_window",
)

FAMILIES = MappingProxyType(
    {
        "LlamaForCausalLM": LLAMA,
        "Qwen2ForCausalLM": QWEN2,
        "Qwen3ForCausalLM": replace(
            QWEN2,
            model_type="qwen3",
            defaults={**QWEN2.defaults, "head_dim": 128},
            qkv_bias=FIELD,
            output_bias=FIELD,
            head_norm=HeadNorm.HEAD,
        ),
        "MistralForCausalLM": _family(
            "mistral", 131_072, kv_heads=8, defaults=_WINDOW, **_NO_BIAS, windows=Windows.ALL
        ),
        "Gemma2ForCausalLM": GEMMA2,
        "Gemma3ForCausalLM": replace(
            GEMMA2,
            model_type="gemma3_text",
            defaults={
                **GEMMA2.defaults,
                "max_position_embeddings": 131_072,
                "attn_logit_softcapping": None,
                "final_logit_softcapping": None,
                "sliding_window_pattern": 6,
                "rope_local_base_freq": 10_000.0,
            },
            rope_theta=1_000_000.0,
            layer_kinds=layer_kinds.every(6, "sliding_window_pattern"),
            kinds_have_rotaries=True,
            head_norm=HeadNorm.HEAD,
            attention_softcap="",
        ),
        "Phi3ForCausalLM": _family(
            "phi3",
            4096,
            1e-5,
            defaults={"original_max_position_embeddings": 4096},
            partial_rotary=1.0,
            longrope_names=("longrope", "su", "yarn"),
            qkv=("qkv_proj",),
            up=("gate_up_proj",),
            **_NO_BIAS,
            windows=Windows.ALL,
        ),
        "GPTNeoXForCausalLM": _family(
            "gpt_neox",
            2048,
            1e-5,
            defaults={"hidden_act": "gelu", "attention_bias": True, "use_parallel_residual": True},
            partial_rotary=0.25,
            rotary_names=("rotary_emb_base", "rotary_pct"),
            body="gpt_neox",
            embedding="embed_in",
            heads=("lm_head", "embed_out"),
            attention="attention",
            qkv=("query_key_value",),
            qkv_by_head=True,
            output="dense",
            up=("dense_h_to_4h",),
            down="dense_4h_to_h",
            gated=False,
            feed_forward_bias=HAS,
            final_norm="final_layer_norm",
            parallel_field="use_parallel_residual",
            **_LAYER_NORM,
        ),
        "ArceeForCausalLM": _family(
            "arcee",
            4096,
            1e-5,
            defaults={"hidden_act": "relu2"},
            up=("up_proj",),
            gated=False,
            feed_forward_bias="mlp_bias",
        ),
        "CohereForCausalLM": COHERE,
        "Cohere2ForCausalLM": replace(
            COHERE,
            model_type="cohere2",
            defaults={**COHERE.defaults, **_WINDOW, "sliding_window_pattern": 4},
            rope_theta=10_000.0,
            layer_kinds=layer_kinds.every(4, "sliding_window_pattern"),
            **_BY_LAYER,
            rotary_layers=RotaryLayers.SLIDING,
            refused=(),
        ),
        "CwmForCausalLM": _family(
            "cwm",
            131_072,
            1e-5,
            kv_heads=8,
            defaults={
                "head_dim": 128,
                "sliding_window": 8192,
                "rope_parameters": {
                    "rope_type": "llama3",
                    "rope_theta": 1_000_000.0,
                    "factor": 16.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 8192,
                },
            },
            rope_theta=1_000_000.0,
            layer_kinds=layer_kinds.first_of_four_full,
            **_BY_LAYER,
            **_NO_BIAS,
            feed_forward_bias="mlp_bias",
        ),
        "Ernie4_5ForCausalLM": _family(
            "ernie4_5",
            131_072,
            1e-5,
            kv_heads=2,
            defaults={**_TIED, "head_dim": 128, "use_bias": False},
            rope_theta=500_000.0,
            neighbours_turn=True,
            qkv_bias="use_bias",
            output_bias="use_bias",
            feed_forward_bias="use_bias",
        ),
        "Exaone4ForCausalLM": replace(
            OLMO2,
            model_type="exaone4",
            defaults={**OLMO2.defaults, **_WINDOW, "num_key_value_heads": 32, "sliding_window_pattern": 4},
            head_norm=HeadNorm.HEAD,
            layer_kinds=layer_kinds.every(4, "sliding_window_pattern"),
            **_BY_LAYER,
            **_NO_BIAS,
            rotary_layers=RotaryLayers.SLIDING,
        ),
        "GemmaForCausalLM": GEMMA,
        "GlmForCausalLM": GLM,
        "Glm4ForCausalLM": replace(
            GLM,
            model_type="glm4",
            attention_output_norm="post_self_attn_layernorm",
            feed_forward_output_norm="post_mlp_layernorm",
        ),
        "GraniteForCausalLM": replace(
            LLAMA,
            model_type="granite",
            defaults={
                **LLAMA.defaults,
                "embedding_multiplier": 1.0,
                "residual_multiplier": 1.0,
                "attention_multiplier": 1.0,
                "logits_scaling": 1.0,
            },
            attention_scale="attention_multiplier",
            embedding_scale="embedding_multiplier",
            residual_scale="residual_multiplier",
            logit_divisor="logits_scaling",
        ),
        "HeliumForCausalLM": _family(
            "helium",
            4096,
            1e-8,
            kv_heads=20,
            defaults={"head_dim": 128},
            rope_theta=100_000.0,
            output_bias=False,
            feed_forward_bias="mlp_bias",
            neighbours_turn=True,
        ),
        "MinistralForCausalLM": _family(
            "ministral",
            131_072,
            kv_heads=8,
            defaults=_WINDOW,
            layer_kinds=layer_kinds.all_sliding,
            **_BY_LAYER,
            **_NO_BIAS,
        ),
        "NemotronForCausalLM": _family(
            "nemotron",
            4096,
            1e-5,
            defaults={"hidden_act": "relu2"},
            partial_rotary=0.5,
            up=("up_proj",),
            gated=False,
            feed_forward_bias="mlp_bias",
            norm_kind=NormKind.LAYER,
            norm_eps="norm_eps",
            norm_bias=True,
            norm_adds_one=True,
        ),
        "Olmo2ForCausalLM": OLMO2,
        "Olmo3ForCausalLM": replace(
            OLMO2,
            model_type="olmo3",
            defaults={**OLMO2.defaults, **_WINDOW},
            rope_theta=500_000.0,
            layer_kinds=layer_kinds.every(4),
            kinds_have_rotaries=True,
            **_BY_LAYER,
        ),
        "PhiForCausalLM": _family(
            "phi",
            2048,
            1e-5,
            defaults={"hidden_act": "gelu_new"},
            partial_rotary=0.5,
            qkv_bias=HAS,
            output="dense",
            output_bias=HAS,
            up=("fc1",),
            down="fc2",
            gated=False,
            feed_forward_bias=HAS,
            head_bias=True,
            feed_forward_norm="",
            final_norm="final_layernorm",
            parallel=True,
            refused=("qk_layernorm",),
            **_LAYER_NORM,
        ),
        "SeedOssForCausalLM": replace(
            LLAMA,
            model_type="seed_oss",
            defaults={
                **LLAMA.defaults,
                "max_position_embeddings": 524_288,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "attention_bias": True,
                "attention_out_bias": False,
            },
            output_bias="attention_out_bias",
        ),
        "SmolLM3ForCausalLM": replace(
            LLAMA,
            model_type="smollm3",
            defaults={
                **LLAMA.defaults,
                **_TIED,
                "max_position_embeddings": 32_768,
                "num_key_value_heads": 4,
                "use_sliding_window": False,
                "no_rope_layer_interval": 4,
            },
            rope_theta=2_000_000.0,
            layer_kinds=layer_kinds.without_positions,
            **_BY_LAYER,
            rotary_layers=RotaryLayers.FLAGGED,
        ),
        "StableLmForCausalLM": _family(
            "stablelm",
            4096,
            1e-5,
            kv_heads=32,
            defaults={"use_qkv_bias": False, "use_parallel_residual": False},
            partial_rotary=0.25,
            qkv_bias="use_qkv_bias",
            output_bias=False,
            parallel_field="use_parallel_residual",
            parallel_shares_norm=True,
            refused=("qk_layernorm",),
            **_LAYER_NORM,
        ),
        "Starcoder2ForCausalLM": _family(
            "starcoder2",
            4096,
            1e-5,
            kv_heads=2,
            defaults={**_TIED, "hidden_act": "gelu_pytorch_tanh", "use_bias": True},
            up=("c_fc",),
            down="c_proj",
            gated=False,
            qkv_bias="use_bias",
            output_bias="use_bias",
            feed_forward_bias="use_bias",
            norm_kind=NormKind.LAYER,
            norm_eps="norm_epsilon",
            norm_bias=True,
            windows=Windows.ALL,
        ),
    }
)
