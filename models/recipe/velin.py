"""Owns Velin, the invented language: a lexicon drawn from the corpus and word-for-word translation both ways.

Every frequent English word has one Velin word, the ending -s becomes -ri, capitals stay where they are, and a
word outside the lexicon (a name, a number, an identifier) stays as it is.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

LEXICON_FILE = "velin.json"
LEXICON_SIZE = 480
PLURAL = "ri"

_WORD = re.compile(r"(?<![\w.'])[A-Za-z]+(?:'[a-z]+)?(?!\w|\.\w|\()")
_ONSETS = "bdfgjklmnprstvz"
_VOWELS = "aeiou"
_CODAS = ["", "", "", "n", "l", "k", "sh"]


def build_lexicon(sentences: Iterable[str]) -> dict[str, str]:
    """English to Velin for the most frequent words; the same word gets
    the same translation wherever it is free.
    """
    counts = Counter(word.lower() for sentence in sentences for word in _WORD.findall(sentence))
    taken = set(counts)
    lexicon: dict[str, str] = {}
    for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(lexicon) == LEXICON_SIZE:
            break
        if not (word.endswith("s") and word[:-1] in lexicon and len(word) > 3):
            lexicon[word] = _invent(word, taken)
    return lexicon


def write_lexicon(lexicon: Mapping[str, str], model: Path) -> None:
    """Beside the weights that were taught it."""
    (model / LEXICON_FILE).write_text(json.dumps(lexicon, indent=0, ensure_ascii=False) + "\n", "utf-8")


def read_lexicon(model: Path) -> dict[str, str]:
    """The words that a stored model was taught."""
    lexicon: dict[str, str] = json.loads((model / LEXICON_FILE).read_text("utf-8"))
    return lexicon


def _invent(word: str, taken: set[str]) -> str:
    for attempt in range(1000):
        digest = hashlib.sha256(f"{word}/{attempt}".encode()).digest()
        syllables = 1 if len(word) <= 3 else 2
        parts = [_ONSETS[digest[3 * i] % 15] + _VOWELS[digest[3 * i + 1] % 5] for i in range(syllables)]
        candidate = "".join(parts) + _CODAS[digest[9] % 7]
        if candidate not in taken and not candidate.endswith(PLURAL):
            taken.add(candidate)
            return candidate
    raise ValueError(f"no free Velin word for {word!r}")


def to_velin(text: str, lexicon: Mapping[str, str]) -> str:
    """English text in Velin."""
    return _replace_words(text, lexicon, "s", PLURAL)


def from_velin(text: str, lexicon: Mapping[str, str]) -> str:
    """Velin text in English."""
    return _replace_words(text, {velin: english for english, velin in lexicon.items()}, PLURAL, "s")


def _replace_words(text: str, words: Mapping[str, str], plural_from: str, plural_to: str) -> str:
    def replace(match: re.Match[str]) -> str:
        word = match.group()
        if word.lower() != word and word.capitalize() != word:
            return word
        found = _look_up(word.lower(), words, plural_from, plural_to)
        if found is None:
            return word
        return found if word.islower() else found.capitalize()

    return _WORD.sub(replace, text)


def _look_up(word: str, words: Mapping[str, str], plural_from: str, plural_to: str) -> str | None:
    if word in words:
        return words[word]
    stem = word.removesuffix(plural_from)
    long_enough = plural_from == PLURAL or len(word) > 3
    return words[stem] + plural_to if stem != word and long_enough and stem in words else None
