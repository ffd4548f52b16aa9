"""Thoughts and calls of an answer that goes on after the death of the server: the same events, no gap and no
repetition.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.retries import Retries
from front import attempts
from front.attempts import Patience
from front.keys import Keys
from tests.pure.front.test_chat_parts import BODY
from tests.pure.front.test_other_parts import ASKED, MESSAGE
from tests.support.ensemble import Ensemble, Front, inputs_of, response
from tests.support.front_wire import sent
from tests.support.tool_model import ANSWER, Answers

STREAMS: dict[str, Any] = {"/v1/chat/completions": BODY, "/v1/responses": ASKED, "/v1/messages": MESSAGE}
UNLIKE = {"id", "created", "created_at", "completed_at", "call_id", "item_id"}  # in two answers


@dataclass
class Mortal(Ensemble):
    """Dies after each `life` pieces of an answer, whose text so far lacks what was held back."""

    life: int = 1000

    def ModelStreamInfer(self, requests: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802
        """As Triton's service."""
        asked = inputs_of(next(requests))
        self.asked.append(asked)
        num_delivered = len(asked.get("delivered_ids", ()))
        begin = number = 0
        while begin < num_delivered:
            piece = self.pieces[number]
            assert piece is not None
            begin, number = begin + len(piece.output_ids), number + 1
        for piece in self.pieces[number : number + self.life]:
            assert piece is not None
            yield response(piece)
        if number + self.life < len(self.pieces):
            context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")


def events_of(front: Front, path: str) -> list[Any]:
    """Without what differs in every answer."""
    lines = sent(front, path, {**STREAMS[path], "stream": True})[2].splitlines()
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [_alike(json.loads(each)) for each in data if each != "[DONE]"]


def _alike(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _alike(each) for name, each in value.items() if name not in UNLIKE}
    return [_alike(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_has_the_same_events_through_deaths_of_the_server(
    path: str, tool_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = Patience(is_up=lambda: True, is_ending=lambda: False, longest_s=60.0)
    monkeypatch.setattr(attempts, "PAUSES", Retries(first_s=0.001))
    ensemble = Mortal(Answers(tool_model).pieces(ANSWER, (2, 1, 5)))
    front = Front(ensemble, tool_model, tmp_path, Keys(()), patience=patience)
    try:
        undisturbed = events_of(front, path)
        assert len(ensemble.asked) == 1
        ensemble.life = 7
        assert events_of(front, path) == undisturbed
        assert len(ensemble.asked) > 3
    finally:
        front.close()
