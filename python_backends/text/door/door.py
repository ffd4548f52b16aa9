"""Turns the raw values of one request into an immutable `Request` or a `RefusedError`. Later stages check
nothing again, but that ids are in the engine's own vocabulary.

Built once by the tokenizer model from checkpoint and settings. `fields` checks the values on their own; this
module checks what needs the model (tokens, context, vocabulary). Limits of bytes are checked first, then
limits of tokens, then all others, so that a refused request costs no more than an accepted one.
"""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding

from python_backends.checkpoint.source import CheckpointError
from python_backends.guides.guides import Guides
from python_backends.nouns.request import (
    AdapterVersion,
    Ids,
    ModelLimits,
    RefusedError,
    Request,
    Sampling,
    Subject,
    TooLongError,
)
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import Checkpoint, as_checkpoint_error
from python_backends.text.door.chat_template import ChatTemplate, template_of
from python_backends.text.door.encoder import PromptEncoder
from python_backends.text.door.fields import (
    FieldReader,
    Values,
    adapter_of,
    biases,
    refuse_what_the_engine_lacks,
    stop_ids,
)
from python_backends.text.door.guide_fields import read_grammar
from python_backends.text.door.prompt_fields import bounds, of_context
from python_backends.text.door.special_tokens import SpecialTokens
from python_backends.text.door.subject import MAX_READ_CHARS, num_tokens_of, of_messages, of_text
from python_backends.text.door.table import FIELDS
from python_backends.text.vocabulary import vocabulary_of

