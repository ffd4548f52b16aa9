"""Answers that go on with the last message, of tokenizers that drop the space before a text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.wire import Piece
from front.keys import Keys
from tests.pure.front.conftest import MESSAGES
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask
from tests.support.text.checkpoints import sentence_piece_tokenizer, write_checkpoint
from tests.support.tool_model import TEMPLATE

BEGUN = [*MESSAGES, {"role": "assistant", "content": "say"}]
SPACES = [pytest.param(MESSAGES, "hello", id="begun"), pytest.param(BEGUN, " hello", id="continued")]


@pytest.fixture
def pieced(ensemble: Ensemble, tmp_path: Path) -> Iterator[Front]:
    """Its model writes thoughts, and has a tokenizer as Llama 2's."""
    directory = tmp_path / "pieced"
    directory.mkdir()
    texts = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": TEMPLATE}
    write_checkpoint(directory, sentence_piece_tokenizer(), texts, config={"max_position_embeddings": 128})
    made = Front(ensemble, directory, tmp_path, Keys(()))
    yield made
    made.close()


def pieces(front: Front, text: str) -> list[Piece]:
    """An answer of one word, and the stop word that ends it."""
    tokenizer = front.model.checkpoint.tokenizer
    word, stop = (tokenizer.token_to_id(token) for token in ("▁hello", "stop"))
    scores: Any = {"output_log_probs": (-0.5,)}
    return [Piece(text, output_ids=(word,), **scores), Piece("", "stop", output_ids=(stop,), **scores)]


@pytest.mark.parametrize(("messages", "text"), SPACES)
def test_a_message_keeps_its_space_and_names_the_stop_word(
    pieced: Front, ensemble: Ensemble, messages: list[Any], text: str
) -> None:
    ensemble.pieces = pieces(pieced, text)
    body = {"max_tokens": 9, "messages": messages, "stop_sequences": ["stop"]}
    answer = ask(pieced, "/v1/messages", body)[2]
    assert [block["text"] for block in answer["content"]] == [text]
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "stop")


@pytest.mark.parametrize(("messages", "text"), SPACES)
def test_a_chat_keeps_its_space_and_its_tokens_have_it(
    pieced: Front, ensemble: Ensemble, messages: list[Any], text: str
) -> None:
    ensemble.pieces = pieces(pieced, text)
    body = {"messages": messages, "logprobs": True, "continue_final_message": messages is BEGUN}
    (choice,) = ask(pieced, "/v1/chat/completions", body)[2]["choices"]
    assert choice["message"]["content"] == text
    assert choice["logprobs"]["content"][0]["token"] == text
