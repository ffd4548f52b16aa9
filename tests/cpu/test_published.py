"""Published models from their GGUF files, compared with what transformers makes of the same files.

GAPLESS_PROMPTS=12-50 asks the prompts of these numbers, the last ones near the end of the context, and then
the same model from safetensors and in bfloat16, too.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
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
from tests.support.tiny_models import BFLOAT16_REGRET, Agreement, Serving, TinyModel

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    "The 12345 quick brown foxes' dens weren't found: it's 3.14, isn't it?\n\n  Two  spaces\tand a tab.\r\n",
    "Grüße, 你好, مرحبا, 🚀👨‍👩, ½ Ⅷ x\u0301 \U0001f3f4\U000e0067",
    "<|im_start|>user\nhm<|im_end|><start_of_turn><bos><eos>",
    "<table><td>   </td>\n\n\n\t\t</table> ▁ ▁▁",
    "",
]
SOME = "0-4"  # of NUM_PROMPTS: the reference takes long
ASKED = os.environ.get("GAPLESS_PROMPTS", SOME)
NUM_PROMPTS, NUM_TOKENS = 50, 24
CONTEXT, LONG_BYTES = 8192, 12_000
FORMS = ["gguf"] if ASKED == SOME else ["gguf", "safetensors"]
KINDS = ["torch", *(["layers"] if library() is not None else [])]
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
    left = {"dtype", "architectures"}
    wanted = {name: theirs[name] for name in (ours.keys() & theirs.keys()) - left}
    assert len(wanted) >= 13
    assert ours["rms_norm_eps"] == pytest.approx(wanted.pop("rms_norm_eps"))
    assert {name: ours[name] for name in wanted} == wanted
    assert read.tokenizer.eos_token_id in read.source.generation["eos_token_id"]


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
def served(
    read: Read, agreement: Agreement, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, TinyModel]:
    """By its form. They share the answers of one reference."""
    read.model.generation_config.eos_token_id = None  # answers of one length
    model = TinyModel(read.source.path, read.model, agreement)
    directory = as_directory(read, tmp_path_factory.mktemp("model")) if "safetensors" in FORMS else Path()
    return {"gguf": model, "safetensors": replace(model, directory=directory)}


def as_directory(read: Read, directory: Path) -> Path:
    """The model as transformers publishes it, in float32."""
    read.tokenizer.save_pretrained(directory)
    config = read.model.config.to_dict() | {"architectures": [type(read.model).__name__]}
    del config["quantization_config"]  # of the GGUF file
    (directory / "config.json").write_text(json.dumps(config))
    weights = {name: each for name, each in read.model.state_dict().items() if name != "lm_head.weight"}
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    return directory


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_answers_have_the_tokens_of_transformers(
    read: Read, served: dict[str, TinyModel], kind: str, form: str
) -> None:
    model = served[form]
    asked = requests(read, model.directory)
    engine = model.engine_of(kind, max_model_tokens=CONTEXT, kv_memory_gib=1, threads=2)
    model.check_all(asked, Serving(engine, token_budget=256).run(asked))


@pytest.mark.timeout(3000)
@pytest.mark.skipif(ASKED == SOME, reason="a measurement: GAPLESS_PROMPTS asks for it")
@pytest.mark.parametrize("kind", KINDS)
def test_in_bfloat16_tokens_are_nearly_as_good(read: Read, served: dict[str, TinyModel], kind: str) -> None:
    model = served["gguf"]
    asked = requests(read, model.directory)
    engine = model.engine_of(kind, dtype="bfloat16", max_model_tokens=CONTEXT, kv_memory_gib=1, threads=2)
    answers = Serving(engine, token_budget=256).run(asked)
    model.check_rounding(f"bfloat16, {kind}, prompts {ASKED}", asked, answers, BFLOAT16_REGRET)


def requests(read: Read, path: Path) -> list[Request]:
    """Plain prompts, long ones among them, and chats where there is a template: all through the door."""
    checkpoint = read_checkpoint(path)
    door = open_door(checkpoint, LimitSettings())
    first, end = (int(number) for number in ASKED.split("-"))
    made = []
    for number, prompt in list(enumerate(texts(read)))[first:end]:
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


def texts(read: Read) -> list[str]:
    """All prompts. The last four are long: two of some thousand tokens, two that nearly fill the context."""
    text = (ROOT / "docs/design.md").read_text()
    whole = "".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md")))
    ids = read.tokenizer(whole)["input_ids"]
    room = CONTEXT - NUM_TOKENS - 100  # a template and another way to spell the words
    nearly = [read.tokenizer.decode(ids[start : start + room]) for start in (1, 2000)]
    long = [whole[:LONG_BYTES], whole[LONG_BYTES : 2 * LONG_BYTES], *nearly]
    first = [*QUESTIONS, text[:5000]]
    short = [text[200 * i : 200 * i + 3 * i] for i in range(1, NUM_PROMPTS - len(first) - len(long) + 1)]
    return [*first, *short, *long]
