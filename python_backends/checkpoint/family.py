"""What a model family is: what its configuration and the names of its tensors mean, and what holds where
config.json leaves a field out.

A row of the table in `families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from python_backends.checkpoint import layer_kinds
from python_backends.checkpoint.kinds import NormKind
from python_backends.checkpoint.layer_kinds import LayerKinds
from python_backends.checkpoint.mixtures import Mixture


class Windows(Enum):
    """Which layers have the configuration's sliding window."""

    NONE = 0
    ALL = 1
    BY_LAYER_TYPE = 2


class RotaryLayers(Enum):
    ALL = 0
    SLIDING = 1  # those with a window
    SLIDING_OR_ALL = 2  # likewise, or all where the configuration has no window
    FLAGGED = 3  # those with a 1 in `no_rope_layers`: transformers' name says the opposite
    NONE = 4


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
    none; and facts. The names of mlp, q_norm and k_norm are the same in all families.
    """

    model_type: str
    defaults: Mapping[str, Any]  # of fields that config.json leaves out, as transformers has them
    rope_theta: float = 10_000.0
    partial_rotary: float | None = None  # how much of a head turns; None: all of it in any checkpoint
    rotary_names: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    longrope_names: tuple[str, ...] = ("longrope",)
    longest: str = ""  # the field of how many tokens may be set, where that is more than the context
    field_names: Mapping[str, str] = field(default_factory=dict)  # in its files, of those that have others
    widening: int = 0  # intermediate_size is so many times hidden_size where the file leaves it out; 0: never
    layer_kinds: LayerKinds = layer_kinds.all_full
    kinds_have_rotaries: bool = False  # sliding and full layers have rotary embeddings of their own

    left_out: tuple[str, ...] = ()  # of a model that takes images, too: beginnings of those tensors' names
    body: str = "model"
    embedding: str = "embed_tokens"
    positions: str = ""  # a table of positions that is added to the embedding
    layers: str = "layers"
    inputs_first: bool = False  # weights of the layers' products are [in, out]
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
    mixture: Mixture | None = None  # what its experts are, in place of up and down in some layers or all

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
    needed: tuple[str, ...] = ()  # that must be absent, None or true


def rope_type(family: Family | None, said: Mapping[str, Any]) -> Any:
    """Of rotary parameters, in their old and new spelling. "mrope" turns parts of a head by an image's rows
    and columns; of a text all of them are the position.
    """
    name = said.get("rope_type") or said.get("type") or "default"
    if name == "mrope":
        return "default"
    return "longrope" if family and name in family.longrope_names else name