UNTIL_THE_CONTEXT_ENDS = -1  # max_tokens
ANY_ENGINE = ModelLimits(0, 0, 0, 0, 0)  # an engine that supports every field and has no adapters


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A prompt for the engine, and its text for those who read it."""

    name: str  # of its field
    ids: Ids
    text: str  # special tokens of a template in the secret spelling; empty if it isn't read
    continues_text: bool  # the answer continues this text; else it begins one
    encoding: Encoding | None = None  # of the text; None: the client sent ids


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
    num_rows: int  # of the embedding
    guides: Guides
    texts_are_rendered: bool = False  # what text_input is where a request doesn't say it
    names_subjects: bool = False  # requests need a subject, from which the length is predicted

    def with_adapters(self, adapters: tuple[AdapterVersion, ...]) -> Door:
        """This door, if these are the adapters that it knows, else one that does."""
        if adapters == self.engine.adapters:
            return self
        return replace(self, engine=self.engine.changed(adapters=adapters))

    def of_any_length(self) -> Door:
        """This door, for prompts of any number of tokens; limits of bytes stay."""
        limits = replace(self.limits, max_prompt_tokens=0)
        return replace(self, limits=limits, max_model_tokens=sys.maxsize)

    def check_template(self, file: Path | None) -> None:
        """Raises CheckpointError if the template writes a token that the model can't compute."""
        prompt = self.template.probe.prompt(("user",)) if self.template is not None else None
        try:
            self._check_rows("each chat", self.encoder.encode(self.special.spelled(prompt or "")))
        except RefusedError as error:
            raise CheckpointError(f"{file}: {error}") from error

    def answer(self, fields: Mapping[str, Any]) -> Request | RefusedError:
        """Checks a request's fields (name to value, absent if not given)."""
        arrival_ns = time.monotonic_ns()
        try:
            values = self.fields.read(fields)
            refuse_what_the_engine_lacks(values, self.engine)
            return self._request(values, self._prompt(values), arrival_ns)
        except RefusedError as refused:
            return type(refused)(str(refused))  # a new one: the traceback keeps the values in memory

    def _prompt(self, values: Values) -> Prompt:
        if values["input_ids"] is not None:
            return self._sent(values)
        name = "messages" if values["text_input"] is None else "text_input"
        text = self._rendered(values)
        if self.encoder.has_far_more_tokens(text, self._most_prompt_tokens):
            self._check_length(name, self._most_prompt_tokens + 1, more=True)
        encoding = self.encoder.encoding(text)
        ids = self.encoder.ids(encoding)
        is_plain = name == "text_input" and not self._is_rendered(values)
        if is_plain:
            ids = self.encoder.framed(ids)
        self._check_length(name, len(ids))
        self._check_rows(name, ids)
        is_open = name == "text_input" or values["extras"].continues
        continues = (is_plain and bool(text)) or (is_open and self._ends_within_a_text(ids))
        return Prompt(name, ids, text, continues, encoding)

    def _rendered(self, values: Values) -> str:
        """Returns the prompt's text, with its special tokens in the secret spelling."""
        text = values["text_input"]
        if text is not None:
            return self.special.spelled(text) if self._is_rendered(values) else str(text)
        if self.template is None:
            raise RefusedError("messages: this model has no chat template; send text_input")
        return self.template.prompt(values["messages"], values["extras"])

    def _is_rendered(self, values: Values) -> bool:
        said = values["text_input_is_rendered"]
        return self.texts_are_rendered if said is None else said

    def _sent(self, values: Values) -> Prompt:
        """Returns a prompt that came as ids. Its text is made only for those who read it."""
        ids = values["input_ids"]
        self._check_length("input_ids", len(ids))
        is_read = self.names_subjects or not values["exclude_input_in_output"]
        text = self.encoder.decoded(ids) if is_read else ""
        return Prompt("input_ids", ids, text, self._ends_within_a_text(ids))

    def _ends_within_a_text(self, ids: Ids) -> bool:
        """After a special token a text begins, as the answer in a chat does."""
        return not self.encoder.is_special(int(ids[-1]))

    def _request(self, values: Values, prompt: Prompt, arrival_ns: int) -> Request:
        timeout_us, sampling = values["timeout"], self._sampling(values, prompt)
        adapter = adapter_of(values, self.engine.adapters)
        return Request(
            request_id=1 + secrets.randbelow((1 << 63) - 1),
            prompt=prompt.ids,
            sampling=sampling,
            stop_words=values["stop_words"],
            stream=values["stream"],
            continues_text=prompt.continues_text,
            echo="" if values["exclude_input_in_output"] else self.special.readable(prompt.text),
            wants_num_input_tokens=values["return_num_input_tokens"],
            wants_num_output_tokens=values["return_num_output_tokens"],
            arrival_ns=arrival_ns,
            deadline_ns=arrival_ns + timeout_us * 1000 if timeout_us else 0,
            priority=values["request_priority"],
            subject=self._subject(values, prompt, sampling.max_tokens, adapter),
            adapter=adapter,
            wants_output_ids=values["return_output_ids"],
            delivered=self._delivered(values, sampling.max_tokens),
            wants_prompt_log_probs=values["return_prompt_log_probs"],
            drops_answer=values["max_tokens"] == 0,
        )

    def _delivered(self, values: Values, max_tokens: int) -> tuple[int, ...]:
        """Raises RefusedError."""
        delivered: tuple[int, ...] = values["delivered_ids"]
        if not delivered:
            return ()
        if not values["stream"]:
            raise RefusedError(f"delivered_ids = {len(delivered)} ids: needs stream = true")
        if len(delivered) >= max_tokens:
            raise RefusedError(
                f"delivered_ids = {len(delivered)} ids: must be fewer than max_tokens, which is {max_tokens}"
                " here"
            )
        self._check_rows("delivered_ids", np.array(delivered, np.int32))
        return delivered

    def _subject(
        self, values: Values, prompt: Prompt, max_tokens: int, adapter: AdapterVersion
    ) -> Subject | None:
        """None where no predictor reads it."""
        if not self.names_subjects:
            return None
        whole = values["instruction"]
        if prompt.name == "messages":
            instruction, given = of_messages(values["messages"], whole)
        else:
            instruction, given = of_text(self.special.readable(prompt.text), whole)
        count = num_tokens_of(given, prompt.text, len(prompt.ids), prompt.encoding)
        return Subject(
            instruction[:MAX_READ_CHARS], given[:MAX_READ_CHARS], count, max_tokens, adapter.digest
        )

    def _sampling(self, values: Values, prompt: Prompt) -> Sampling:
        max_tokens = self._max_tokens(values["max_tokens"], prompt)
        self._check_rows("logit_bias_ids", np.array(values["logit_bias_ids"], np.int32))
        min_tokens, seed = values["min_tokens"], values["seed"]
        if min_tokens > max_tokens:
            raise RefusedError(
                f"min_tokens = {min_tokens}: must be at most max_tokens, which is {max_tokens} here"
            )
        return Sampling(
            max_tokens=max(1, max_tokens),
            seed=secrets.randbits(63) if seed is None else seed,
            # a token without a row never comes
            stop_ids=tuple(
                sorted(each for each in {*self.eos_ids, *stop_ids(values)} if each < self.num_rows)
            ),
            grammar=read_grammar(values, self.guides),
            bad_words=self._bad_words(values["bad_words"]),
            logit_bias=biases(values),
            **{field.sampling: values[name] for name, field in FIELDS.items() if field.sampling},
        )

    def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Returns the token ids of each word, at the beginning of a text and within one, without and with a
        space before it, because most vocabularies have different tokens for these. Raises RefusedError at
        the first that has too many tokens, before the next one is encoded.
        """
        bad = [
            self._bad_word(i, spelling, encode)
            for i, word in enumerate(words)
            for spelling in ([word] if word[0].isspace() else [word, f" {word}"])
            for encode in (self.encoder.encode, self.encoder.continued)
        ]
        return tuple(dict.fromkeys(bad))

    def _bad_word(self, index: int, spelling: str, encode: Callable[[str], Ids]) -> tuple[int, ...]:
        """Returns the token ids of one spelling of the word at `index`. Raises RefusedError."""
        try:
            ids = encode(spelling)
        except RefusedError as error:
            raise RefusedError(f"bad_words[{index}]: {error}") from error
        most = self.engine.max_bad_word_tokens
        if not 1 <= len(ids) <= most:
            raise RefusedError(
                f"bad_words[{index}] = {len(ids)} tokens: must have 1 to {most}, also after a space"
            )
        self._check_rows(f"bad_words[{index}]", ids)
        return tuple(ids.tolist())

    @property
    def _most_prompt_tokens(self) -> int:
        context = self.max_model_tokens - 1
        return min(context, self.limits.max_prompt_tokens or context)

    def _check_length(self, name: str, num_prompt: int, *, more: bool = False) -> None:
        """Raises RefusedError if `num_prompt` is not allowed. With `more`, the prompt has at least
        `num_prompt` tokens.
        """
        said = f"more than {num_prompt - 1}" if more else num_prompt
        if num_prompt < 1:
            raise RefusedError(f"{name} = 0 tokens: must have at least 1")
        most = self._most_prompt_tokens
        if num_prompt > most:
            limit = " (limits.max_prompt_tokens)" if most < self.max_model_tokens - 1 else ""
            raise TooLongError(
                f"{name} = {said} tokens: must be at most {most}{limit}{of_context(self.max_model_tokens)}"
            )

    def _check_rows(self, name: str, ids: Ids) -> None:
        """Raises RefusedError at a token that the model can't compute: some tokenizers have more tokens than
        the model has rows.
        """
        most = int(ids.max(initial=0))
        if most >= self.num_rows:
            raise RefusedError(
                f"{name}: has the token {self.encoder.token(most)!r}, whose id is {most}; must be below"
                f" {self.num_rows}, the rows of this model's embedding"
            )

    def _max_tokens(self, wanted: int | None, prompt: Prompt) -> int:
        left = self.max_model_tokens - len(prompt.ids)
        if wanted is None:
            return min(self.limits.default_max_tokens, left)
        if wanted == UNTIL_THE_CONTEXT_ENDS:
            return left
        if wanted > left:
            raise TooLongError(
                f"max_tokens = {wanted}: must be at most {left}, because {prompt.name} has"
                f" {len(prompt.ids)} tokens{of_context(self.max_model_tokens)}"
            )
        return wanted


def open_door(
    checkpoint: Checkpoint,
    limits: LimitSettings,
    max_model_tokens: int = 0,
    engine: ModelLimits = ANY_ENGINE,
    names_subjects: bool = False,
    texts_are_rendered: bool = False,
) -> Door:
    """Builds the door. If `max_model_tokens` is 0, the checkpoint's own context is the limit. Raises
    CheckpointError.
    """
    with as_checkpoint_error(checkpoint.directory):
        special, template = template_of(checkpoint)
        context = _context(checkpoint, max_model_tokens)
        num_rows = engine.vocab_size or checkpoint.num_rows
        made = Door(
            encoder=PromptEncoder(checkpoint.tokenizer, special),
            special=special,
            template=template,
            limits=limits,
            fields=FieldReader(bounds(limits, context, num_rows), checkpoint.vocab_size, context),
            max_model_tokens=context,
            eos_ids=checkpoint.eos_ids,
            engine=engine,
            num_rows=num_rows,
            guides=Guides(partial(vocabulary_of, checkpoint, num_rows)),
            texts_are_rendered=texts_are_rendered,
            names_subjects=names_subjects,
        )
        made.check_template(checkpoint.template_file)
        return made


def _context(checkpoint: Checkpoint, wanted: int) -> int:
    most = wanted or checkpoint.max_model_tokens
    if most < 1:
        path = checkpoint.directory
        file = path if path.is_file() else path / "config.json"
        raise CheckpointError(f"{file} doesn't have the length of the context: set model.max_model_tokens")
    return most
