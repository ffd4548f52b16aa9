"""The model families that are served: what their configuration and the names of their modules in transformers
mean.

A table, read by `weights` (names) and `checkpoint` (what is refused). A family is here because tests/cpu
compare it with transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from types import MappingProxyType
from typing import Any

from python_backends.engine.model.description import Activation, NormKind


class Windows(Enum):
    """Which layers have the configuration's sliding window."""

    NONE = 0
    ALL = 1
    BY_LAYER_TYPE = 2


class RotaryLayers(Enum):
    ALL = 0
    SLIDING = 1  # those with a window, if there are any
    FLAGGED = 2  # those with a 1 in `no_rope_layers`: transformers' name says the opposite


@dataclass(frozen=True, slots=True)
class Family:
    """Names of modules in a layer, "" where there is none; names of configuration fields, "" where there is
    none; and facts. Names that are the same in all families are in `weights` and in `torch/adapters/modules`:
    layers, mlp, rotary_emb, q_norm, k_norm, and the attention's scaling.
    """

    attention: str = "self_attn"
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    qkv_by_head: bool = False  # rows of the fused product: q, k and v of head 0, then of head 1 …
    output: str = "o_proj"
    up: tuple[str, ...] = ("gate_proj", "up_proj")
    down: str = "down_proj"
    gated: bool = True
    activation: str = "hidden_act"

    norm_kind: NormKind = NormKind.RMS
    norm_adds_one: bool = False  # the checkpoint has w for 1 + w
    attention_norm: str = "input_layernorm"
    attention_output_norm: str = ""
    feed_forward_norm: str = "post_attention_layernorm"
    feed_forward_output_norm: str = ""
    final_norm: str = "norm"

    parallel: bool = False
    parallel_field: str = ""  # of the configuration, in place of `parallel`
    neighbours_turn: bool = False  # rotary pairs are (0, 1), (2, 3) …
    windows: Windows = Windows.NONE
    rotary_layers: RotaryLayers = RotaryLayers.ALL

    attention_softcap: str = ""
    logit_softcap: str = ""
    embedding_scale: str = ""
    residual_scale: str = ""
    logit_scale: str = ""
    logit_divisor: str = ""
    refused: tuple[str, ...] = ()  # configuration fields that must be absent, None, 0 or false


LLAMA = Family()
SLIDING = Family(windows=Windows.BY_LAYER_TYPE)
GEMMA = Family(norm_adds_one=True, refused=("use_bidirectional_attention",))
GEMMA2 = Family(
    norm_adds_one=True,
    activation="hidden_activation",
    attention_output_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_output_norm="post_feedforward_layernorm",
    windows=Windows.BY_LAYER_TYPE,
    attention_softcap="attn_logit_softcapping",
    logit_softcap="final_logit_softcapping",
    refused=("use_bidirectional_attention",),
)
OLMO2 = Family(
    attention_norm="",
    attention_output_norm="post_attention_layernorm",
    feed_forward_norm="",
    feed_forward_output_norm="post_feedforward_layernorm",
)
GLM = Family(up=("gate_up_proj",), neighbours_turn=True)
COHERE = Family(
    norm_kind=NormKind.LAYER,
    feed_forward_norm="",
    parallel=True,
    neighbours_turn=True,
    logit_scale="logit_scale",
    refused=("use_qk_norm",),
)

