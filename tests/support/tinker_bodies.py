"""Asks /api/v1 with the bodies of Tinker's SDK, which were recorded, and other values in them: so the tests
need no SDK.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx2

from front.tinker.proto import ForwardBackwardRequest, SampleResponse

RECORDED = json.loads((Path(__file__).parents[1] / "pure/front/recorded/tinker.json").read_text())
PROTOBUF = {"content-type": "application/x-protobuf"}


def body(name: str, **fields: Any) -> dict[str, Any]:
    return RECORDED[name] | fields


def pass_request() -> Any:
    """Of two data: tokens 5, 6, 7 and 9, 10, of which token 9 has the weight 0."""
    return ForwardBackwardRequest.FromString(base64.b64decode(RECORDED["forward_backward"]))


def said(answer: httpx2.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


class Opened:
    """A session with a model in training."""

    def __init__(self, asks: httpx2.Client, base_model: str) -> None:
        self.asks, self._number = asks, 0
        self.session = said(asks.post("create_session", json=body("create_session")))["session_id"]
        made = body("create_model", session_id=self.session, base_model=base_model)
        self.model = self.awaited(said(asks.post("create_model", json=made))).json()["model_id"]

    def retrieve(self, request: str) -> httpx2.Response:
        return self.asks.post("retrieve_future", json=body("retrieve_future", request_id=request))

    def awaited(self, promise: dict[str, Any]) -> httpx2.Response:
        while (found := self.retrieve(promise["request_id"])).status_code == 408:
            pass
        assert found.status_code == 200, found.text
        return found

    def learn(self, number: int, given: Any = None, **fields: Any) -> httpx2.Response:
        given = given or pass_request()
        given.model_id, given.seq_id = self.model, number
        for name, value in fields.items():
            setattr(given, name, value)
        return self.asks.post("forward_backward", content=given.SerializeToString(), headers=PROTOBUF)

    def asked(self, name: str, number: int, **fields: Any) -> httpx2.Response:
        return self.asks.post(name, json=body(name, model_id=self.model, seq_id=number, **fields))

    def sampler(self, **fields: Any) -> str:
        self._number += 1  # each has its own; a save that makes a sampler has 0
        number = {"sampling_session_seq_id": self._number}
        made = body("create_sampling_session", session_id=self.session, **number, **fields)
        found: str = said(self.asks.post("create_sampling_session", json=made))["sampling_session_id"]
        return found

    def sampled(self, sampler: str, **fields: Any) -> Any:
        """A SampleResponse."""
        asked = said(self.asks.post("asample", json=body("asample", sampling_session_id=sampler, **fields)))
        return SampleResponse.FromString(self.awaited(asked).content)

    def finish(self) -> None:
        said(self.asks.post(f"sessions/{self.session}/finish", json={"reason": {"type": "success"}}))
