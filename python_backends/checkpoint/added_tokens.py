"""Tokens that only the tokenizer's configuration knows: they are added to the tokenizer as transformers adds
them, so that a chat template's markers are tokens. Owns nothing. Called by `directory`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from tokenizers import AddedToken, Tokenizer

NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# lists of tokens; the second may be an object with a name for each token
EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def complete(tokenizer: Tokenizer, texts: Mapping[str, Any], numbered: Mapping[str, Any]) -> None:
    """`texts`: of tokenizer_config.json; `numbered`: added_tokens.json. A token that the vocabulary has keeps
    its id, others get the next ones; those with a part to play become special.
    """
    named, extra = _named(texts), _extra(texts)
    played = {**named, **extra}
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    declared = _declared(texts, numbered, played)
    same = {repr(token) for token in known.values()}
    tokenizer.add_tokens([token for token in declared.values() if repr(token) not in same])
    tokenizer.add_tokens([token for text, token in played.items() if text not in known | declared])
    if "added_tokens_decoder" not in texts:
        declared = known | declared
    tokenizer.add_special_tokens([declared.get(text, token) for text, token in named.items()])
    tokenizer.add_special_tokens(list(extra.values()))


def content(token: Any) -> str:
    """The text of a token, which is written as a string or as an object with `content`."""
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def _named(texts: Mapping[str, Any]) -> dict[str, AddedToken]:
    """Those with a name in the configuration, also a name of the model's own."""
    others = [name for name in texts if name.endswith("_token") and name not in NAMED_TOKENS]
    values = [texts.get(name) for name in (*NAMED_TOKENS, *others)]
    own = texts.get("extra_special_tokens")
    values += own.values() if isinstance(own, dict) else []
    return _tokens(value for value in values if isinstance(value, str | dict))


def _extra(texts: Mapping[str, Any]) -> dict[str, AddedToken]:
    lists = [texts.get(name) for name in EXTRA_TOKENS]
    return _tokens(value for each in lists if not isinstance(each, dict) for value in each or [])


def _tokens(values: Iterable[Any]) -> dict[str, AddedToken]:
    """By their texts; each once, without empty ones."""
    found: dict[str, AddedToken] = {}
    for value in values:
        text = content(value)
        flags = {name: value[name] for name in FLAGS if name in value} if isinstance(value, dict) else {}
        if text:
            found.setdefault(text, AddedToken(text, **{"normalized": False} | flags, special=True))
    return found


def _declared(
    texts: Mapping[str, Any], numbered: Mapping[str, Any], played: Collection[str]
) -> dict[str, AddedToken]:
    """By their texts, in the order of their ids."""
    decoder = texts.get("added_tokens_decoder")
    if decoder is not None:
        fields = ("content", "special", *FLAGS)
        tokens = [decoder[index] for index in sorted(decoder, key=int)]
        made = [AddedToken(**{name: each[name] for name in fields if name in each}) for each in tokens]
        return {token.content: token for token in made}
    return {
        text: AddedToken(text, normalized=text not in played, special=text in played)
        for text in sorted(numbered, key=lambda text: int(numbered[text]))
    }
