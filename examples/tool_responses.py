"""A tool through responses, OpenAI's newer interface: the model's call, the tool's result, the answer.

The server keeps nothing between requests: each brings its whole conversation.
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
TOOL = {"type": "function", "name": "weather", "description": "the weather of a city", "parameters": CITY}

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:9000/v1"),
    api_key=os.environ.get("OPENAI_API_KEY", "none"),
)
asked = {
    "model": client.models.list().data[0].id,
    "tools": [TOOL],
    "parallel_tool_calls": False,
    "max_output_tokens": 200,
}
items = [{"role": "user", "content": "What is the weather in Oslo?"}]
response = client.responses.create(input=items, tool_choice="required", **asked)
call = next(item for item in response.output if item.type == "function_call")
print("call:", call.name, call.arguments)

result = WEATHER[json.loads(call.arguments)["city"]]
items += [*response.output, {"type": "function_call_output", "call_id": call.call_id, "output": result}]
print("answer:", client.responses.create(input=items, tool_choice="none", **asked).output_text)
