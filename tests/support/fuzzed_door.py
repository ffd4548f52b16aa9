"""A coverage-guided fuzz target for the door: whatever comes as fields, out come requests that are in range,
or refusals that say why.

    python -m tests.support.fuzzed_door -max_total_time=600

Options are libFuzzer's; a crash leaves its input in crash-*.
"""

from __future__ import annotations

import struct
import sys
from typing import Any

import atheris
import numpy as np

with atheris.instrument_imports(include=["python_backends"]):
    from python_backends.nouns.messages import pack, reader
    from python_backends.nouns.request import MAX_STOP_WORDS, RefusedError, Request
    from python_backends.settings import LimitSettings
    from python_backends.text.door.door import open_door
    from python_backends.text.door.fields import MAX_WORD_BYTES
    from python_backends.text.door.table import KNOWN

from tests.support.text.checkpoints import byte_level

LIMITS = LimitSettings(max_prompt_tokens=100)
DOOR = open_door(byte_level(), LIMITS, names_subjects=True)
CONTEXT, VOCABULARY = 128, 448
NAMES = sorted(KNOWN)
DTYPES = [np.bool_, np.int8, np.int32, np.int64, np.uint64, np.float16, np.float32, np.float64]
SHAPES = [(1, 1), (1,), (), (0,), (1, 0), (2, 1), (1, 2), (1, 1, 1), (2, 2)]
TEXTS = [
    '[{"role": "user", "content": "',
    '"}]',
    "<|end|>",
    "{",
    "[" * 50,
    "\\ud800",
    "hello world",
    "[{}]",
    "NaN",
]


def fields(data: atheris.FuzzedDataProvider) -> dict[str, Any]:
    made = {}
    for _ in range(data.ConsumeIntInRange(0, 5)):
        name = data.PickValueInList(NAMES) if data.ConsumeIntInRange(0, 20) else data.ConsumeUnicode(8)
        made[name] = value(data)
    if "messages" not in made and data.ConsumeIntInRange(0, 9):
        made.setdefault("text_input", "hello world")
    return made


def value(data: atheris.FuzzedDataProvider) -> Any:
    kind = data.ConsumeIntInRange(0, 8)
    if kind == 0:
        return tensor(data)
    if kind == 1:
        return np.array(
            [[text(data).encode("utf-8", "surrogatepass") for _ in range(data.ConsumeIntInRange(0, 4))]],
            object,
        )
    if kind == 2:
        return np.array([[data.ConsumeBytes(12)]], object)
    if kind == 3:
        return [text(data) for _ in range(data.ConsumeIntInRange(0, 4))]
    return scalar(data, kind)


def scalar(data: atheris.FuzzedDataProvider, kind: int) -> Any:
    if kind == 4:
        return text(data)
    if kind == 5:
        return data.ConsumeInt(data.ConsumeIntInRange(1, 20))
    if kind == 6:
        return data.ConsumeFloat()
    return data.ConsumeBool() if kind == 7 else None


def tensor(data: atheris.FuzzedDataProvider) -> Any:
    dtype, shape = np.dtype(data.PickValueInList(DTYPES)), data.PickValueInList(SHAPES)
    size = dtype.itemsize * int(np.prod(shape))
    return np.frombuffer(data.ConsumeBytes(size).ljust(size, b"\0"), dtype).reshape(shape)


def text(data: atheris.FuzzedDataProvider) -> str:
    words = [
        data.PickValueInList(TEXTS) if data.ConsumeBool() else data.ConsumeUnicode(20)
        for _ in range(data.ConsumeIntInRange(0, 4))
    ]
    return "".join(words) * (data.ConsumeIntInRange(1, 200) if data.ConsumeIntInRange(0, 20) == 0 else 1)


def check(asked: dict[str, Any], answer: Request | RefusedError) -> None:
    if isinstance(answer, RefusedError):
        said = str(answer)
        assert said
        assert len(said) < 1000, "a refusal is short whatever was asked"
        said.encode()
        return
    sampling = answer.sampling
    assert 1 <= len(answer.prompt) <= LIMITS.max_prompt_tokens
    assert answer.max_total_tokens <= CONTEXT
    assert 0 <= int(answer.prompt.min()) <= int(answer.prompt.max()) < VOCABULARY
    assert 0 <= sampling.min_tokens <= sampling.max_tokens
    assert 0 <= sampling.temperature <= 100
    assert 0 < sampling.top_p <= 1
    assert 0 <= sampling.top_k <= VOCABULARY
    assert all(0 <= token < VOCABULARY for token in sampling.stop_ids)
    assert all(0 < len(word.encode()) <= MAX_WORD_BYTES for word in answer.stop_words)
    assert len(answer.stop_words) <= MAX_STOP_WORDS
    struct.pack("<iqQ", answer.priority, answer.deadline_ns, sampling.seed)
    again = reader(Request)(pack(answer))
    assert pack(again) == pack(answer), "a request is the same on the other side of a wire"


def one_input(content: bytes) -> None:
    data = atheris.FuzzedDataProvider(content)
    for asked in [fields(data) for _ in range(data.ConsumeIntInRange(1, 2))]:
        check(asked, DOOR.answer(asked))


def main() -> None:
    atheris.Setup([sys.argv[0], "-max_len=1024", "-timeout=300", *sys.argv[1:]], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
