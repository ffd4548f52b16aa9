"""The ids of a prompt, by each interface: those of the template, or those of the tokenizer, with one start.

The model's tokenizer puts a start before every text, and its template writes the same start.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from front.keys import Keys
from python_backends.nouns.request import Request
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import Door, open_door
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, sent
from tests.support.server.toy_model import TEMPLATE, write_toy_model

START = "<|system|>"  # as SmolLM2's <|im_start|>, it is a marker of messages as well
QUESTION = "What is the capital of France?"
CHAT = [{"role": "user", "content": QUESTION}]
RENDERED = f"{START}<|user|>{QUESTION}<|end|><|assistant|>"
PLAIN = f"{START}{QUESTION}"
BY_CHAT: dict[str, Any] = {
    "/v1/chat/completions": {"messages": CHAT},
    "/v1/responses": {"input": QUESTION},
    "/v1/messages": {"messages": CHAT, "max_tokens": 9},
}


@pytest.fixture(scope="module")
def framing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_toy_model(tmp_path_factory.mktemp("framing") / "toy")
    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    starts = [(START, tokenizer.token_to_id(START))]
    tokenizer.post_processor = TemplateProcessing(f"{START} $A", special_tokens=starts)
    tokenizer.save(str(directory / "tokenizer.json"))
    texts = json.loads((directory / "tokenizer_config.json").read_text())
    texts |= {"bos_token": START, "chat_template": "{{ bos_token }}" + TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(texts))
    return directory


@pytest.fixture(scope="module")
def door(framing: Path) -> Door:
    return open_door(read_checkpoint(framing), LimitSettings())


@pytest.fixture
def front(ensemble: Ensemble, framing: Path, tmp_path: Path) -> Iterator[Front]:
    made = Front(ensemble, framing, tmp_path, Keys(()))
    yield made
    made.close()


def wanted(framing: Path, text: str) -> list[int]:
    """The ids of `text`, in which special tokens are such."""
    tokenizer = Tokenizer.from_file(str(framing / "tokenizer.json"))
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids.count(tokenizer.token_to_id(START)) == 1
    return ids


def prompt(door: Door, **fields: Any) -> list[int]:
    request = door.answer(fields)
    assert isinstance(request, Request), request
    return request.prompt.tolist()


def asked(door: Door, ensemble: Ensemble) -> list[int]:
    """The prompt of the last request that came to the ensemble."""
    fields = {
        name: list(each) if isinstance(each, tuple) else each for name, each in ensemble.asked[-1].items()
    }
    return prompt(door, **fields)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BY_CHAT)
def test_a_chat_has_the_ids_of_the_template_by_each_interface(
    front: Front, ensemble: Ensemble, door: Door, framing: Path, path: str, stream: bool
) -> None:
    if stream:
        assert sent(front, path, {**BY_CHAT[path], "stream": True})[0] == 200
    else:
        assert ask(front, path, BY_CHAT[path])[0] == 200
    assert asked(door, ensemble) == wanted(framing, RENDERED)


def test_the_fields_of_the_ensemble_give_the_same_ids(door: Door, framing: Path) -> None:
    ids = wanted(framing, RENDERED)
    assert prompt(door, messages=json.dumps(CHAT)) == ids
    assert prompt(door, text_input=RENDERED, text_input_is_rendered=True) == ids
    assert prompt(door, input_ids=ids) == ids


def test_a_text_gets_the_tokenizers_start_once(
    front: Front, ensemble: Ensemble, door: Door, framing: Path
) -> None:
    ids = wanted(framing, PLAIN)
    assert prompt(door, text_input=QUESTION) == ids
    assert ask(front, "/v1/completions", {"prompt": QUESTION})[0] == 200
    assert asked(door, ensemble) == ids
    assert ask(front, "/v1/completions", {"prompt": ids})[0] == 200
    assert asked(door, ensemble) == ids


def test_a_request_that_goes_on_has_its_prompt_as_it_was(door: Door, framing: Path) -> None:
    going_on = {"delivered_ids": [5, 6], "stream": True}
    assert prompt(door, messages=json.dumps(CHAT), **going_on) == wanted(framing, RENDERED)
    assert prompt(door, text_input=QUESTION, **going_on) == wanted(framing, PLAIN)


def test_ids_that_are_asked_for_are_those_of_the_requests(front: Front, framing: Path) -> None:
    for body, text in (({"messages": CHAT}, RENDERED), ({"prompt": QUESTION}, PLAIN)):
        assert ask(front, "/tokenize", body)[2]["tokens"] == wanted(framing, text)
