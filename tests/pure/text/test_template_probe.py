"""A message that a template leaves out is refused by its role, and what templates write around messages is
found.
"""

from __future__ import annotations

import pytest

from python_backends.nouns.request import RefusedError
from python_backends.text.door.chat_template import ChatTemplate
from python_backends.text.door.special_tokens import SpecialTokens
from python_backends.text.door.template_probe import MAX_KEPT, TemplateProbe
from tests.support.text.checkpoints import byte_level

LOOP = "{% for m in messages %}{% if CONDITION %}[TEXT]{% endif %}{% endfor %}".replace(
    "TEXT", "{{ m.content }}"
)
KNOWN = LOOP.replace("CONDITION", "m.role in ['system', 'user', 'assistant']")
FIRST = LOOP.replace("CONDITION", "m.role != 'system' or loop.first")
LAST = "{{ messages[-1].content }}"
SYSTEM = "{% set s = messages[0].content if messages[0].role == 'system' else '' %}"
JOINED = SYSTEM + LOOP.replace("CONDITION", "m.role == 'user'").replace("m.c", "s ~ m.c")
NOTHING = "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}"
STRICT = "{% if messages[0].role != 'user' %}{{ raise_exception('user first') }}{% endif %}" + KNOWN


def prompt(source: str, *turns: tuple[str, str]) -> str:
    special = SpecialTokens(byte_level().tokenizer, byte_level().special_tokens)
    made = ChatTemplate(source, {}, special)
    return made.prompt([{"role": role, "content": content} for role, content in turns])


@pytest.mark.parametrize(
    ("source", "turns", "said"),
    [
        (KNOWN, [("developer", "x"), ("user", "y")], "messages[0].role = 'developer': {0}; it writes {1}"),
        (
            KNOWN,
            [("user", "x"), ("assistant", "y"), ("tool", "z")],
            "messages[2].role = 'tool': {0}; it writes {1}",
        ),
        (
            FIRST,
            [("user", "x"), ("system", "y")],
            "messages[1].role = 'system': {0} at this place; it writes {2}",
        ),
        (
            LAST,
            [("user", "x"), ("assistant", "y"), ("user", "z")],
            "messages[0].role = 'user': {0} at this place; it writes {2}",
        ),
        (
            JOINED,
            [("system", "s"), ("user", "x"), ("assistant", "y"), ("user", "z")],
            "messages[2].role = 'assistant': {0}; it writes system, user",
        ),
        (NOTHING, [("user", "x")], "messages[0].role = 'user': {0}; it writes no messages of text"),
        (STRICT, [("user", "x"), ("tool", "y")], "messages[1].role = 'tool': {0}; it writes {1}"),
        (STRICT, [("tool", "y")], "messages: the model's chat template can't render them: user first"),
    ],
)
def test_a_message_that_the_template_leaves_out_is_refused_by_its_role(
    source: str, turns: list[tuple[str, str]], said: str
) -> None:
    left_out = "the model's chat template leaves such a message out of the prompt"
    with pytest.raises(RefusedError) as refused:
        prompt(source, *turns)
    every = "system, developer, user, assistant, tool"
    assert str(refused.value) == said.format(left_out, "system, user, assistant", every)


def test_messages_that_are_written_and_empty_ones_are_taken() -> None:
    assert prompt(KNOWN, ("system", "a"), ("user", "b"), ("assistant", "c")) == "[a][b][c]"
    assert prompt(KNOWN, ("developer", " \n"), ("user", "b")) == "[b]"
    assert prompt(JOINED, ("system", "be "), ("user", "b")) == "[be b]"
    assert prompt(LAST, ("user", "<think>x</think>")) == "<think>x</think>"


def test_a_chat_of_any_length_is_looked_at_and_short_ones_once() -> None:
    rendered = []

    def render(messages: list[dict[str, str]], _extras: object) -> str:
        rendered.append(len(messages))
        return " ".join(message["content"] for message in messages if message["role"] != "tool")

    probe = TemplateProbe(render)  # type: ignore[arg-type]
    for size in (2, MAX_KEPT, 5000):
        roles = ("tool", *["user"] * (size - 1))
        assert probe.left_out(roles) == probe.left_out(roles) == {0}
    assert rendered == [2, MAX_KEPT, 5000, 5000]
