"""A tool through Anthropic's messages: the model's call, the tool's result, the answer.

Over plain HTTP, without a package. Anthropic's SDK takes the same fields: `Anthropic().messages.create(**…)`.
"""

import json
import os
from urllib.request import Request, urlopen

WEATHER = {"Oslo": "3 degrees, snow", "Paris": "12 degrees, rain", "Cairo": "24 degrees, sun"}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": list(WEATHER)}},
    "required": ["city"],
    "additionalProperties": False,  # else a small model may go on with properties of its own
}
TOOL = {"name": "weather", "description": "the weather of a city", "input_schema": CITY}


def create(**fields):
    """The message that answers; `model` is absent: the one that is served."""
    address = os.environ.get("ANTHROPIC_BASE_URL", "http://127.0.0.1:9000") + "/v1/messages"
    key = os.environ.get("ANTHROPIC_API_KEY", "none")
    headers = {"content-type": "application/json", "x-api-key": key}
    with urlopen(Request(address, json.dumps(fields).encode(), headers)) as answer:
        return json.load(answer)


messages = [{"role": "user", "content": "What is the weather in Cairo?"}]
named = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
message = create(messages=messages, tools=[TOOL], tool_choice=named, max_tokens=200)
call = next(block for block in message["content"] if block["type"] == "tool_use")
print("call:", call["name"], json.dumps(call["input"]))

result = {"type": "tool_result", "tool_use_id": call["id"], "content": WEATHER[call["input"]["city"]]}
messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": [result]}]
message = create(messages=messages, tools=[TOOL], tool_choice={"type": "none"}, max_tokens=200)
print("answer:", "".join(block["text"] for block in message["content"] if block["type"] == "text"))
