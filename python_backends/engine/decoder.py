"""The Llama family's forward pass over one flat batch of tokens: everything but attention is one product for all rows.

Owns the weights, taken from the modules that transformers loaded: a fused block per decoder layer (one product for q, k and v, one for
gate and up), proved equal to transformers' block in tests/cpu. Knows nothing of slots or sampling. Called by the torch engine.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from python_backends.engine.attention import Heads, attend, rotate
from python_backends.engine.kv_cache import KVCache
from python_backends.engine.projection import Projection, project
from python_backends.engine.step_batch import StepBatch


class FusedBlock:
    """One decoder layer of the Llama family; takes the weights out of transformers' `layer`, which is empty afterwards."""

    def __init__(self, layer: Any, index: int, heads: Heads) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        self.index = index
        self.heads = heads
        self.input_norm = _weight(layer.input_layernorm)
        self.output_norm = _weight(layer.post_attention_layernorm)
        self.eps = float(layer.input_layernorm.variance_epsilon)
        self.projections = {
            "qkv": _fuse(attention.q_proj, attention.k_proj, attention.v_proj),
            "o": _fuse(attention.o_proj),
            "gate_up": _fuse(mlp.gate_proj, mlp.up_proj),
            "down": _fuse(mlp.down_proj),
        }
        layer.to("meta")

    def forward(self, x: Tensor, batch: StepBatch, cos_sin: tuple[Tensor, Tensor], cache: KVCache, adapters: None) -> None:
        """Adds the layer's output to x [tokens, hidden]."""
        qkv = project(_norm(x, self.input_norm, self.eps), self, "qkv", adapters)
        x += project(self._attend(qkv, batch, cos_sin, cache), self, "o", adapters)
        gate_up = project(_norm(x, self.output_norm, self.eps), self, "gate_up", adapters)
        gate, up = gate_up.chunk(2, dim=-1)
        x += project(functional.silu(gate).mul_(up), self, "down", adapters)

    def _attend(self, qkv: Tensor, batch: StepBatch, cos_sin: tuple[Tensor, Tensor], cache: KVCache) -> Tensor:
        heads, tokens = self.heads, len(qkv)
        turned = heads.query_width + heads.kv_width
        rotate(qkv[:, :turned].view(tokens, -1, heads.head_dim), *cos_sin)
        cache.write(self.index, batch.write, qkv[:, heads.query_width :].view(tokens, 2, -1, heads.head_dim))
        return attend(qkv, batch.spans, self.index, cache, heads)


class Decoder:
    """`model` is transformers' causal language model; its weights move over here."""

    def __init__(self, model: Any, max_model_tokens: int) -> None:
        config = model.config
        attention = model.model.layers[0].self_attn
        self.heads = Heads(config.num_attention_heads, config.num_key_value_heads, attention.head_dim, attention.scaling)
        self.embedding = _weight(model.model.embed_tokens)  # [vocabulary, hidden]
        self.norm = _weight(model.model.norm)
        self.eps = float(model.model.norm.variance_epsilon)
        self.cos, self.sin = rotary_tables(model.model.rotary_emb, max_model_tokens, self.embedding.dtype)
        self.projections = {"head": Projection(_weight(model.lm_head))}
        self.blocks = [FusedBlock(layer, index, self.heads) for index, layer in enumerate(model.model.layers)]

    def forward(self, batch: StepBatch, cache: KVCache, adapters: None = None) -> Tensor:
        """Runs all tokens of a step; the logits [sampled, vocabulary] of the rows that sample, and of no others."""
        x = functional.embedding(batch.tokens, self.embedding)  # [tokens, hidden]
        cos_sin = (self.cos[batch.positions, None], self.sin[batch.positions, None])  # [tokens, 1, dim]
        for block in self.blocks:
            block.forward(x, batch, cos_sin, cache, adapters)
        if batch.sampling_rows is not None:
            x = x[batch.sampling_rows]
        if not len(x):  # chunks in the middle of prompts only
            return x.new_empty((0, len(self.embedding)))
        return project(_norm(x, self.norm, self.eps), self, "head", adapters)


def rotary_tables(rotary: Any, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, dim] as transformers' rotary module computes them; the first half of sin negated (see `rotate`)."""
    device = rotary.inv_freq.device
    positions = torch.arange(num_positions, device=device)[None]
    cos, sin = rotary(torch.empty(0, dtype=torch.float32, device=device), positions)
    sin = sin.clone()
    sin[..., : sin.shape[-1] // 2] *= -1
    return cos[0].to(dtype), sin[0].to(dtype)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return functional.rms_norm(x, weight.shape, weight, eps)


def _weight(module: Any) -> Tensor:
    weight: Tensor = module.weight.detach()
    return weight


def _fuse(*linears: Any) -> Projection:
    """Projections of the same input as one. Weights are copied, so that nothing keeps the checkpoint's memory."""
    biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
    return Projection(torch.cat([_weight(linear) for linear in linears]), torch.cat(biases) if biases else None)
