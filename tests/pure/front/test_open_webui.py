"""What Open WebUI sends, in its order: the list of models, a streamed chat, and its tasks after the answer,
which are not streamed.
"""

from __future__ import annotations

from typing import Any

from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.pure.front.conftest import KEY
from tests.support.ensemble import Ensemble, Front
from tests.support.front_wire import ask, sent

CHAT = "/v1/chat/completions"
HEADERS = {"Authorization": f"Bearer {KEY}", "X_OpenWebUI_User_Name": "Ada", "X_OpenWebUI_User_Role": "admin"}
QUESTION = {"role": "user", "content": [{"type": "text", "text": "Convert"}]}
CHAT_BODY: dict[str, Any] = {
    "stream": True,
    "model": "toy",
    "messages": [{"role": "system", "content": "Be short."}, QUESTION],
    "stream_options": {"include_usage": True},
}
TASK = "### Task:\nGenerate {what}, as JSON.\n<chat_history>\nUSER: Convert\n</chat_history>"
TASKS: list[dict[str, Any]] = [
    {"max_completion_tokens": 1000, "messages": [{"role": "user", "content": TASK.format(what="a title")}]},
    {"messages": [{"role": "user", "content": TASK.format(what="1-3 tags")}]},
    {"messages": [{"role": "user", "content": TASK.format(what="3-5 follow-up questions")}]},
]


def test_open_webuis_calls_are_answered(front: Front, ensemble: Ensemble) -> None:
    listed = ask(front, "/v1/models", **HEADERS)[2]
    assert [Model.model_validate(each, strict=True).id for each in listed["data"]] == ["toy"]

    status, head, text = sent(front, CHAT, CHAT_BODY, **HEADERS)
    assert (status, head["content-type"].partition(";")[0]) == (200, "text/event-stream")
    assert head["x-accel-buffering"] == "no", "a proxy would keep the stream back"
    *events, end = text.removesuffix("\n\n").split("\n\n")
    assert end == "data: [DONE]"
    chunks = [
        ChatCompletionChunk.model_validate_json(each.removeprefix("data: "), strict=True) for each in events
    ]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "readAll\u2028Lines"
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (14, 5)

    for task in TASKS:
        status, _, said = ask(front, CHAT, {"model": "toy", "stream": False, **task}, **HEADERS)
        assert status == 200, said
        answer = ChatCompletion.model_validate(said, strict=True)
        assert answer.choices[0].message.content == "readAll\u2028Lines"
    assert len(ensemble.asked) == 1 + len(TASKS)
