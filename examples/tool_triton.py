"""A tool through Triton's own client, tritonclient: the model's call, the tool's result, the answer.

What the other interfaces do for their clients is done here: the model is told of the tool in a message, a
guide says what a call looks like, and the result is a message of the user. A model whose chat template writes
tools takes them in `tools`, and the result in a message of the role `tool`.
"""

import json
import os
import queue

import numpy as np
import tritonclient.grpc as triton

WEATHER = {"Oslo": "3 degrees, snow", "Paris": "12 degrees, rain", "Cairo": "24 degrees, sun"}


def record(**properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,  # else a small model may go on with properties of its own
    }


CITY = record(city={"enum": list(WEATHER)})
CALL = record(name={"const": "weather"}, arguments=CITY)


def tensor(name, kind, value):
    """One value for the one request of this batch."""
    made = triton.InferInput(name, [1, 1], kind)
    made.set_data_from_numpy(np.array([[value]], triton.triton_to_np_dtype(kind)))
    return made


def answer(messages, **texts):
    """The text that answers, whole."""
    texts = {"messages": json.dumps(messages), **texts}
    inputs = [tensor(name, "BYTES", text.encode()) for name, text in texts.items()]
    answers = queue.SimpleQueue()
    with triton.InferenceServerClient(os.environ.get("TRITON_GRPC_URL", "127.0.0.1:8001")) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("ensemble", [*inputs, tensor("max_tokens", "INT32", 200)])
        result, error = answers.get()
    if error is not None:
        raise error
    return result.as_numpy("text_output").item().decode()


told = 'You learn the weather of a city if you write {"name": "weather", "arguments": {"city": "Rome"}}.'
messages = [{"role": "system", "content": told}, {"role": "user", "content": "How is the weather in Paris?"}]
guide = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(CALL)}
written = answer(messages, **guide)
call = json.loads(written)
print("call:", call["name"], json.dumps(call["arguments"]))

result = f"The weather is {WEATHER[call['arguments']['city']]}."
messages += [{"role": "assistant", "content": written}, {"role": "user", "content": result}]
print("answer:", answer(messages[1:]))  # without the tool: it has what it wanted to know
