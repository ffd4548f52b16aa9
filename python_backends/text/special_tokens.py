"""Tells the special tokens that a chat template means from the same strings typed by users. Strings only; no ids.

Two secrets, drawn when the process starts, do it. `disarm` breaks special tokens in users' content before the template sees it;
`arm` then spells those still whole, which are the template's own, in a way that no user can guess, and mends what was broken. The
encoder's tokenizer knows special tokens by the secret spelling alone.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping

from tokenizers import AddedToken, Tokenizer

Trie = dict[str, "Trie"]
_END = ""  # the key under which a trie says that a word ends here


class SpecialTokens:
    """`tokens` are the added tokens to guard, by their text."""

    def __init__(self, tokenizer: Tokenizer, texts: frozenset[str]) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        self.tokens: Mapping[str, AddedToken] = {token.content: token for token in added if token.content in texts}
        self._meant, self._break = _secret(), _secret()
        words = [text for text in self.tokens if len(text) > 1]  # a single character can't be told from text
        self._joined = "\0".join(["", *words, ""])
        self._longest = max(map(len, words), default=0)
        self._starts = _compiled(words, "(?={})(.)")
        # the tokenizer finds added tokens leftmost, then longest: an ordinary one may take the start of a special one
        self._found = _compiled([*words, *(token.content for token in added if token.content and not token.normalized)], "{}")

    def meant(self, text: str) -> str:
        """The spelling under which the encoder's tokenizer knows the special token `text`."""
        return self._meant + text

    def disarm(self, content: str) -> str:
        """Users' content with a break in every special token, and where it could complete one that the template begins or ends."""
        if self._starts is None:
            return content
        content = self._starts.sub(rf"\1{self._break}", content)
        bare = content.strip()  # templates often trim
        if not bare or not self._may_join(bare):
            return content
        return content.replace(bare, self._break + bare + self._break, 1)

    def arm(self, rendered: str) -> str:
        """What the template made of disarmed content, its own special tokens spelled as meant, the content as it was typed."""
        if self._found is not None:
            rendered = self._found.sub(self._spell, rendered)
        return rendered.replace(self._break, "")

    def readable(self, text: str) -> str:
        """Any text of ours as people know it, without secrets."""
        return text.replace(self._meant, "").replace(self._break, "")

    def _may_join(self, bare: str) -> bool:
        lengths = range(1, min(self._longest, len(bare) + 1))
        if any(f"{bare[:n]}\0" in self._joined or f"\0{bare[-n:]}" in self._joined for n in lengths):
            return True
        return len(bare) < self._longest and bare in self._joined

    def _spell(self, found: re.Match[str]) -> str:
        return self._meant + found.group() if found.group() in self.tokens else found.group()


def _secret() -> str:
    """96 bits of private-use characters: no user can guess them; no template trims, folds or normalizes them."""
    return "".join(chr(0xE000 + secrets.randbelow(0x1000)) for _ in range(8))


def _compiled(words: Iterable[str], frame: str) -> re.Pattern[str] | None:
    """`frame` around a pattern that finds the longest of `words`: as a tree, because some vocabularies have thousands."""
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
