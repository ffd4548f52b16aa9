"""Turns the raw values of one request into an immutable `Request` or a `RefusedError`. Later stages check
nothing again.

Built once by the tokenizer model from checkpoint and settings. `fields` checks the values on their own; this
module checks what needs the model (tokens, context, vocabulary). Limits of bytes are checked first, then
limits of tokens, then all others, so that a refused request costs no more than an accepted one.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tokenizers import Encoding

from python_backends.nouns.request import (
    AdapterVersion,
    Ids,
    ModelLimits,
    RefusedError,
    Request,
    Sampling,
    Subject,
)
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import Checkpoint, CheckpointError
from python_backends.text.door.chat_template import ChatTemplate
from python_backends.text.door.encoder import PromptEncoder
from python_backends.text.door.fields import (
    FieldReader,
    Values,
    adapter_of,
    bounds,
    refuse_what_the_engine_lacks,
    stop_ids,
)
from python_backends.text.door.special_tokens import SpecialTokens
from python_backends.text.door.subject import MAX_READ_CHARS, num_tokens_of, of_messages, of_text
from python_backends.text.door.table import FIELDS

ANY_ENGINE = ModelLimits(0, 0, 0, 0, 0)  # an engine that supports every field and has no adapters


@dataclass(frozen=True, slots=True, eq=False)
class Door:
    """Checks the requests to one model. Holds what the checks need and never changes."""

    encoder: PromptEncoder
    special: SpecialTokens
    template: ChatTemplate | None
    limits: LimitSettings
    fields: FieldReader
    max_model_tokens: int
    eos_ids: tuple[int, ...]
    engine: ModelLimits
    names_subjects: bool = False  # requests need a subject, from which the length is predicted

    def with_adapters(self, adapters: tuple[AdapterVersion, ...]) -> Door:
        """This door, if these are the adapters that it knows, else one that does."""
        if adapters == self.engine.adapters:
            return self
        return replace(self, engine=self.engine.changed(adapters=adapters))

    def answer(self, fields: Mapping[str, Any]) -> Request | RefusedError:
        """Checks a request's fields (name to value, absent if not given)."""
        arrival_ns = time.monotonic_ns()
        try:
            values = self.fields.read(fields)
            refuse_what_the_engine_lacks(values, self.engine)
            return self._request(values, self._prompt(values), arrival_ns)
        except RefusedError as refused:
            return RefusedError(str(refused))  # a new one: the traceback keeps the values in memory

    def _prompt(self, values: Values) -> str:
        if values["text_input"] is not None:
            return str(values["text_input"])
        if self.template is None:
            raise RefusedError("messages: this model has no chat template; send text_input")
        return self.template.render(values["messages"])

    def _encoded(self, values: Values, prompt: str) -> tuple[Ids, Encoding]:
        """Returns the prompt's ids and its encoding. A prompt that certainly has too many tokens is refused
        before all of it is encoded.
        """
        if self.encoder.has_far_more_tokens(prompt, self._most_prompt_tokens):
            self._check_length(values, self._most_prompt_tokens + 1, more=True)
        encoding = self.encoder.encoding(prompt)
        ids = self.encoder.ids(encoding)
        return ids if values["text_input"] is None else self.encoder.framed(ids), encoding

    def _request(self, values: Values, prompt: str, arrival_ns: int) -> Request:
        ids, encoding = self._encoded(values, prompt)
        timeout_us = values["timeout"]
        return Request(
            request_id=1 + secrets.randbelow((1 << 63) - 1),
            prompt=ids,
            sampling=self._sampling(values, len(ids)),
            stop_words=values["stop_words"],
            stream=values["stream"],
            continues_text=values["text_input"] is not None,
            echo="" if values["exclude_input_in_output"] else self.special.readable(prompt),
            wants_num_input_tokens=values["return_num_input_tokens"],
            wants_num_output_tokens=values["return_num_output_tokens"],
            arrival_ns=arrival_ns,
            deadline_ns=arrival_ns + timeout_us * 1000 if timeout_us else 0,
            priority=values["request_priority"],
            subject=self._subject(values, prompt, encoding) if self.names_subjects else None,
            adapter=adapter_of(values, self.engine.adapters),
        )

    def _subject(self, values: Values, prompt: str, encoding: Encoding) -> Subject:
        text, whole = values["text_input"], values["instruction"]
        instruction, given = of_messages(values["messages"], whole) if text is None else of_text(text, whole)
        count = num_tokens_of(given, prompt, encoding)
        return Subject(instruction[:MAX_READ_CHARS], given[:MAX_READ_CHARS], count)

    def _sampling(self, values: Values, num_prompt: int) -> Sampling:
        max_tokens = self._max_tokens(values, num_prompt)
        min_tokens, seed = values["min_tokens"], values["seed"]
        if min_tokens > max_tokens:
            raise RefusedError(
                f"min_tokens = {min_tokens}: must be at most max_tokens, which is {max_tokens} here"
            )
        return Sampling(
            max_tokens=max_tokens,
            seed=secrets.randbits(63) if seed is None else seed,
            stop_ids=tuple(sorted({*self.eos_ids, *stop_ids(values)})),
            bad_words=self._bad_words(values["bad_words"]),
            **{field.sampling: values[name] for name, field in FIELDS.items() if field.sampling},
        )

    def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Returns the token ids of each word, without and with a space before it, because most vocabularies
        have different tokens for these. Raises RefusedError at the first that has too many tokens, before
        the next one is encoded.
        """
        bad = [
            self._bad_word(i, spelling)
            for i, word in enumerate(words)
            for spelling in ([word] if word[0].isspace() else [word, f" {word}"])
        ]
        return tuple(dict.fromkeys(bad))

    def _bad_word(self, index: int, spelling: str) -> tuple[int, ...]:
        """Returns the token ids of one spelling of the word at `index`. Raises RefusedError."""
        try:
            ids = self.encoder.encode(spelling)
        except RefusedError as error:
            raise RefusedError(f"bad_words[{index}]: {error}") from error
        most = self.engine.max_bad_word_tokens
        if not 1 <= len(ids) <= most:
            raise RefusedError(
                f"bad_words[{index}] = {len(ids)} tokens: must have 1 to {most}, also after a space"
            )
        return tuple(ids.tolist())

    @property
    def _most_prompt_tokens(self) -> int:
        context = self.max_model_tokens - 1
        return min(context, self.limits.max_prompt_tokens or context)

    def _check_length(self, values: Values, num_prompt: int, *, more: bool = False) -> None:
        """Raises RefusedError if `num_prompt` is not allowed. With `more`, the prompt has at least
        `num_prompt` tokens.
        """
        name = "messages" if values["text_input"] is None else "text_input"
        said = f"more than {num_prompt - 1}" if more else num_prompt
        if num_prompt < 1:
            raise RefusedError(f"{name} = 0 tokens: must have at least 1")
        most = self.limits.max_prompt_tokens
        if num_prompt > most > 0:
            raise RefusedError(f"{name} = {said} tokens: must be at most {most} (limits.max_prompt_tokens)")
        if num_prompt >= self.max_model_tokens:
            raise RefusedError(
                f"{name} = {said} tokens: must be at most {self.max_model_tokens - 1}, "
                f"one less than this model's context of {self.max_model_tokens}"
            )

    def _max_tokens(self, values: Values, num_prompt: int) -> int:
        self._check_length(values, num_prompt)
        name = "messages" if values["text_input"] is None else "text_input"
        left = self.max_model_tokens - num_prompt
        max_tokens: int | None = values["max_tokens"]
        if max_tokens is None:
            return min(self.limits.default_max_tokens, left)
        if max_tokens > left:
            raise RefusedError(
                f"max_tokens = {max_tokens}: must be at most {left}, "
                f"because {name} has {num_prompt} tokens and this model's context is {self.max_model_tokens}"
            )
        return max_tokens


def open_door(
    checkpoint: Checkpoint,
    limits: LimitSettings,
    max_model_tokens: int = 0,
    engine: ModelLimits = ANY_ENGINE,
    names_subjects: bool = False,
) -> Door:
    """Builds the door. If `max_model_tokens` is 0, the checkpoint's own context is the limit. Raises
    CheckpointError.
    """
    special = SpecialTokens(checkpoint.tokenizer, checkpoint.special_tokens)
    source = checkpoint.chat_template
    context = _context(checkpoint, max_model_tokens)
    return Door(
        encoder=PromptEncoder(checkpoint.tokenizer, special),
        special=special,
        template=ChatTemplate(source, checkpoint.named_tokens, special) if source else None,
        limits=limits,
        fields=FieldReader(limits, bounds(limits, context), checkpoint.vocab_size),
        max_model_tokens=context,
        eos_ids=checkpoint.eos_ids,
        engine=engine,
        names_subjects=names_subjects,
    )


def _context(checkpoint: Checkpoint, wanted: int) -> int:
    most = wanted or checkpoint.max_model_tokens
    if most < 1:
        raise CheckpointError(
            f"{checkpoint.directory}/config.json doesn't have the length of the context: set"
            " model.max_model_tokens"
        )
    return most
