"""Streams one answer to the terminal over gRPC: an example of a minimal client.

python client/stream.py "What is the capital of France?"
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import sys
from typing import Any

import numpy as np
import tritonclient.grpc as triton

LOCAL = ("127.", "localhost:", "[::1]:", "0.0.0.0:")
PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")  # gRPC takes the first that is set


def text(name: str, value: str) -> triton.InferInput:
    tensor = triton.InferInput(name, [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[value.encode()]], object))
    return tensor


def stream(url: str, prompt: str, max_tokens: int) -> None:
    """Prints the answer to `prompt` as it arrives. Raises InferenceServerException."""
    limit = triton.InferInput("max_tokens", [1, 1], "INT32")
    limit.set_data_from_numpy(np.array([[max_tokens]], np.int32))
    streamed = triton.InferInput("stream", [1, 1], "BOOL")
    streamed.set_data_from_numpy(np.array([[True]]))
    messages = text("messages", json.dumps([{"role": "user", "content": prompt}]))
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    # gRPC would take a proxy of the environment for this host, too
    options = [("grpc.enable_http_proxy", 0)] if url.startswith(LOCAL) else None
    with triton.InferenceServerClient(url, channel_args=options) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer("ensemble", [messages, limit, streamed])
        try:
            read(answers)
        except triton.InferenceServerException:
            raise  # the stream ends with it: a cancel at the same time makes tritonserver 2.51 crash
        except BaseException:
            client.stop_stream(cancel_requests=True)  # so that Ctrl-C frees the slot at once
            raise


def read(answers: queue.SimpleQueue[Any]) -> None:
    while True:
        result, error = answers.get()
        if error is not None:
            raise error
        print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
        if result.as_numpy("finish_reason") is not None:
            print()
            return


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("prompt", help="text of the user message")
    parser.add_argument("--host", default="127.0.0.1", help="Gapless's address")
    parser.add_argument("--port", type=int, default=8001, help="its gRPC port")
    parser.add_argument("--max-tokens", type=int, default=256, help="longest answer")
    asked = parser.parse_args()
    try:
        stream(f"{asked.host}:{asked.port}", asked.prompt, asked.max_tokens)
    except triton.InferenceServerException as error:
        print(f"\nerror: {error.message()}", file=sys.stderr)
        if proxy := next((name for name in PROXIES if os.environ.get(name)), None):
            print(f"{proxy} is set: another host is asked through that proxy", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
