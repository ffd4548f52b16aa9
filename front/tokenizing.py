"""/tokenize and /detokenize, as vLLM has them, and Anthropic's count of a prompt's tokens. A prompt gets the
ids that it has in the ensemble: the door itself reads it. It is made at the first use, because it holds a
tokenizer of its own.
"""

from __future__ import annotations

import json
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from front.anthropic.asks import CountAsk
from front.anthropic.prompt import prompt_of
from front.asks import DetokenizeAsk, TokenizeAsk
from front.errors import of_door, refused
from front.fields import read_body
from front.messages import plain_messages
from front.model import Model
from front.tools import extras_of, of_openai
from python_backends.nouns.request import Ids, RefusedError
from python_backends.settings import Settings
from python_backends.text.door.door import ANY_ENGINE, Door, open_door


class Tokenizing:
    """Its functions may take long, and may be called from any thread."""

    def __init__(self, settings: Settings, model: Model) -> None:
        self._settings = settings
        self._model = model
        self._making = Lock()

    def tokenize(self, body: bytes) -> dict[str, Any]:
        """Raises ProblemError."""
        ask = read_body(body, TokenizeAsk)
        if (ask.prompt is None) == (ask.messages is None):
            raise refused("prompt", ", messages: exactly one of them must be given")
        if ask.messages is not None:
            tools, named = list(of_openai(ask.tools or ())), ask.chat_template_kwargs or {}
            extras = extras_of(self._model, tools, named, bool(ask.continue_final_message))
            messages = plain_messages(ask.messages, self._model, bool(tools))
            ids = self._ids(messages=json.dumps(messages, ensure_ascii=False), **extras)
        else:
            ids = self._ids(text_input=ask.prompt)
        return {"count": len(ids), "max_model_len": self._model.max_tokens, "tokens": ids.tolist()}

    def count_message(self, body: bytes) -> dict[str, Any]:
        """Of a request for a message. Raises ProblemError."""
        ask = read_body(body, CountAsk)
        self._model.adapter(ask.model)
        messages, _tools, extras = prompt_of(ask, self._model)
        ids = self._ids(messages=json.dumps(messages, ensure_ascii=False), **extras)
        return {"input_tokens": len(ids)}

    def detokenize(self, body: bytes) -> dict[str, Any]:
        """Raises ProblemError."""
        ask = read_body(body, DetokenizeAsk)
        for i, token in enumerate(ask.tokens):
            if not 0 <= token < self._model.vocab_size:
                raise refused(
                    f"tokens[{i}]", f" = {token}: must be below {self._model.vocab_size}, from 0 on"
                )
        return {"prompt": self.door.encoder.decoded(np.array(ask.tokens, np.int32))}

    def _ids(self, **fields: Any) -> Ids:
        """Returns the ids of a prompt, which may be longer than the context. Raises ProblemError."""
        answer = self.door.of_any_length().answer(fields)
        if isinstance(answer, RefusedError):
            raise of_door(str(answer), answer.code)
        return answer.prompt

    @property
    def door(self) -> Door:
        """That of the ensemble."""
        with self._making:
            return self._door

    @cached_property
    def _door(self) -> Door:
        limits, settings = self._model.limits or ANY_ENGINE, self._settings
        return open_door(
            self._model.checkpoint,
            settings.limits,
            limits.max_model_tokens,
            limits,
            texts_are_rendered=settings.model.text_input_is_rendered,
        )
