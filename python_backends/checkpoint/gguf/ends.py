"""Which tokens end an answer of a GGUF file's model."""

from __future__ import annotations

from python_backends.checkpoint.gguf.metadata import Metadata

KEYS = ("eos", "eot", "eom")  # end of text, of a turn, of a message
# Tokens that end a turn where the file's template writes them, whatever ids it names: many files have only
# the end of a text.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>")
# Tokens that end a text wherever a file has them: a chat model's file names the end of a turn, and the model
# ends a plain text with one of these.
TEXT_ENDS = ("<|endoftext|>", "<|end_of_text|>")


def end_ids(metadata: Metadata) -> list[int]:
    """Raises CheckpointError."""
    keys = [f"tokenizer.ggml.{name}_token_id" for name in KEYS]
    named = {metadata.whole(key) for key in keys if key in metadata.fields}
    template, tokens = (
        metadata.text("tokenizer.chat_template", ""),
        metadata.many("tokenizer.ggml.tokens", str),
    )
    known = [*(end for end in TURN_ENDS if end in template), *TEXT_ENDS]
    return sorted(named | {tokens.index(end) for end in known if end in tokens})
