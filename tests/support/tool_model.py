"""A checkpoint for the toy engine whose template writes thoughts, tools and calls as Qwen's does, and answers
of it in pieces, as the detokenizer sends them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Tokenizer

from client.wire import Piece
from python_backends.nouns.request import Finish, TokenWindow
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.detokenizer import Detokenizer, num_new_tokens
from tests.support.server.toy_model import write_toy_model

TEMPLATE = (
    "{% if tools %}<|system|>Answer <tool_call>{name, arguments}</tool_call> to call one of"
    "{% for tool in tools %} {{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}{% endif %}"
)
SHOWN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
FUNCTION = {
    "name": "weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW = {"name": "now", "description": "the time", "parameters": {"type": "object", "properties": {}}}
# a thought, a text, two calls
ANSWER = (
    "<think>\nWhich city? Łódź.\n</think>\n\nI look. 🌍\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)
THOUGHT, TEXT, ARGUMENTS = "Which city? Łódź.", "I look. 🌍", '{"city": "Łódź"}'


def write_tool_model(directory: Path) -> Path:
    write_toy_model(directory)
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in SHOWN])
    tokenizer.save(str(directory / "tokenizer.json"))
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATE}))
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "vocab_size": tokenizer.get_vocab_size()}))
    return directory


class Answers:
    """Answers of one checkpoint."""

    def __init__(self, directory: Path) -> None:
        checkpoint = read_checkpoint(directory)
        self._tokenizer = checkpoint.tokenizer
        self._end = checkpoint.eos_ids[0]
        self._detokenizer = Detokenizer(checkpoint)

    def pieces(self, text: str, sizes: Sequence[int] = (1,), reason: str = "stop") -> list[Piece]:
        """In pieces of so many tokens, one size after the other; its end comes last."""
        tokens = self._tokenizer.encode(text, add_special_tokens=False).ids + [self._end] * (reason == "stop")
        made: list[Piece] = []
        begin = 0
        while begin < len(tokens):
            reached = min(len(tokens), begin + sizes[len(made) % len(sizes)])
            is_last = reached == len(tokens)
            window = TokenWindow(
                request_id=1,
                tokens=np.array(tokens[:reached], np.int32),
                start=0,
                num_sent=begin,
                min_tokens=0,
                stop_words=(),
                finish=Finish.STOP if is_last else Finish.RUNNING,
            )
            piece = self._detokenizer.piece(window)
            made.append(
                Piece(
                    piece.text,
                    reason if is_last else "",
                    num_input_tokens=14,
                    num_cached_tokens=8,
                    num_output_tokens=num_new_tokens(window, piece),
                    output_ids=tuple(tokens[begin:reached]),
                )
            )
            begin = reached
        return made
