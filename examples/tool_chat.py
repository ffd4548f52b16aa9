"""A tool through chat completions: the model's call, the tool's result, the answer.

`tool_choice` names the tool, so the answer is a call whose arguments follow the schema, however small the
model is. With "auto" the model decides.
"""

import json
import os

from openai import OpenAI

WEATHER = {"Oslo": "3 degrees, snow", "Paris": "12 degrees, rain", "Cairo": "24 degrees, sun"}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": list(WEATHER)}},
    "required": ["city"],
    "additionalProperties": False,  # else a small model may go on with properties of its own
}
TOOL = {"name": "weather", "description": "the weather of a city", "parameters": CITY}

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
asked = {
    "model": client.models.list().data[0].id,
    "tools": [{"type": "function", "function": TOOL}],
    "parallel_tool_calls": False,
    "max_tokens": 200,
}
messages = [{"role": "user", "content": "What is the weather in Paris?"}]
named = {"type": "function", "function": {"name": "weather"}}
message = client.chat.completions.create(messages=messages, tool_choice=named, **asked).choices[0].message
call = message.tool_calls[0]
print("call:", call.function.name, call.function.arguments)

result = WEATHER[json.loads(call.function.arguments)["city"]]
messages += [message, {"role": "tool", "tool_call_id": call.id, "content": result}]
answer = client.chat.completions.create(messages=messages, tool_choice="none", **asked)
print("answer:", answer.choices[0].message.content)
