"""How a byte-level vocabulary cuts a text into words before it merges: `tokenizer.ggml.pre` names it.

The name stands for a tokenizer.json that the file does not have. One that is missing here is refused: cut
otherwise, the same text would have other tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tokenizers import Regex
from tokenizers.normalizers import NFC, Normalizer
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence, Split

_WORD = r"[^\r\n\p{L}\p{N}]?"
_END = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_END_WITH_SLASH = _END.replace(r"[\r\n]*|", r"[\r\n/]*|", 1)
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASED = (f"{_WORD}{_UPPER}*{_LOWER}+", f"{_WORD}{_UPPER}+{_LOWER}*")

LLAMA3 = rf"{_SHORT}|{_WORD}\p{{L}}+|\p{{N}}{{1,3}}{_END}"
QWEN2 = rf"{_SHORT}|{_WORD}\p{{L}}+|\p{{N}}{_END}"
TEKKEN = rf"{'|'.join(_CASED)}|\p{{N}}{_END_WITH_SLASH}"
GPT4O = rf"{'|'.join(each + _SHORT + '?' for each in _CASED)}|\p{{N}}{{1,3}}{_END_WITH_SLASH}"


@dataclass(frozen=True, slots=True)
class Words:
    pattern: str = ""  # of a word; "": GPT-2's own
    single_digits: bool = False  # before GPT-2's own
    whole_words: bool = False  # a word that is a token is not merged from parts
    composed: bool = False  # the text is normalised to NFC
    begins: bool = False  # a prompt begins with BOS where the file does not say

    def pre_tokenizer(self) -> PreTokenizer:
        if self.pattern:
            split = Split(Regex(self.pattern), "isolated")
            return Sequence([split, ByteLevel(add_prefix_space=False, use_regex=False)])
        own = ByteLevel(add_prefix_space=False)
        return Sequence([Digits(individual_digits=True), own]) if self.single_digits else own

    def normalizer(self) -> Normalizer | None:
        return NFC() if self.composed else None


_GPT2, _SINGLE = Words(), Words(single_digits=True)
_LLAMA3 = Words(LLAMA3, whole_words=True, begins=True)
_GPT4O = Words(GPT4O)

WORDS = MappingProxyType(
    {
        "gpt-2": _GPT2,
        "phi-2": _GPT2,
        "olmo": _GPT2,
        "mellum": _GPT2,
        "a.x-4.0": _GPT2,
        "smollm": _SINGLE,
        "starcoder": _SINGLE,
        "refact": _SINGLE,
        "command-r": _SINGLE,
        "llama3": _LLAMA3,
        "llama-v3": _LLAMA3,
        "llama-bpe": _LLAMA3,
        "falcon3": _LLAMA3,
        "midm-2.0": _LLAMA3,
        "smaug-bpe": Words(LLAMA3),
        "dbrx": Words(LLAMA3),
        "qwen2": Words(QWEN2, composed=True),
        "deepseek-r1-qwen": Words(QWEN2),
        "megrez": Words(QWEN2),
        "kormo": Words(QWEN2),
        "tekken": Words(TEKKEN, whole_words=True, begins=True),
        "gpt-4o": _GPT4O,
        "llama4": _GPT4O,
    }
)
