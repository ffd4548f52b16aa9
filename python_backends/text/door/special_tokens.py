"""Distinguishes the special tokens that a chat template writes from the same strings typed by users. Works on
strings, not on ids.

1. In users' content, the first and last characters of special tokens are replaced by twins: private-use
   characters that the messages don't contain.
2. The template renders this content. All special tokens in the result come from the template, whatever parts
   of the content it cuts out, trims or joins.
3. A secret, which is drawn when the process starts, is put before each of these special tokens (the secret
   spelling), and the twins become the typed characters again.
4. The encoder's tokenizer finds special tokens only in the secret spelling.

A template that looks for "</think>" in an answer must find it. So texts that the template compares with are
not replaced in the content, unless they could be a part of a special token. Then the content is rendered a
second time with everything replaced: if that gives other special tokens, the template has split such a text,
and the request is refused (`chat_template`).
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from tokenizers import AddedToken, Tokenizer

from python_backends.nouns.request import RefusedError
from python_backends.text.longest import longest_of

# twins are from these ranges; secrets are drawn from another one
_PRIVATE = (range(0xF000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))


@dataclass(frozen=True, slots=True)
class Guard:
    """Keeps special tokens in the contents of one conversation apart from those of the template."""

    special: SpecialTokens
    twins: Mapping[str, str]  # by the character that each one replaces

    def disarm(self, content: str, kept: re.Pattern[str] | None = None) -> str:
        """Returns the content for the template. Text that `kept` finds (as its group) is not replaced."""
        content = self.special.broken(content)
        pieces = kept.split(content) if kept else [content]  # every second one is kept
        return "".join(piece if i % 2 else self._replaced(piece) for i, piece in enumerate(pieces))

    def arm(self, rendered: str) -> str:
        """Returns the template's output with its own special tokens in the secret spelling and the content as
        it was typed.
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
    """The special tokens of one model (`tokens`, by their text) and this process's secret spelling of them.
    Never changes.
    """

    def __init__(self, tokenizer: Tokenizer, texts: frozenset[str]) -> None:
        added = tokenizer.get_added_tokens_decoder().values()
        self.tokens: Mapping[str, AddedToken] = {
            token.content: token for token in added if token.content in texts
        }
        self._meant, self._break = _secret(), _secret()
        # a token of a single character can't be distinguished from text
        self._words = [text for text in self.tokens if len(text) > 1]
        self._joined = "\0".join(["", *self._words, ""])
        self._longest = max(map(len, self._words), default=0)
        # no white space: templates trim it
        self._ends = sorted({end for word in self._words for end in (word[0], word[-1]) if not end.isspace()})
        self._white = longest_of(
            [word for word in self._words if word[0].isspace() and word[-1].isspace()], "(?={})(.)"
        )
        # the tokenizer finds the leftmost added token, then the longest: an ordinary one may include the
        # start of a special one
        self._found = longest_of([*self._words, *(token.content for token in added if not token.normalized)])

    def meant(self, text: str) -> str:
        """Returns the secret spelling of the special token `text`."""
        return self._meant + text

    def guard(self, contents: Sequence[str]) -> Guard:
        """Chooses the twins for a conversation. Raises RefusedError if the contents use too many private-use
        characters.
        """
        used = set() if all(content.isascii() for content in contents) else set().union(*contents)
        free = (twin for twin in map(chr, chain(*_PRIVATE)) if twin not in used)
        twins = dict(zip(self._ends, islice(free, len(self._ends)), strict=False))
        if len(twins) < len(self._ends):
            raise RefusedError(
                "messages: they contain nearly all characters for private use; leave some of them out"
            )
        return Guard(self, twins)

    def comparable(self, texts: Iterable[str]) -> re.Pattern[str] | None:
        """Returns a pattern that finds, as a group, those of the texts that contain replaced characters and
        don't overlap with any special token; None if there are none.
        """
        twinned = [text for text in set(texts) if any(end in text for end in self._ends)]
        found = [text for text in twinned if not any(_overlap(text, word) for word in self._words)]
        return longest_of(found, "({})")

    def broken(self, content: str) -> str:
        """Returns `content` with a break at places where twins don't help: in special tokens that begin and
        end with white space, and around content that is a part of a special token, which the template could
        complete.
        """
        if self._white is not None:
            content = self._white.sub(rf"\1{self._break}", content)
        bare = content.strip()  # templates often trim
        if bare and len(bare) < self._longest and bare in self._joined:
            return content.replace(bare, self._break + bare + self._break, 1)
        return content

    def mended(self, text: str) -> str:
        return text.replace(self._break, "")

    def spelled(self, rendered: str) -> str:
        """Returns `rendered` with every special token in the secret spelling."""
        return rendered if self._found is None else self._found.sub(self._spell, rendered)

    def among(self, rendered: str) -> list[str]:
        """Returns the special tokens in `rendered`, in order."""
        found = self._found.finditer(rendered) if self._found is not None else ()
        return [match.group() for match in found if match.group() in self.tokens]

    def readable(self, text: str) -> str:
        """Returns `text` without secrets and breaks, to be shown to people."""
        return self.mended(text.replace(self._meant, ""))

    def _spell(self, found: re.Match[str]) -> str:
        return self._meant + found.group() if found.group() in self.tokens else found.group()


def _overlap(text: str, word: str) -> bool:
    """Returns whether one contains the other or begins with the end of the other."""
    if text in word or word in text:
        return True
    sizes = range(1, min(len(text), len(word)))
    return any(text[-size:] == word[:size] or text[:size] == word[-size:] for size in sizes)


def _secret() -> str:
    """Draws 96 bits as private-use characters. No user can guess them; no template trims, folds or normalizes
    them.
    """
    return "".join(chr(0xE000 + secrets.randbelow(0x1000)) for _ in range(8))
