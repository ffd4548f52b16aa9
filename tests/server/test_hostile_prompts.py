"""Megabytes that are refused in the end: others are served meanwhile."""

from __future__ import annotations

import json
import threading
import time

import pytest

from tests.support.server import doors
from tests.support.server.serving import Gapless

SIZE = 990_000  # bytes; the limit of the settings is a megabyte
ALONE = {"text_input": "def read(self, size=-1):", "max_tokens": 300, "min_tokens": 300}


def _question_again_and_again() -> str:
    """Nearly the question, in the answer before it: looking for it backwards took 16 s a megabyte."""
    part = "a" * (SIZE // 8)
    return json.dumps(
        [
            {"role": "user", "content": part + "b" + part},
            {"role": "assistant", "content": "a" * (SIZE * 6 // 8)},
        ]
    )


HOSTILE = {
    "question": {"messages": _question_again_and_again()},
    "text": {"text_input": "q" * SIZE},
    "accents": {"text_input": " \u0301" * (SIZE // 3)},
    "messages": {"messages": json.dumps([{"role": "user", "content": "x"}] * (SIZE // 40))},
    "as long as is read": {"text_input": " q" * (2048 * 16)},
    "lists": {"messages": "[" + ",".join(["[]"] * 170_000) + "]"},
    "special tokens": {"messages": json.dumps([{"role": "user", "content": "<|end|>" * 9000}])},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_others_are_served_while_megabytes_are_refused(gapless: Gapless, what: str) -> None:
    client, stop, refused = gapless.grpc(), threading.Event(), list[str]()
    before = gapless.generate_stream(**ALONE)

    def attack() -> None:
        content = doors.body(**HOSTILE[what])
        while not stop.is_set():
            refused.append(doors.post(gapless.http_port, "generate", content).status)

    attackers = [threading.Thread(target=attack) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    time.sleep(0.3)
    answer = client.ask(**ALONE)
    for _ in range(5):  # each has a minute
        assert gapless.generate(text_input="a", max_tokens=1)["status"] == 200
    client.finish()
    stop.set()
    for attacker in attackers:
        attacker.join()
    client.close()
    assert refused
    assert set(refused) == {"400"}
    assert (answer.text, answer.reasons) == (before.text, before.reasons)
