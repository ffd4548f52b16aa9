"""Tells the special tokens that a chat template means from the same strings typed by users. Strings only; no
ids.

Before the template sees users' content, the characters with which special tokens begin and end are replaced
in it by twins: characters for private use that stand nowhere in the messages. So the special tokens in what
the template made are its own, whatever it cuts out of the content, trims or puts together. These are spelled
with a secret then, which is drawn when the process starts, and the twins become what was typed. The encoder's
tokenizer knows special tokens by the secret spelling alone.

A template that looks for "</think>" in an answer must find it. So the texts that a template compares with are
left as they are in the content, unless they could be a part of a special token. The content is rendered a
second time without them: if that gives other special tokens, the template has taken such a text apart, and
the request is refused (`chat_template`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from tokenizers import AddedToken, Tokenizer

from python_backends.nouns.request import RefusedError

Trie = dict[str, "Trie"]
_END = ""  # the key in a trie node at which a word ends
# secrets are drawn from others
_PRIVATE = (range(0xF000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True)
class Guard:
    """What keeps the contents of one conversation apart from its template."""

    special: SpecialTokens
    twins: Mapping[str, str]  # by the character that each represents

    def disarm(self, content: str, kept: re.Pattern[str] | None = None) -> str:
        """Content for the template. What `kept` finds, in a group, stays as it is."""
        content = self.special.broken(content)
        pieces = kept.split(content) if kept else [content]  # every second one is kept
        return "".join(piece if i % 2 else self._replaced(piece) for i, piece in enumerate(pieces))

    def arm(self, rendered: str) -> str:
        """What the template made of disarmed content, its own special tokens
        spelled as meant, the content as it was typed.
        """
        return self.typed(self.special.spelled(rendered))

    def typed(self, text: str) -> str:
        for letter, twin in self.twins.items():
            text = text.replace(twin, letter)
        return self.special.mended(text)

    def _replaced(self, content: str) -> str:
        for letter, twin in self.twins.items():
            content = content.replace(letter, twin)
        return content


class SpecialTokens:
    """`tokens` are the added tokens to guard, by their text."""

    def __init__(self, tokenizer: Tokenizer, texts: frozenset[str]) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        self.tokens: Mapping[str, AddedToken] = {
            token.content: token for token in added if token.content in texts
        }
        self._meant, self._break = _secret(), _secret()
        # a single character can't be told from text
        self._words = [text for text in self.tokens if len(text) > 1]
        self._joined = "\0".join(["", *self._words, ""])
        self._longest = max(map(len, self._words), default=0)
        # templates strip white space
        self._ends = sorted({end for word in self._words for end in (word[0], word[-1]) if not end.isspace()})
        self._white = _compiled(
            [word for word in self._words if word[0].isspace() and word[-1].isspace()], "(?={})(.)"
        )
        # the tokenizer finds added tokens leftmost, then longest: an ordinary one may take the start of a
        # special one
        self._found = _compiled(
            [*self._words, *(token.content for token in added if token.content and not token.normalized)],
            "{}",
        )

    def meant(self, text: str) -> str:
        """The spelling under which the encoder's tokenizer knows the special token `text`."""
        return self._meant + text

    def guard(self, contents: Sequence[str]) -> Guard:
        """Raises RefusedError for contents that leave no twins."""
        used = set() if all(content.isascii() for content in contents) else set().union(*contents)
        free = (twin for twin in map(chr, chain(*_PRIVATE)) if twin not in used)
        twins = dict(zip(self._ends, islice(free, len(self._ends)), strict=False))
        if len(twins) < len(self._ends):
            raise RefusedError(
                "messages: they contain nearly all characters for private use; leave some of them out"
            )
        return Guard(self, twins)

    def comparable(self, texts: Iterable[str]) -> re.Pattern[str] | None:
        """Finds those of the texts, in a group, that need twins and can't be a part
        of a special token as long as they are whole.
        """
        twinned = [text for text in set(texts) if any(end in text for end in self._ends)]
        found = [text for text in twinned if not any(_overlap(text, word) for word in self._words)]
        return _compiled(found, "({})")

    def broken(self, content: str) -> str:
        """Content with a break where twins don't help: in white space, and around
        what a template may put inside a special token.
        """
        if self._white is not None:
            content = self._white.sub(rf"\1{self._break}", content)
        bare = content.strip()  # templates often strip white space
        if bare and len(bare) < self._longest and bare in self._joined:
            return content.replace(bare, self._break + bare + self._break, 1)
        return content

    def mended(self, text: str) -> str:
        return text.replace(self._break, "")

    def spelled(self, rendered: str) -> str:
        """With every special token spelled as meant."""
        return rendered if self._found is None else self._found.sub(self._spell, rendered)

    def among(self, rendered: str) -> list[str]:
        """The special tokens in it, in order."""
        found = self._found.finditer(rendered) if self._found is not None else ()
        return [match.group() for match in found if match.group() in self.tokens]

    def readable(self, text: str) -> str:
        """Any text of ours as people know it, without secrets."""
        return self.mended(text.replace(self._meant, ""))

    def _spell(self, found: re.Match[str]) -> str:
        return self._meant + found.group() if found.group() in self.tokens else found.group()


def _overlap(text: str, word: str) -> bool:
    """Whether both may have characters in common where one follows or contains the other."""
    if text in word or word in text:
        return True
    sizes = range(1, min(len(text), len(word)))
    return any(text[-size:] == word[:size] or text[:size] == word[-size:] for size in sizes)


def _secret() -> str:
    """96 bits of private-use characters: no user can guess them; no
    template trims, folds or normalizes them.
    """
    return "".join(chr(0xE000 + secrets.randbelow(0x1000)) for _ in range(8))


def _compiled(words: Iterable[str], frame: str) -> re.Pattern[str] | None:
    """`frame` around a pattern that finds the longest of `words`: as a
    tree, because some vocabularies have thousands.
    """
    trie: Trie = {}
    for word in words:
        node = trie
        for letter in word:
            node = node.setdefault(letter, {})
        node[_END] = {}
    return re.compile(frame.format(_branches(trie)), re.DOTALL) if trie else None


def _branches(trie: Trie) -> str:
    branches = [re.escape(letter) + _branches(node) for letter, node in trie.items() if letter != _END]
    if not branches:
        return ""
    inner = "|".join(branches)
    if _END in trie:
        return f"(?:{inner})?"
    return inner if len(branches) == 1 else f"(?:{inner})"
