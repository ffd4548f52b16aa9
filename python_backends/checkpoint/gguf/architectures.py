"""The architectures of GGUF files that are served: what llama.cpp's converter did with each, and what
transformers calls its tensors.

A table, read by `configuration` and `tensors`. An architecture is here because the tests compare it with
transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

OUTSIDE = MappingProxyType(
    {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
)


@dataclass(frozen=True, slots=True)
class Architecture:
    model_type: str  # transformers' names
    model_class: str
    layer: MappingProxyType[str, str]  # modules of a layer: llama.cpp's name → transformers'
    layers: str = "model.layers"
    outside: Mapping[str, str] = field(default_factory=lambda: OUTSIDE)  # modules beside the layers, likewise
    eps: str = "rms_norm_eps"
    eps_field: str = "layer_norm_rms_epsilon"
    has_rotaries: bool = True
    inputs_first: bool = False  # transformers has weights of a layer's products as [in, out], the file never
    permuted: bool = False  # rows of q and k are stored so that neighbours turn together
    norm_plus_one: bool = False  # norms are stored as 1 + w
    own_fields: frozenset[str] = frozenset()  # that not every architecture has
    wide_model: int | None = None  # the number of layers of the size that scales queries by hidden / heads

    @property
    def has_experts(self) -> bool:
        return "ffn_gate_inp" in self.layer


_ATTENTION = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
_MLP = {"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
# of all experts in one tensor each
_EXPERTS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
_HEAD_NORMS = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
_LLAMA = MappingProxyType(_ATTENTION | _MLP | {"ffn_norm": "post_attention_layernorm"})
_QWEN3 = MappingProxyType(_LLAMA | _HEAD_NORMS)
_MIXTRAL = MappingProxyType(_ATTENTION | _EXPERTS | {"ffn_norm": "post_attention_layernorm"})
_QWEN3_MOE = MappingProxyType(_MIXTRAL | _HEAD_NORMS)
_GEMMA2 = MappingProxyType(
    _ATTENTION
    | _MLP
    | {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    }
)
_PHI3 = MappingProxyType(
    {
        "attn_norm": "input_layernorm",
        "attn_qkv": "self_attn.qkv_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "ffn_up": "mlp.gate_up_proj",
        "ffn_down": "mlp.down_proj",
    }
)
_GPT2 = MappingProxyType(
    {
        "attn_norm": "ln_1",
        "attn_qkv": "attn.c_attn",
        "attn_output": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn_up": "mlp.c_fc",
        "ffn_down": "mlp.c_proj",
    }
)
_OUTSIDE_GPT2 = MappingProxyType(
    {
        "token_embd": "transformer.wte",
        "position_embd": "transformer.wpe",
        "output_norm": "transformer.ln_f",
        "output": "lm_head",
    }
)

_WINDOW = "attention.sliding_window"
_GEMMA_FIELDS = frozenset({_WINDOW, f"{_WINDOW}_pattern", "final_logit_softcapping"})

ARCHITECTURES = MappingProxyType(
    {
        "llama": Architecture("llama", "LlamaForCausalLM", _LLAMA, permuted=True),
        "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", _LLAMA),
        "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", _QWEN3),
        "qwen3moe": Architecture("qwen3_moe", "Qwen3MoeForCausalLM", _QWEN3_MOE),
        "olmoe": Architecture("olmoe", "OlmoeForCausalLM", _QWEN3_MOE),
        "gemma": Architecture("gemma", "GemmaForCausalLM", _LLAMA, norm_plus_one=True),
        "gemma2": Architecture(
            "gemma2",
            "Gemma2ForCausalLM",
            _GEMMA2,
            norm_plus_one=True,
            own_fields=_GEMMA_FIELDS | {"attn_logit_softcapping"},
            wide_model=46,
        ),
        "gemma3": Architecture(
            "gemma3_text",
            "Gemma3ForCausalLM",
            MappingProxyType(_GEMMA2 | _HEAD_NORMS),
            norm_plus_one=True,
            own_fields=_GEMMA_FIELDS | {"rope.freq_base_swa"},
            wide_model=62,
        ),
        "phi3": Architecture("phi3", "Phi3ForCausalLM", _PHI3, own_fields=frozenset({_WINDOW})),
        "gpt2": Architecture(
            "gpt2",
            "GPT2LMHeadModel",
            _GPT2,
            layers="transformer.h",
            outside=_OUTSIDE_GPT2,
            eps="layer_norm_epsilon",
            eps_field="layer_norm_epsilon",
            has_rotaries=False,
            inputs_first=True,
        ),
    }
)
# what an architecture is called, too, if it has experts
MIXTURES = MappingProxyType({"llama": Architecture("mixtral", "MixtralForCausalLM", _MIXTRAL, permuted=True)})
