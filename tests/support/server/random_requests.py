"""Requests drawn at random, as bytes for one of the doors: most nearly right, some entirely wrong."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2

from tests.support.server import doors

WORDS = ("def", "self", "return", "size", "read", "(", ")", "\0", "\n", "<|end|>")
WORDS += ("\u0928\u092e\u0938\u094d\u0924\u0947", "\U0001f44b\U0001f3fd", "e\u0301")
NUM_IDS = 512  # every vocabulary that is served here has these token ids
NUMBERS: tuple[Any, ...] = (
    0,
    -1,
    1,
    2,
    2**31 - 1,
    -(2**31),
    2**40,
    2**70,
    0.5,
    1e38,
    -1e-45,
    math.nan,
    math.inf,
    -math.inf,
)
ODD: tuple[Any, ...] = (
    *NUMBERS,
    "",
    "x",
    "\ud800",
    None,
    True,
    [],
    [1],
    [[1, 2], [3]],
    {},
    {"a": 1},
    "\u0000",
    "9" * 400,
)
FIELDS = {  # name: datatype of its tensor
    "text_input": "BYTES",
    "messages": "BYTES",
    "input_ids": "INT32",
    "tools": "BYTES",
    "chat_template_kwargs": "BYTES",
    "continue_final_message": "BOOL",
    "text_input_is_rendered": "BOOL",
    "delivered_ids": "INT32",
    "max_tokens": "INT32",
    "min_tokens": "INT32",
    "temperature": "FP32",
    "top_k": "INT32",
    "top_p": "FP32",
    "seed": "UINT64",
    "stream": "BOOL",
    "stop_words": "BYTES",
    "stop_token_ids": "INT32",
    "bad_words": "BYTES",
    "end_id": "INT32",
    "pad_id": "INT32",
    "min_p": "FP32",
    "repetition_penalty": "FP32",
    "presence_penalty": "FP32",
    "frequency_penalty": "FP32",
    "guided_decoding_guide_type": "BYTES",
    "guided_decoding_guide": "BYTES",
    "logit_bias_ids": "INT32",
    "logit_bias_values": "FP32",
    "beam_width": "INT32",
    "exclude_input_in_output": "BOOL",
    "return_log_probs": "BOOL",
    "num_top_log_probs": "INT32",
    "return_prompt_log_probs": "BOOL",
    "return_num_input_tokens": "BOOL",
    "return_num_output_tokens": "BOOL",
    "return_output_ids": "BOOL",
    "lora_name": "BYTES",
    "lora_task_id": "UINT64",
    "request_priority": "INT32",
    "instruction": "BYTES",
    "num_return_sequences": "INT32",
    "length_penalty": "FP32",
    "len_penalty": "FP32",
    "early_stopping": "BOOL",
    "beam_search_diversity_rate": "FP32",
    "no_repeat_ngram_size": "INT32",
    "return_context_logits": "BOOL",
    "return_generation_logits": "BOOL",
    "return_perf_metrics": "BOOL",
    "return_kv_cache_reuse_stats": "BOOL",
    "num_draft_tokens": "INT32",
    "use_draft_logits": "BOOL",
    "decoder_text_input": "BYTES",
    "image_url_input": "BYTES",
    "prompt_vocab_size": "INT32",
    "embedding_bias_words": "BYTES",
    "embedding_bias_weights": "FP32",
}
DATATYPES = (
    "BOOL",
    "INT8",
    "INT32",
    "INT64",
    "UINT8",
    "UINT64",
    "FP16",
    "FP32",
    "FP64",
    "BYTES",
    "NONSENSE",
    "",
)
SHAPES = ([1, 1], [1], [], [0], [0, 1], [1, 0], [2, 1], [1, 2], [65, 1], [1, 1, 1], [-1, 1], [2**40, 2**40])


@dataclass(frozen=True)
class Shot:
    door: str  # generate | generate_stream | grpc
    content: bytes
    kind: str
    is_valid: bool | None = None  # None: may be either
    leave_after_s: float | None = None

    @property
    def is_request(self) -> bool:
        """Triton takes a gRPC message that it can't read for the end of the call, and says nothing."""
        return self.door != "grpc" or _is_message(self.content)

    def __str__(self) -> str:
        return f"{self.kind} through {self.door}: {self.content[:300]!r}"


