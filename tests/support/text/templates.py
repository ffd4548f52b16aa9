"""Chat templates, and what renders them."""

from __future__ import annotations

from python_backends.text.door.chat_template import ChatTemplate
from python_backends.text.door.special_tokens import SpecialTokens
from tests.support.text.checkpoints import byte_level

# writes tools, calls with arguments as objects, thoughts
TOOLS = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }}={{ v | tojson }}{% endfor %}</call>{% endfor %}"
    "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}"
)
# writes calls with arguments as text, as DeepSeek's
TEXTS = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls %}{{ '<call>' + c.function.name + c.function.arguments + '</call>' }}"
    "{% endfor %}"
    "<|end|>{% endfor %}<|assistant|>"
)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, SpecialTokens(byte_level().tokenizer, byte_level().special_tokens))
