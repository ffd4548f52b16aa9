"""An answer streamed over gRPC by Triton's own client, tritonclient."""

import json
import os
import queue

import numpy as np
import tritonclient.grpc as triton


def tensor(name, kind, value):
    """One value for the one request of this batch."""
    made = triton.InferInput(name, [1, 1], kind)
    made.set_data_from_numpy(np.array([[value]], triton.triton_to_np_dtype(kind)))
    return made


messages = json.dumps([{"role": "user", "content": "What is the capital of France?"}])
inputs = [
    tensor("messages", "BYTES", messages.encode()),
    tensor("max_tokens", "INT32", 100),
    tensor("stream", "BOOL", True),
]
answers = queue.SimpleQueue()
with triton.InferenceServerClient(os.environ.get("TRITON_GRPC_URL", "127.0.0.1:8001")) as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("ensemble", inputs)
    reason = None
    while reason is None:  # the last piece has it
        result, error = answers.get()
        if error is not None:
            raise error
        print(result.as_numpy("text_output").item().decode(), end="", flush=True)
        reason = result.as_numpy("finish_reason")
print(f"\nfinish_reason: {reason.item().decode()}")
