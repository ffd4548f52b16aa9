"""Published models from their GGUF files, compared with what transformers makes of the same files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
from transformers import AutoModelForCausalLM, AutoTokenizer

from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import Source
from python_backends.engine.cpu.library import library
from python_backends.nouns.request import Request, Sampling
from python_backends.settings import LimitSettings
from python_backends.text.checkpoint import read_checkpoint
from python_backends.text.door.door import open_door
from tests.support.published import PUBLISHED, published
from tests.support.tiny_models import Agreement, Serving, TinyModel

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "The 12345 quick brown foxes' dens weren't found: it's 3.14, isn't it?\n\n  Two  spaces\tand a tab.\r\n",
    "Grüße, 你好, مرحبا, 🚀👨‍👩, ½ Ⅷ x\u0301 \U0001f3f4\U000e0067",
    "<|im_start|>user\nhm<|im_end|><start_of_turn><bos><eos>",
    "<table><td>   </td>\n\n\n\t\t</table> ▁ ▁▁",
    "",
]
NUM_PROMPTS, NUM_TOKENS = 12, 24  # 50 and 32 were compared once; the reference takes long
QUESTIONS = [
    "What is the capital of France?",
    "Hello",
    "Write a Python function that reverses a list.",
    "Translate 'good morning' into German.",
    "Name three fruits, one in each line.",
    "12 + 30 = ",
    "Once upon a time, in a village by the sea,",
    "Why is the sky blue? Answer in one sentence.",
]


@dataclass(frozen=True)
class Read:
    source: Source
    tokenizer: Any  # transformers'
    model: Any


@pytest.fixture(scope="module", params=sorted(PUBLISHED))
def read(request: pytest.FixtureRequest) -> Read:
    path = published(request.param)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    if request.param == "smollm2":  # transformers does not know this file's name of its words
        words = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
        tokenizer.backend_tokenizer.pre_tokenizer = words
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    return Read(open_source(path), tokenizer, model.eval())


def test_the_configuration_is_that_of_the_model(read: Read) -> None:
    theirs, ours = read.model.config.to_dict(), read.source.config
    left = {"dtype", "architectures", "bos_token_id", "eos_token_id", "pad_token_id"}  # its own defaults
    wanted = {name: theirs[name] for name in (ours.keys() & theirs.keys()) - left}
    assert len(wanted) >= 13
    assert ours["rms_norm_eps"] == pytest.approx(wanted.pop("rms_norm_eps"))
    assert {name: ours[name] for name in wanted} == wanted
    assert ours["eos_token_id"] == read.tokenizer.eos_token_id


def test_tokens_of_all_kinds_of_text_are_the_same(read: Read) -> None:
    tokenizer = read.source.tokenizer()
    files = [path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))]
    for text in TEXTS + files:
        ids = read.tokenizer(text)["input_ids"]
        assert tokenizer.encode(text).ids == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == read.tokenizer.decode(ids)


def test_every_tensor_is_the_same(read: Read) -> None:
    theirs = read.model.state_dict()
    tied = {"lm_head.weight"}
    assert read.source.tensors.keys() == theirs.keys() - tied
    for name in read.source.tensors:
        assert torch.equal(read.source.read(name), theirs[name]), name


@pytest.fixture(scope="module")
def served(read: Read, agreement: Agreement) -> TinyModel:
    read.model.generation_config.eos_token_id = None  # answers of one length
    return TinyModel(read.source.path, read.model, agreement)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", ["torch", *(["layers"] if library() is not None else [])])
def test_greedy_answers_have_the_tokens_of_transformers(read: Read, served: TinyModel, kind: str) -> None:
    asked = requests(read)
    engine = served.engine_of(kind, max_model_tokens=4096, kv_memory_gib=1, threads=2)
    served.check_all(asked, Serving(engine, token_budget=256).run(asked))


def requests(read: Read) -> list[Request]:
    """Plain prompts, a long one among them, and chats where there is a template: all through the door."""
    checkpoint = read_checkpoint(read.source.path)
    door = open_door(checkpoint, LimitSettings())
    text = (ROOT / "docs/design.md").read_text()
    plain = [*QUESTIONS, text[:5000], *(text[200 * i : 200 * i + 3 * i] for i in range(1, NUM_PROMPTS))]
    made = []
    for number, prompt in enumerate(plain[:NUM_PROMPTS]):
        chat = [{"role": "user", "content": prompt}]
        is_chat = checkpoint.chat_template is not None and number % 2 == 0
        answer = door.answer({"messages": json.dumps(chat)} if is_chat else {"text_input": prompt})
        assert isinstance(answer, Request)
        ids = (
            read.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            if is_chat
            else read.tokenizer(prompt)["input_ids"]
        )
        assert answer.prompt.tolist() == ids
        made.append(Request(number, answer.prompt, Sampling(max_tokens=NUM_TOKENS)))
    return made