FAMILIES = MappingProxyType(
    {
        "LlamaForCausalLM": LLAMA,
        "Qwen2ForCausalLM": SLIDING,
        "Qwen3ForCausalLM": SLIDING,
        "MistralForCausalLM": Family(windows=Windows.ALL),
        "Gemma2ForCausalLM": GEMMA2,
        "Gemma3ForCausalLM": replace(GEMMA2, attention_softcap=""),
        "Phi3ForCausalLM": Family(qkv=("qkv_proj",), up=("gate_up_proj",), windows=Windows.ALL),
        "GPTNeoXForCausalLM": Family(
            attention="attention",
            qkv=("query_key_value",),
            qkv_by_head=True,
            output="dense",
            up=("dense_h_to_4h",),
            down="dense_4h_to_h",
            gated=False,
            norm_kind=NormKind.LAYER,
            final_norm="final_layer_norm",
            parallel_field="use_parallel_residual",
        ),
        "ArceeForCausalLM": Family(up=("up_proj",), gated=False),
        "CohereForCausalLM": COHERE,
        "Cohere2ForCausalLM": replace(
            COHERE, windows=Windows.BY_LAYER_TYPE, rotary_layers=RotaryLayers.SLIDING
        ),
        "CwmForCausalLM": SLIDING,
        "Ernie4_5ForCausalLM": Family(neighbours_turn=True),
        "Exaone4ForCausalLM": replace(
            OLMO2, windows=Windows.BY_LAYER_TYPE, rotary_layers=RotaryLayers.SLIDING
        ),
        "GemmaForCausalLM": GEMMA,
        "GlmForCausalLM": GLM,
        "Glm4ForCausalLM": replace(
            GLM,
            attention_output_norm="post_self_attn_layernorm",
            feed_forward_output_norm="post_mlp_layernorm",
        ),
        "GraniteForCausalLM": Family(
            embedding_scale="embedding_multiplier",
            residual_scale="residual_multiplier",
            logit_divisor="logits_scaling",
        ),
        "HeliumForCausalLM": Family(neighbours_turn=True),
        "MinistralForCausalLM": SLIDING,
        "NemotronForCausalLM": Family(
            up=("up_proj",), gated=False, norm_kind=NormKind.LAYER, norm_adds_one=True
        ),
        "Olmo2ForCausalLM": OLMO2,
        "Olmo3ForCausalLM": replace(OLMO2, windows=Windows.BY_LAYER_TYPE),
        "PhiForCausalLM": Family(
            output="dense",
            up=("fc1",),
            down="fc2",
            gated=False,
            norm_kind=NormKind.LAYER,
            feed_forward_norm="",
            final_norm="final_layernorm",
            parallel=True,
            refused=("qk_layernorm",),
        ),
        "SeedOssForCausalLM": LLAMA,
        "SmolLM3ForCausalLM": replace(SLIDING, rotary_layers=RotaryLayers.FLAGGED),
        "StableLmForCausalLM": Family(
            norm_kind=NormKind.LAYER, parallel_field="use_parallel_residual", refused=("qk_layernorm",)
        ),
        "Starcoder2ForCausalLM": Family(
            up=("c_fc",), down="c_proj", gated=False, norm_kind=NormKind.LAYER, windows=Windows.ALL
        ),
    }
)

ACTIVATIONS = MappingProxyType(
    {
        "silu": Activation.SILU,
        "swish": Activation.SILU,
        "gelu": Activation.GELU,
        "gelu_new": Activation.GELU_TANH,
        "gelu_fast": Activation.GELU_TANH,
        "gelu_pytorch_tanh": Activation.GELU_TANH,
        "relu": Activation.RELU,
        "relu2": Activation.RELU_SQUARED,
    }
)


def family_of(config: Any) -> Family:
    """By the architecture that transformers' configuration names first. KeyError if it is not served."""
    return FAMILIES[(config.architectures or ["none"])[0]]


def module_names(config: Any) -> tuple[str, ...]:
    """The linear modules of a layer, in the order in which they are computed."""
    family = family_of(config)
    return (*family.qkv, family.output, *family.up, family.down)


def layer_types(config: Any) -> list[str]:
    """One a layer, for families whose window or rotary embedding depends on it."""
    return list(getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers)


def windows(config: Any) -> list[int | None]:
    """The sliding window of each layer."""
    family, window = family_of(config), getattr(config, "sliding_window", None)
    if family.windows == Windows.BY_LAYER_TYPE:
        return [window if kind == "sliding_attention" else None for kind in layer_types(config)]
    return [window if family.windows == Windows.ALL else None] * config.num_hidden_layers


def rotaries(config: Any) -> list[int | None]:
    """Which of `rope_parameters`, in their order, each layer has; None: no positions."""
    rule, kinds = family_of(config).rotary_layers, list(rope_parameters(config))
    indices = [kinds.index(kind) if kind in kinds else 0 for kind in layer_types(config)]
    if rule == RotaryLayers.FLAGGED:
        turns = [bool(flag) for flag in config.no_rope_layers]
    elif rule == RotaryLayers.SLIDING and config.sliding_window is not None:
        turns = [window is not None for window in windows(config)]
    else:
        turns = [True] * config.num_hidden_layers
    return [index if turn else None for index, turn in zip(indices, turns, strict=True)]


def rope_parameters(config: Any) -> dict[str, dict[str, Any]]:
    """Parameters of the rotary embedding by layer type; "" where all layers have the same."""
    parameters = config.rope_parameters
    return {"": parameters} if "rope_type" in parameters else dict(parameters)


def head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def num_kv_heads(config: Any) -> int:
    return int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