def shot(rng: random.Random) -> Shot:
    return _shot(rng, *rng.choices(KINDS, WEIGHTS)[0])


def bad_shot(rng: random.Random) -> Shot:
    """None that is right and stays so."""
    return _shot(rng, *rng.choices(KINDS[1:], WEIGHTS[1:])[0])


def _shot(rng: random.Random, kind: str, make: Make, is_valid: bool | None) -> Shot:
    door = rng.choice(("generate", "generate_stream", "grpc", "grpc"))
    leave = rng.uniform(0, 0.6) if kind == "valid" and rng.random() < 0.35 else None
    if door == "generate" and leave is not None:
        door = "generate_stream"  # a client that hangs up on plain `generate` can't be seen
    content = make(rng, door)
    return Shot(door, content, kind, is_valid, leave)


def _is_message(content: bytes) -> bool:
    try:
        service_pb2.ModelInferRequest.FromString(content)
    except DecodeError:
        return False
    return True


# --- right ones


def _valid(rng: random.Random, door: str) -> bytes:
    inputs: dict[str, Any] = {
        **_prompt(rng),
        "max_tokens": rng.randint(1, 60),
        "stream": door != "generate",
    }
    for share, draw in OPTIONS:
        if rng.random() < share:
            inputs |= draw(rng)
    timeout_us = rng.randrange(1, 500_000) if rng.random() < 0.2 else None
    if door == "grpc":
        return doors.message(timeout_us, **inputs)
    return doors.body(**inputs, **({"timeout": timeout_us} if timeout_us else {}))


def _sampling(rng: random.Random) -> dict[str, Any]:
    return {
        "temperature": rng.choice([0.0, 1e-30, 0.7, 1.0, 100.0]),
        "seed": rng.getrandbits(63),
        "top_k": rng.choice([0, 1, 50]),
        "top_p": rng.choice([1e-30, 0.5, 1.0]),
    }


OPTIONS: list[tuple[float, Callable[[random.Random], dict[str, Any]]]] = [  # a share of the requests has them
    (0.3, _sampling),
    (0.3, lambda rng: {"stop_words": rng.choice([["e"], ["self", "\n\n", ""], [""], ["never there"] * 3])}),
    (0.2, lambda rng: {"stop_token_ids": [rng.randrange(NUM_IDS) for _ in range(rng.randint(1, 16))]}),
    (0.1, lambda rng: {"logit_bias_ids": [7, 9], "logit_bias_values": [rng.uniform(-100, 100), -100.0]}),
    (0.2, lambda rng: {"return_log_probs": True, "num_top_log_probs": rng.choice([0, 1, 3, 20])}),
    (0.1, lambda rng: {"return_log_probs": True, "return_prompt_log_probs": True}),
    (0.2, lambda rng: {"exclude_input_in_output": rng.random() < 0.5}),
    (0.05, lambda rng: {"max_tokens": 0, "exclude_input_in_output": False}),
    (0.2, lambda rng: {"return_num_input_tokens": rng.random() < 0.5}),
    (0.2, lambda rng: {"return_num_output_tokens": rng.random() < 0.5}),
    (0.3, lambda rng: {"request_priority": rng.randint(-3, 3)}),
    (0.1, lambda rng: {"instruction": _text(rng)}),
]


def _prompt(rng: random.Random) -> dict[str, Any]:
    rendered: dict[str, Any] = {"text_input": _text(rng), "text_input_is_rendered": rng.random() < 0.5}
    ids = {"input_ids": [rng.randrange(NUM_IDS) for _ in range(rng.randint(1, 40))]}
    return rng.choice([{"text_input": _text(rng)}, rendered, ids])


def _text(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 40)))


# --- a value that can't be


