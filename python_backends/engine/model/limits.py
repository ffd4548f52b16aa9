"""What of a checkpoint fits into the settings and the memory: the limits that requests are checked with.

Owns nothing; refuses with a SettingsError that names what is wrong. Called by the engines at their start.
"""

from __future__ import annotations

from python_backends.checkpoint.digests import fingerprint
from python_backends.checkpoint.model_facts import ModelFacts
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError
from python_backends.engine.kv.kv_cache import BlockShape
from python_backends.engine.kv.padding import ROW_MULTIPLE, WITH_TILES
from python_backends.engine.model.loading import DTYPES, refused
from python_backends.nouns.request import MAX_STOP_WORDS, ModelLimits
from python_backends.settings import Settings, SettingsError

# of the layers, after which the hidden state says most about the length of the answer (docs/prediction.md)
STATE_DEPTH = 0.53
RETENTION = 2  # blocks for finished prefixes: as many again as all slots can use


def block_shape(settings: Settings, facts: ModelFacts) -> BlockShape:
    return BlockShape(
        num_layers=facts.num_layers,
        block_tokens=settings.engine.block_tokens,
        num_kv_heads=facts.num_kv_heads,
        head_dim=facts.head_dim,
        dtype=DTYPES[settings.model.dtype],
    )


def most_stop_ids(facts: ModelFacts) -> int:
    """The most stop ids that a request may have: those that the door lets through,
    `end_id`, and what the checkpoint calls an end.
    """
    return MAX_STOP_WORDS + len(facts.end_ids) + 2  # end_id, and the end that the tokenizer names


def declared_tokens(settings: Settings, facts: ModelFacts) -> int:
    """The longest sequence that settings and checkpoint allow, whatever fits in memory."""
    return settings.model.max_model_tokens or facts.context


def model_limits(settings: Settings, facts: ModelFacts, measured_blocks: int | None = None) -> ModelLimits:
    """What can be taken. `measured_blocks`: the number of KV blocks that fit the device; None: as the
    settings say.

    Raises SettingsError if not even one sequence of the wanted length fits.
    """
    wanted, size = settings.model.max_model_tokens, settings.engine.block_tokens
    if wanted > facts.longest:
        most = facts.longest
        raise SettingsError(f"model.max_model_tokens = {wanted}: the checkpoint was made for at most {most}")
    max_tokens = declared_tokens(settings, facts)
    num_blocks = _num_blocks(settings, block_shape(settings, facts), -(-max_tokens // size), measured_blocks)
    if wanted > num_blocks * size:
        where = "engine.kv_memory_gib" if measured_blocks is None else "what the device has free"
        raise SettingsError(f"model.max_model_tokens = {wanted}: only {num_blocks * size} tokens fit {where}")
    return ModelLimits(
        max_model_tokens=min(max_tokens, num_blocks * size),
        vocab_size=facts.vocab_size,
        num_slots=settings.engine.slots,
        num_blocks=num_blocks,
        block_tokens=size,
        fingerprint=fingerprint_of(settings),
        row_multiple=ROW_MULTIPLE if settings.model.device == "cpu" else WITH_TILES,
        state_layer=_state_layer(facts.num_layers) if settings.exports_states else 0,
    )


def one_block_limits(settings: Settings, facts: ModelFacts) -> ModelLimits:
    """Of the wanted length whatever fits, before memory is measured."""
    blocks = -(-declared_tokens(settings, facts) // settings.engine.block_tokens)
    return model_limits(settings, facts, blocks).changed(num_blocks=1)


def fingerprint_of(settings: Settings) -> str:
    model, source = settings.model, open_source(settings.model_directory)
    try:
        return fingerprint(source, model.dtype, model.weights, model.device.partition(":")[0])
    except CheckpointError as error:
        raise refused(source, error) from error


def _state_layer(num_layers: int) -> int:
    """After how many layers; 0 where there is no layer after them."""
    return round(STATE_DEPTH * num_layers) if num_layers > 1 else 0


def _num_blocks(
    settings: Settings, shape: BlockShape, blocks_a_slot: int, measured_blocks: int | None
) -> int:
    if settings.engine.kv_blocks:
        return settings.engine.kv_blocks
    fit = settings.engine.kv_bytes // shape.num_bytes if measured_blocks is None else measured_blocks
    if fit == 0:
        raise SettingsError(
            f"engine.kv_memory_gib = {settings.engine.kv_memory_gib}: one block takes {shape.num_bytes} bytes"
        )
    return min(fit, RETENTION * settings.engine.slots * blocks_a_slot)
