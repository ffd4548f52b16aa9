"""Owns the bundled model's tokenizer: byte-level BPE, and the chat template.

Names are split so that snake_case and camelCase differ only in the tokens at their joints: read, _l, ines and
read, L, ines. A small model then learns one change a letter of the alphabet, and copies the rest.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END, PAD = "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT = "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL_TOKENS = [END, PAD, SYSTEM, USER, ASSISTANT]
CONTEXT_LENGTH = 2048

TOKENIZER_CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "pad_token": PAD,
    "additional_special_tokens": [SYSTEM, USER, ASSISTANT],
    "model_max_length": CONTEXT_LENGTH,
    "clean_up_tokenization_spaces": False,
}

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

_PIECES = (
    r"\r?\n *"  # a line break with the next line's indentation
    r"|(?<=[a-zA-Z])_[a-z]"  # the joint of a snake_case name: _l of read_lines
    r"|(?<=[a-z])[A-Z](?=[a-z])"  # the joint of a camelCase name: L of readLines
    r"| ?[A-Z]+(?![a-z])"  # a run of capitals
    r"| ?[A-Z]?[a-z]+"  # a word, or what follows a joint: ines of both
    r"| ?\p{L}+"
    r"| ?_+"
    r"|\d"
    r"| ?[^\s\p{L}\d_]+"
    r"|\s"
)


def train_tokenizer(texts: Iterable[str], vocabulary_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer trained on texts; all 256 bytes are in its alphabet, so every text can be encoded."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return _with_chat_template(tokenizer)


def _with_chat_template(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[SYSTEM, USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_LENGTH,
        clean_up_tokenization_spaces=False,
    )
