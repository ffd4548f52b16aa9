"""What is served: its names, its context, its defaults, and how its tokens are spelled."""

from __future__ import annotations

import logging
import time
from functools import cached_property
from typing import Any, cast

from client.parameters import Parameters
from front.errors import ProblemError
from front.parts.formats import Format, format_of
from front.parts.machine import Tokens
from front.parts.reading import FIRST_MARKER
from python_backends.checkpoint.brought import sampling
from python_backends.checkpoint.model_names import name_of
from python_backends.checkpoint.opening import open_source
from python_backends.nouns.request import AdapterVersion, ModelLimits
from python_backends.settings import Settings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.detokenize.token_bytes import WALL, TokenBytes, token_bytes
from python_backends.text.door.chat_template import ChatTemplate, template_of
from python_backends.watching.board import Board
from python_backends.watching.instance_state import AdapterList, InstanceRecord, State, limits_of_any

log = logging.getLogger("gapless.front")

# of generation_config.json, as other servers take them
DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# of the same file: with them transformers chooses other tokens, also without drawing
NOT_FOLLOWED = (
    *("suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
    *("bad_words_ids", "no_repeat_ngram_size", "sequence_bias"),
)


class Model:
    """The model of this server. Raises CheckpointError where it is made."""

    def __init__(self, settings: Settings, board: Board) -> None:
        directory = settings.model_directory
        named = [name for given in settings.front.model_names.split(",") if (name := given.strip())]
        self.names = tuple(named or [name_of(directory)])
        self.made_s = int(time.time())
        self.checkpoint = read_checkpoint(directory)
        source = open_source(directory)
        self.defaults = defaults({**sampling(directory), **source.generation})
        if names := [name for name in NOT_FOLLOWED if source.generation.get(name)]:
            log.info("generation_config.json: %s: not followed", ", ".join(names))
        self._answer = source.texts.get("response_template")
        self.end_ids = frozenset(self.checkpoint.eos_ids)
        self.board = board
        self.num_instances = settings.cluster.most_instances
        self._adapters = AdapterList(board, self.num_instances) if settings.adapters.directory else None

    @property
    def name(self) -> str:
        """That of answers to requests without one."""
        return self.names[0]

    @property
    def limits(self) -> ModelLimits | None:
        """None before an instance has said them."""
        return limits_of_any(self.board, self.num_instances)

    @property
    def max_tokens(self) -> int:
        """Of prompt and answer together."""
        return self.limits.max_model_tokens if self.limits else self.checkpoint.max_model_tokens

    @property
    def vocab_size(self) -> int:
        return self.checkpoint.vocab_size

    @property
    def adapters(self) -> tuple[AdapterVersion, ...]:
        return self._adapters.read() if self._adapters is not None else ()

    @property
    def has_instance(self) -> bool:
        """Whether one is ready."""
        records = (InstanceRecord(self.board, number) for number in range(self.num_instances))
        return any(record.read()[0] is State.READY for record in records)

    def adapter(self, asked: str | None) -> str:
        """Returns the adapter that a request names; empty: the model itself. Raises ProblemError."""
        if asked is None or asked in self.names:
            return ""
        if any(asked in (adapter.name, adapter.full_name) for adapter in self.adapters):
            return asked
        said = f"model = {asked[:64]!r}: there is no such model; GET /v1/models lists those that there are"
        raise ProblemError(404, said, "model_not_found", "model")

    def spelled(self, token: int, is_first: bool) -> tuple[str, bytes]:
        """Returns a token's text and bytes. `is_first`: a text begins with it."""
        if self._spelling.table[token] == WALL:
            text = self.checkpoint.tokenizer.id_to_token(token) or ""
            return text, text.encode()
        spelled = self._spelling.firsts.get(token) if is_first else None
        data = self._spelling.table[token] if spelled is None else spelled.removeprefix(WALL)
        return data.decode("utf-8", "replace"), data

    def bytes_of(self, token: int, is_first: bool) -> bytes | None:
        """Returns a token's bytes in a text that may begin with it; None: it has none."""
        spelled = self._spelling.firsts.get(token) if is_first else None
        data = self._spelling.table[token] if spelled is None else spelled
        return None if data == WALL else data

    @cached_property
    def form(self) -> Format | None:
        """How the model writes thoughts and calls; None: it writes none."""
        template = self.checkpoint.chat_template
        return format_of(template, frozenset(self._added.values()), self._answer) if template else None

    @cached_property
    def marks(self) -> dict[int, str]:
        """Tokens that mean something in an answer, with their texts."""
        texts = self.form.marks if self.form is not None else ()
        return {
            token: text
            for token, text in self._added.items()
            if text[:1] in ("<", "[") and any(text in mark for mark in texts)
        }

    @cached_property
    def mark_tokens(self) -> Tokens:
        """The same for who reads answers."""
        characters = {text: chr(FIRST_MARKER + i) for i, text in enumerate(self.marks.values())}
        return Tokens(
            characters, [characters[text] for text in characters.keys() & self.checkpoint.special_tokens]
        )

    @cached_property
    def _added(self) -> dict[int, str]:
        added = self.checkpoint.tokenizer.get_added_tokens_decoder().items()
        return {token: added_token.content for token, added_token in added}

    @cached_property
    def template(self) -> ChatTemplate | None:
        """None: the model has none, and takes texts alone. Raises CheckpointError."""
        return template_of(self.checkpoint)[1]

    @cached_property
    def _spelling(self) -> TokenBytes:
        return token_bytes(self.checkpoint)


def defaults(generation: dict[str, Any]) -> Parameters:
    """Returns what a request has that doesn't say it: what generation_config.json says. Without a temperature
    there, it is 1, or 0 if the file says that nothing is drawn.
    """
    found: dict[str, Any] = {"temperature": 0.0 if generation.get("do_sample") is False else 1.0}
    for name in DEFAULTS:
        value = generation.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = int(value) if name == "top_k" else float(value)
    return cast(Parameters, found)
