"""The tokens of a checkpoint as guides need them. Called by the door and by an instance."""

from __future__ import annotations

from python_backends.guides.vocabulary import Vocabulary
from python_backends.text.checkpoint import Checkpoint
from python_backends.text.detokenize.token_bytes import WALL, token_bytes


def vocabulary_of(checkpoint: Checkpoint, num_rows: int) -> Vocabulary:
    """`num_rows`: of the model's embedding. Raises CheckpointError."""
    tokens = token_bytes(checkpoint).table[:num_rows]
    tokens += [WALL] * (num_rows - len(tokens))
    special = [token for token, spelled in enumerate(tokens) if spelled == WALL]
    for token in special:
        name = checkpoint.tokenizer.id_to_token(token)
        tokens[token] = (name or f"<unused {token}>").encode()
    encode = checkpoint.tokenizer.encode
    return Vocabulary(
        tokens,
        special,
        checkpoint.eos_ids,
        lambda text: list(encode(text, add_special_tokens=False).ids),
    )
