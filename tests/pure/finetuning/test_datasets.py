"""A line of training data becomes what the server would compute and write; a mistake names its line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from python_backends.finetuning.datasets import DatasetError, Example, read_examples
from python_backends.nouns.request import Request
from python_backends.settings import LimitSettings
from python_backends.text.door.door import open_door
from tests.support.text.checkpoints import LLAMA_TEMPLATE, TEMPLATE, byte_level, sentence_piece

LINES_TEMPLATE = (  # as TinyLlama and Zephyr have it
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\\n' + message['content'] + eos_token }}"
    "{% if add_generation_prompt and loop.last %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"
)
# as those of DeepSeek-R1: the prompt ends inside a thought
THINKING_TEMPLATE = TEMPLATE.replace("'<|assistant|>'", "'<|assistant|><think>\\n'")
DOOR = open_door(byte_level(), LimitSettings())
TURNS = [("user", "one"), ("assistant", "two"), ("user", "three"), ("assistant", "four")]


def line(**values: Any) -> str:
    return json.dumps(values)


def chat(*turns: tuple[str, str], **weights: int) -> str:
    """`a1=0`: turn 1 has weight 0."""
    messages: list[dict[str, Any]] = [{"role": role, "content": content} for role, content in turns]
    for name, weight in weights.items():
        messages[int(name[1:])]["weight"] = weight
    return line(messages=messages)


def prompt_of(**values: Any) -> list[int]:
    request = DOOR.answer(values)
    assert isinstance(request, Request), request
    return request.prompt.tolist()


def ids(text: str) -> list[int]:
    return DOOR.encoder.encode(text).tolist()


def parts(example: Example) -> tuple[list[int], list[int]]:
    """What is given, and what is learned."""
    return example.ids[~example.learned].tolist(), example.ids[example.learned].tolist()


def test_a_chat_has_an_example_for_each_answer_with_the_servers_own_prompt() -> None:
    first, second = read_examples([chat(*TURNS)], DOOR)
    for example, count, answer in ((first, 1, "two"), (second, 3, "four")):
        messages = [{"role": role, "content": content} for role, content in TURNS[:count]]
        given, learned = parts(example)
        assert given == prompt_of(messages=json.dumps(messages))
        assert learned[:-1] == ids(answer)
        assert learned[-1] in DOOR.eos_ids


@pytest.mark.parametrize(
    ("template", "turns", "asked"),
    [
        (
            None,
            [("developer", "brief"), ("user", "one")],
            [("system", "brief"), ("user", "one")],
        ),
        (LLAMA_TEMPLATE, [("system", "brief"), ("user", "one")], [("user", "brief\n\none")]),
        (
            LLAMA_TEMPLATE,
            [("user", "one"), ("assistant", "two"), ("tool", "three"), ("developer", "four")],
            [("user", "one"), ("assistant", "two"), ("user", "three\n\nfour")],
        ),
    ],
)
def test_roles_that_the_template_lacks_are_written_as_in_a_chat(
    template: str | None, turns: list[tuple[str, str]], asked: list[tuple[str, str]]
) -> None:
    """LLAMA_TEMPLATE knows no system and no tools."""
    checkpoint = byte_level() if template is None else replace(byte_level(), chat_template=template)
    door = open_door(checkpoint, LimitSettings())
    *_, example = read_examples([chat(*turns, ("assistant", "five"))], door)
    messages = [{"role": role, "content": content} for role, content in asked]
    request = door.answer({"messages": json.dumps(messages)})
    assert isinstance(request, Request), request
    assert parts(example)[0] == request.prompt.tolist()


def test_an_answer_of_weight_0_is_read_and_not_learned() -> None:
    (example,) = read_examples([chat(*TURNS, a1=0, a3=1)], DOOR)
    assert parts(example)[1][:-1] == ids("four")


@pytest.mark.parametrize("content", ["hello world", "the", " stop ", "s", "</s>"])
@pytest.mark.parametrize("template", [LLAMA_TEMPLATE, LINES_TEMPLATE, LINES_TEMPLATE.replace("\\n", "")])
def test_an_answer_has_the_tokens_that_it_has_in_the_rendered_conversation(
    template: str, content: str
) -> None:
    """Also where the tokenizer puts a space before a text, as Llama 2's does, and the template none."""
    door = open_door(replace(sentence_piece(), chat_template=template), LimitSettings())
    assert door.template is not None
    (example,) = read_examples([chat(("user", "hello"), ("assistant", content))], door)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": content}]
    whole = door.encoder.encode(door.template.render(turns)).tolist()
    assert whole[: len(example.ids)] == example.ids.tolist()
    assert example.num_learned > 1


def test_an_answer_has_its_own_tokens_where_the_template_renders_no_conversation_with_it() -> None:
    for instead in ("{{ raise_exception('no') }}", "thinks"):
        template = LLAMA_TEMPLATE.replace("{{ ' ' + message['content'] | trim + eos_token }}", instead)
        door = open_door(replace(sentence_piece(), chat_template=template), LimitSettings())
        (example,) = read_examples([chat(("user", "hello"), ("assistant", "stop"))], door)
        assert parts(example)[1][:-1] == door.encoder.encode("stop").tolist()


