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
# takes one call a message and leaves out its content, as that of Llama 3.1
LLAMA = (
    "{% for m in messages %}{% if m.tool_calls %}"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('single tool-calls') }}{% endif %}"
    "<|assistant|>{{ m.tool_calls[0].function | tojson }}"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}<|end|>{% endfor %}<|assistant|>"
)
# takes tools' turns between users' and assistants' that alternate, and writes the system message before the
# last one if that is the user's, as that of Mistral 7B Instruct 0.3
MISTRAL = (
    "{% set system = messages[0].content if messages[0].role == 'system' else none %}"
    "{% set chat = messages if system is none else messages[1:] %}"
    "{% set ns = namespace(index=0) %}"
    "{% for m in chat %}{% if not (m.role == 'tool' or m.tool_calls) %}"
    "{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
    "{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% for m in chat %}"
    "{% if m.role == 'user' and loop.last and system is not none %}"
    "{{ '[INST] ' + system + '\n\n' + m.content + '[/INST]' }}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + m.content + '[/INST]' }}"
    "{% elif m.tool_calls %}[TOOL_CALLS]{% for c in m.tool_calls %}{{ c.function | tojson }}"
    "{% if c.id | length != 9 %}{{ raise_exception('nine') }}{% endif %}{{ c.id }}{% endfor %}</s>"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}"
    "{% elif m.role == 'tool' %}{{ '[TOOL_RESULTS]' + m.content + m.tool_call_id + '[/TOOL_RESULTS]' }}"
    "{% endif %}{% endfor %}"
)


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, {}, SpecialTokens(byte_level().tokenizer, byte_level().special_tokens))