def _refused(rng: random.Random, door: str) -> bytes:
    """Right types, wrong values: the door names them."""
    wrong = rng.choice(
        [
            {"max_tokens": rng.choice([0, -2, 2**31 - 1])},
            {"min_tokens": 5, "max_tokens": 4},
            {"temperature": rng.choice([-1.0, math.inf, -math.inf, math.nan, 1e30])},
            {"top_p": rng.choice([0.0, -0.5, 1.5, math.nan])},
            {"top_k": rng.choice([-1, 2**31 - 1])},
            {"stop_words": rng.choice([["a", "x" * 257], ["x" * 257], ["x"] * 17])},
            {"num_return_sequences": rng.choice([0, 2])},
            {"return_context_logits": True},
            {"stop_token_ids": rng.choice([[-1], [2**31 - 1], [1] * 17])},
            {"logit_bias_ids": [1], "logit_bias_values": rng.choice([[101.0], [math.nan], [1.0, 2.0]])},
            {
                "num_top_log_probs": rng.choice([-1, 1, 21, 2**31 - 1]),
                **rng.choice([{}, {"return_log_probs": False}]),
            },
            {"messages": rng.choice(["", "{", "[]", "[{}]", '[{"role": "x", "content": ""}]', "[" * 5000])},
            {"text_input": rng.choice(["", "x" * 1_000_001])},
            {"input_ids": rng.choice([[], [-1], [2**31 - 1], [1] * 200_000])},
            {"return_prompt_log_probs": True},
        ]
    )
    inputs = {**({} if {"messages", "input_ids"} & wrong.keys() else {"text_input": "x"}), **wrong}
    return doors.message(**inputs) if door == "grpc" else doors.body(**inputs)


# --- wrong in kind


def _odd(rng: random.Random, door: str) -> bytes:
    """Any value anywhere, unknown names among them."""
    if door == "grpc":
        return _odd_message(rng)
    inputs: dict[str, Any] = {"text_input": "x", "max_tokens": 8, "stream": door == "generate_stream"}
    for _ in range(rng.randint(1, 4)):
        inputs[rng.choice([*FIELDS, "timeout", "priority", "nonsense", "id", ""])] = rng.choice(ODD)
    return json.dumps(inputs).encode("utf-8", "surrogatepass")


def _odd_message(rng: random.Random) -> bytes:
    request = service_pb2.ModelInferRequest(
        model_name=rng.choice(["ensemble"] * 8 + ["nobody", ""]), id=rng.choice(["", "1", "x" * 300])
    )
    for name in rng.sample([*FIELDS, "nonsense", ""], rng.randint(0, 4)):
        request.inputs.add(
            name=name,
            datatype=_datatype(rng, name),
            shape=rng.choice(SHAPES) if rng.random() < 0.4 else [1, 1],
        )
        request.raw_input_contents.append(_raw(rng))
    if rng.random() < 0.15 and request.raw_input_contents:
        del request.raw_input_contents[-1]
    if rng.random() < 0.2:
        request.parameters[rng.choice(["timeout", "priority", "nonsense"])].int64_param = rng.choice(
            [0, -1, 1, 2**62]
        )
    if rng.random() < 0.1:
        request.parameters[rng.choice(["timeout", "sequence_id"])].string_param = "x"
    if rng.random() < 0.2:
        # an answer without its reason could not be judged
        for name in rng.choice([("finish_reason", "text_output"), ("nonsense",)]):
            request.outputs.add(name=name)
    return bytes(request.SerializeToString())


def _datatype(rng: random.Random, name: str) -> str:
    return FIELDS.get(name, "INT32") if rng.random() < 0.6 else rng.choice(DATATYPES)


def _raw(rng: random.Random) -> bytes:
    return rng.choice(
        [
            struct.pack("<i", rng.choice([0, 1, -1, 8, 2**31 - 1])),
            struct.pack("<f", rng.choice([0.0, 1.0, math.nan, math.inf, -1.0])),
            struct.pack("<Q", rng.getrandbits(64)),
            struct.pack("<I", 1) + b"x",
            struct.pack("<I", 3) + b"\xff\xfe\x80",
            struct.pack("<I", 2**32 - 1) + b"x",
            b"\1",
            b"",
            rng.randbytes(rng.randint(0, 64)),
        ]
    )


def _bytes(rng: random.Random, door: str) -> bytes:
    """No request at all, or one that was damaged on its way."""
    whole = bytearray(_valid(rng, door))
    for _ in range(rng.randint(1, 8)):
        whole[rng.randrange(len(whole))] = rng.randrange(256)
    cut = whole[: rng.randrange(len(whole))]
    return bytes(rng.choice([whole, cut, rng.randbytes(rng.randint(1, 200)), b"{}", b"[1]", b"\xff\xfe"]))


Make = Callable[[random.Random, str], bytes]
KINDS: list[tuple[str, Make, bool | None]] = [
    ("valid", _valid, True),
    ("refused", _refused, False),
    ("odd", _odd, None),
    ("bytes", _bytes, None),
]
WEIGHTS = [5, 2, 2, 1]
