"""The tokenizer of a GGUF file, from its metadata: byte-level BPE, and SentencePiece's BPE with byte
fallback.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from python_backends.checkpoint.gguf.metadata import Metadata
from python_backends.checkpoint.gguf.splits import WORDS, Words

KEY = "tokenizer.ggml"
SPACE = "\u2581"
INST = "[INST]"  # with which Mistral's instructions begin
NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}


class Kind(IntEnum):
    """Of a token, in the list token_type. The others are parts of words."""

    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# llama.cpp has this list, too: files don't say after which tokens white space is left out
KEEP_SPACES = ("<unk>", "<s>", "<|endoftext|>")

NOT_MERGED = (Kind.UNKNOWN, Kind.CONTROL, Kind.UNUSED, Kind.BYTE)


def tokenizer_of(metadata: Metadata) -> Tokenizer:
    """Raises CheckpointError."""
    model = metadata.text(f"{KEY}.model")
    if model not in _MODELS:
        raise metadata.refused(f"{KEY}.model", f"{', '.join(_MODELS)} are served")
    tokens = _tokens(metadata)
    kinds = metadata.many(f"{KEY}.token_type", int, len(tokens)) or [1] * len(tokens)
    tokenizer = _MODELS[model](metadata, tokens, kinds)
    takes_spaces = _takes_spaces(metadata, tokens, kinds)

    def added(token: str, special: bool) -> AddedToken:
        return AddedToken(token, normalized=False, special=special, rstrip=token in takes_spaces)

    for kind, special in ((Kind.CONTROL, True), (Kind.USER_DEFINED, False)):
        some = [token for token, each in zip(tokens, kinds, strict=True) if each == kind]
        known = [token for token in some if tokenizer.token_to_id(token) is not None]
        tokenizer.add_tokens([added(token, special) for token in known])
    named = [token for name, token in named_tokens(metadata).items() if name != "unk_token"]
    tokenizer.add_special_tokens([added(token, True) for token in named])
    _frame(tokenizer, metadata)
    return tokenizer


def _takes_spaces(metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> set[str]:
    """The tokens after which white space is left out: Phi-3's."""
    if metadata.text("general.architecture") != "phi3" or metadata.text(f"{KEY}.model") != "llama":
        return set()
    control = {token for token, kind in zip(tokens, kinds, strict=True) if kind == Kind.CONTROL}
    return control.union(["</s>"]).difference(KEEP_SPACES)


def named_tokens(metadata: Metadata) -> dict[str, str]:
    """bos_token, eos_token … as tokenizer_config.json names them. Raises CheckpointError."""
    keys = {name: f"{KEY}.{key}_token_id" for name, key in NAMED.items()}
    return {name: _token(metadata, key) for name, key in keys.items() if key in metadata.fields}


def _tokens(metadata: Metadata) -> list[str]:
    tokens = metadata.many(f"{KEY}.tokens", str)
    if not tokens:
        raise metadata.missing(f"{KEY}.tokens")
    if len(set(tokens)) < len(tokens):
        seen: set[str] = set()
        twice = next(token for token in tokens if token in seen or seen.add(token))  # type: ignore[func-returns-value]
        raise metadata.refused(f"{KEY}.tokens", f"{twice!r:.100} is there twice")
    return tokens


def _token(metadata: Metadata, key: str) -> str:
    tokens, token_id = metadata.many(f"{KEY}.tokens", str), metadata.whole(key)
    if token_id >= len(tokens):
        raise metadata.refused(key, f"there are {len(tokens)} tokens")
    return str(tokens[token_id])


def _byte_level(metadata: Metadata, tokens: Sequence[str], _kinds: Sequence[int]) -> Tokenizer:
    name = metadata.text(f"{KEY}.pre")
    if name not in WORDS:
        raise metadata.refused(f"{KEY}.pre", f"{', '.join(WORDS)} are served")
    words = WORDS[name]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata.many(f"{KEY}.merges", str)]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    for merge in merges:
        if len(merge) != 2 or not {*merge, "".join(merge)} <= vocabulary.keys():
            raise metadata.refused(f"{KEY}.merges", f"{' '.join(merge)!r:.100}: not of three tokens")
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=words.whole_words))
    tokenizer.normalizer = words.normalizer()
    tokenizer.pre_tokenizer = words.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentence_piece(metadata: Metadata, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """Gemma's merges come in the order of its tokens. Elsewhere the best score is merged first, and a text
    has a space before it: behind each special token, too, as in llama.cpp and in the tokenizer.json of
    Llama 2, TinyLlama, Mistral 7B 0.1 and 0.2, and Phi-3. In Mistral's later ones, where [INST] is a token,
    only the first text has it.
    """
    is_gemma = metadata.text("general.architecture").startswith("gemma")
    is_first_alone = (INST, Kind.CONTROL) in zip(tokens, kinds, strict=True)
    if is_gemma:
        tokens = [token.replace(" ", SPACE) if not token.strip(" ") else token for token in tokens]
        ranks: list[Any] = list(range(len(tokens)))
    else:
        scores = metadata.many(f"{KEY}.scores", (int, float), len(tokens))
        if not scores:
            raise metadata.missing(f"{KEY}.scores")
        ranks = [-score for score in scores]
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = _merges(tokens, kinds, ranks, vocabulary)
    unknown = named_tokens(metadata).get("unk_token")
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefix = not is_gemma and metadata.flag(f"{KEY}.add_space_prefix", True)
    if prefix and is_first_alone:
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, prepend_scheme="first", split=False)
    else:
        marks = [normalizers.Prepend(SPACE)] if prefix else []
        tokenizer.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", SPACE)])
    ends = [decoders.Strip(" ", 1, 0)] if prefix else []
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *ends]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


_MODELS = {"gpt2": _byte_level, "llama": _sentence_piece}


def _merges(
    tokens: Sequence[str], kinds: Sequence[int], ranks: Sequence[Any], vocabulary: dict[str, int]
) -> list[tuple[str, str]]:
    """Every way to make a token of two others, the lowest rank first, then the longest left part: a file
    lists none.
    """
    found = [
        (rank, -len(left), -len(right), left, right)
        for token, kind, rank in zip(tokens, kinds, ranks, strict=True)
        if kind not in NOT_MERGED
        for left, right in _halves(token, vocabulary)
    ]
    return [(left, right) for *_, left, right in sorted(found, key=lambda merge: merge[:3])]


def _halves(token: str, vocabulary: dict[str, int]) -> Iterator[tuple[str, str]]:
    for at in range(1, len(token)):
        left, right = token[:at], token[at:]
        if left in vocabulary and right in vocabulary:
            yield left, right


def _begins_with_bos(metadata: Metadata) -> bool:
    is_sentence_piece = metadata.text(f"{KEY}.model") == "llama"
    words = WORDS.get(metadata.text(f"{KEY}.pre", ""), Words())
    return metadata.flag(f"{KEY}.add_bos_token", is_sentence_piece or words.begins)


def _frame(tokenizer: Tokenizer, metadata: Metadata) -> None:
    """What stands around a plain prompt."""
    named = named_tokens(metadata)
    begins, ends = _begins_with_bos(metadata), metadata.flag(f"{KEY}.add_eos_token", False)
    before = [named["bos_token"]] if begins and "bos_token" in named else []
    behind = [named["eos_token"]] if ends and "eos_token" in named else []
    if around := [*before, *behind]:
        ids = [(token, tokenizer.token_to_id(token)) for token in dict.fromkeys(around)]
        tokenizer.post_processor = TemplateProcessing([*before, "$A", *behind], special_tokens=ids)
