"""A checkpoint directory for the toy engine: only a tokenizer and a chat template, made in a moment."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 512
EOS = "<|end|>"
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_toy_model(directory: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[EOS, "<|user|>", "<|assistant|>", "<|system|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(Path(json.__file__).read_text().splitlines(), trainer)
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": EOS, "chat_template": TEMPLATE})
    )
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": tokenizer.token_to_id(EOS)})
    )
    config = {
        "max_position_embeddings": 2048,
        "vocab_size": VOCAB_SIZE,
        "eos_token_id": tokenizer.token_to_id(EOS),
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
