"""Reads the fields of which the answer's grammar is made, and has the grammar checked.

Called by the door.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from python_backends.guides.errors import GuideError, UncompiledError
from python_backends.guides.grammars import TYPES, grammar_of
from python_backends.guides.guides import Guides
from python_backends.nouns.request import LaterError, RefusedError
from python_backends.text.door.values import shown

KIND, GUIDE = "guided_decoding_guide_type", "guided_decoding_guide"
# what would leave an answer without a token that may come: neither rule is broken silently
AGAINST_GUIDES = ("min_tokens", "bad_words")


def read_grammar(values: Mapping[str, Any], guides: Guides) -> str:
    """The grammar that the request's guide is; empty if it has none. Raises RefusedError; LaterError if it
    is not compiled in time.
    """
    kind, guide = values[KIND], values[GUIDE]
    if not kind and not guide:
        return ""
    if not kind:
        raise RefusedError(f"{GUIDE} = {shown(guide)}: {KIND} is missing, which says what it is")
    if kind not in TYPES:
        raise RefusedError(f"{KIND} = {shown(kind)}: must be one of {', '.join(TYPES)}")
    for name in AGAINST_GUIDES:
        if values[name]:
            raise RefusedError(f"{name} = {shown(values[name])}: must be absent where there is a guide")
    try:
        grammar = grammar_of(kind, guide)
        guides.check(grammar)
    except UncompiledError as error:
        raise LaterError(f"{GUIDE} ({kind}): {error}") from error
    except GuideError as error:
        raise RefusedError(f"{GUIDE} ({kind}): {error}") from error
    return grammar