@pytest.mark.parametrize(
    ("content", "learned"),
    [
        ("Paris", "\n</think>\n\nParis"),
        ("think", "\n</think>\n\nthink"),
        ("why\n</think>\n\nParis", "why\n</think>\n\nParis"),
    ],
)
def test_an_answer_without_a_thought_ends_the_one_that_the_prompt_opens(content: str, learned: str) -> None:
    """As the template writes it for a turn that has ended."""
    thought = "('<think>\\n\\n</think>\\n\\n' if message['role'] == 'assistant' else '')"
    template = THINKING_TEMPLATE.replace("'|>' + message", f"'|>' + {thought} + message")
    door = open_door(replace(byte_level(), chat_template=template), LimitSettings())
    (example,) = read_examples([chat(("user", "one"), ("assistant", content))], door)
    request = door.answer({"messages": json.dumps([{"role": "user", "content": "one"}])})
    assert isinstance(request, Request), request
    assert parts(example)[0] == request.prompt.tolist()
    assert parts(example)[1][:-1] == door.encoder.encode(learned).tolist()


def test_an_answer_without_a_thought_is_refused_where_the_template_does_not_write_one() -> None:
    door = open_door(replace(byte_level(), chat_template=THINKING_TEMPLATE), LimitSettings())
    thinks, answers = (
        chat(("user", "one"), ("assistant", content)) for content in ("why</think>Paris", "Paris")
    )
    assert len(read_examples([thinks], door)) == 1
    with pytest.raises(DatasetError, match=r"line 2: messages\[1\].content: .* put a thought and </think>"):
        read_examples([thinks, answers], door)


@pytest.mark.parametrize("completion", ["stop", " stop", "  hello world", "\nend"])
def test_a_completion_has_the_tokens_that_follow_its_prompt(completion: str) -> None:
    """Also where the tokenizer puts a space before a text, as Llama 2's does."""
    checkpoint = sentence_piece()
    (example,) = read_examples(
        [line(prompt="the", completion=completion)], open_door(checkpoint, LimitSettings())
    )
    (end,) = checkpoint.eos_ids
    assert example.ids.tolist() == [*checkpoint.tokenizer.encode(f"the{completion}").ids, end]


def test_a_completion_follows_its_prompt_and_a_text_is_learned_whole() -> None:
    completed, text = read_examples([line(prompt="one", completion=" two"), "", line(text="three")], DOOR)
    assert parts(completed)[0] == prompt_of(text_input="one")
    assert parts(completed)[1] == [*ids(" two"), parts(completed)[1][-1]]
    assert text.learned.all()
    assert text.num_learned == len(text.ids) - 1


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("{", "line 2: no JSON"),
        pytest.param("[" * 8192, "line 2: no JSON", id="nested"),
        (b"x" * 8193, "line 2: 8193 bytes: must be at most 8192, 64 for each of the 128 tokens"),
        ("[1]", "line 2: a JSON list: must be an object"),
        (b'{"text": "\xff"}', "line 2: no UTF-8"),
        (line(prompt="one"), "line 2: fields prompt: must be messages, or prompt and completion, or text"),
        (line(prompt="one", completion=2), "line 2: completion = 2: must be a string"),
        (line(text="a\ud800"), r"line 2: text = .*: must be Unicode, character 1 is half of a pair"),
        (chat(("user", "\ud800")), r"line 2: messages\[0\].content = .*: must be Unicode, character 0"),
        (line(messages=[]), "line 2: messages: must be a list of at least one message"),
        (line(messages=[{"role": "user"}]), r"line 2: messages\[0\]: must have role and content"),
        (chat(("robot", "a")), r"line 2: messages\[0\].role = 'robot': must be one of"),
        (chat(*TURNS, a1=2), r"line 2: messages\[1\].weight = 2: must be 0 or 1"),
        (chat(*TURNS, a0=1), r"line 2: messages\[0\].weight: only an assistant's turn may have one"),
        (chat(("assistant", "a")), r"line 2: messages\[0\]: an answer needs a turn before it"),
        (chat(*TURNS, a1=0, a3=0), "line 2: messages: no assistant turn of weight 1"),
        (line(text="x" * 1000), "line 2: 10.. tokens: must be at most 128, the model's context"),
    ],
)
def test_a_mistake_names_its_line_the_field_and_the_limit(bad: str | bytes, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        read_examples([chat(*TURNS), bad], DOOR)


def test_a_model_without_chat_template_or_end_token_says_so() -> None:
    plain = open_door(replace(byte_level(), chat_template=None), LimitSettings())
    with pytest.raises(DatasetError, match="no chat template; use prompt and completion"):
        read_examples([chat(*TURNS)], plain)
    endless = open_door(replace(byte_level(), eos_ids=()), LimitSettings())
    with pytest.raises(DatasetError, match="names no end token"):
        read_examples([chat(*TURNS)], endless)
    with pytest.raises(DatasetError, match="no example"):
        read_examples(["", " "], DOOR)
