"""Every kind of tokenizer: what is streamed is what the library decodes
whole, what is typed gets the library's ids.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from itertools import groupby

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, normalizers

from python_backends.checkpoint.source import CheckpointError
from python_backends.nouns.request import Finish, RefusedError, Request, TokenWindow
from python_backends.settings import LimitSettings
from python_backends.text.detokenize.detokenizer import Detokenizer
from python_backends.text.detokenize.spelling import spelling
from python_backends.text.door.door import Door, open_door
from tests.support.examples import examples
from tests.support.text.checkpoints import read
from tests.support.text.kinds import CONFIG, TOKENIZERS, TURNS, checkpoint, t5
from tests.support.text.windows import Stream, steps

KINDS = sorted(TOKENIZERS)
BYTE_FALLBACK = ["gemma", "llama_2", "mistral", "phi_3", "unigram_with_bytes"]

SCRIPTS = {
    "emoji": "👨‍👩‍👧‍👦 👋🏽 ❤️‍🔥 🏴󠁧󠁢󠁷󠁬󠁳󠁿 1️⃣",
    "flags": "🇩🇪🇫🇷 🇯🇵",
    "combining": "e\u0301 n\u0303o\u0308 Z͑ͫ̓a̴l̷g̸o",
    "devanagari": "नमस्ते दुनिया, क्षत्रिय श्री",
    "chinese": "你好，世界。𠮷野家 ㍿",
    "right_to_left": "שָׁלוֹם עולם مرحبًا بالعالم \u202babc\u202c",
    "spaces": "  two  spaces\n\n\tand\u00a0others \u3000",
    "signs": "don't stop . , ! ? do not ( now ) <|user|> ▁ ##ing",
}
phrases = st.sampled_from([*SCRIPTS.values(), "hello world", " stop", "stop", "👧", "\u0301", "你", " "])
texts = st.lists(phrases | st.text(max_size=6), max_size=5).map("".join)


@cache
def detokenizer(kind: str) -> Detokenizer:
    return Detokenizer(checkpoint(kind))


@cache
def door(kind: str) -> Door:
    return open_door(replace(checkpoint(kind), max_model_tokens=1024), LimitSettings())


def encoded(kind: str, text: str) -> list[int]:
    """An answer's tokens; unknown characters leave a special token, which prints nothing."""
    made = checkpoint(kind)
    ids = made.tokenizer.encode(text, add_special_tokens=False).ids
    return [token for token in ids if made.tokenizer.id_to_token(token) not in made.special_tokens]


@cache
def ordinary(kind: str) -> list[int]:
    """Tokens with text, the 256 bytes included."""
    made = checkpoint(kind)
    tokens = {token: made.tokenizer.id_to_token(token) for token in range(made.vocab_size)}
    return [token for token, text in tokens.items() if text and text not in made.special_tokens]


def answers(kind: str) -> st.SearchStrategy[list[int]]:
    """Runs of text and of any tokens at all: half characters, invalid bytes."""
    runs = texts.map(lambda text: encoded(kind, text)) | st.lists(st.sampled_from(ordinary(kind)), max_size=6)
    return st.lists(runs, max_size=4).map(lambda runs: [token for run in runs for token in run])


def byte_of(tokenizer: Tokenizer, token: int) -> bytes | None:
    text = tokenizer.id_to_token(token)
    return bytes([int(text[3:5], 16)]) if len(text) == 6 and text.startswith("<0x") else None


def decoded(kind: str, tokens: list[int]) -> str:
    """What the library decodes; where it turns a whole run of bytes with a broken
    one into U+FFFD, by the rule of UTF-8 instead.
    """
    tokenizer = checkpoint(kind).tokenizer
    if kind not in BYTE_FALLBACK:
        return tokenizer.decode(tokens)
    text = ""
    for is_bytes, group in groupby(tokens, lambda token: byte_of(tokenizer, token) is not None):
        run = list(group)
        whole = tokenizer.decode([tokenizer.token_to_id("e"), *run])[1:] if text else tokenizer.decode(run)
        if is_bytes and "\ufffd" in whole:
            data = b"".join(byte_of(tokenizer, token) or b"" for token in run)
            drops = not text and tokenizer.decode([tokenizer.token_to_id("<0x20>")]) == ""
            whole = (data.removeprefix(b" ") if drops else data).decode("utf-8", "replace")
        text += whole
    return text


def first_stop(kind: str, tokens: list[int], words: list[str]) -> tuple[int, str]:
    """(tokens up to the end of the first stop word, text before it), one token
    after the other; (0, all the text) without one.
    """
    for count in range(1, len(tokens) + 1):
        text = decoded(kind, tokens[:count])
        found = [(text.index(word) + len(word), -len(word)) for word in words if word in text]
        if found:
            end, length = min(found)
            return count, text[: end + length]
    return 0, decoded(kind, tokens)


@pytest.mark.parametrize("kind", KINDS)
@examples
@given(data=st.data(), steps=steps)
def test_any_windows_of_an_answer_add_up_to_what_is_decoded_whole(
    kind: str, data: st.DataObject, steps: list[tuple[int, int, int]]
) -> None:
    tokens = data.draw(answers(kind))
    stream = Stream(detokenizer(kind), tokens)
    assert stream.run(steps) == 0
    assert stream.text == decoded(kind, tokens)


@pytest.mark.parametrize("kind", KINDS)
@examples
@given(data=st.data(), steps=steps)
def test_any_windows_add_up_to_the_text_before_the_first_stop_word(
    kind: str, data: st.DataObject, steps: list[tuple[int, int, int]]
) -> None:
    tokens = data.draw(answers(kind))[:80]  # the slow way below is slow
    text = decoded(kind, tokens)
    cuts = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 6)).map(
        lambda cut: text[cut[0] : cut[0] + cut[1]]
    )
    drawn = data.draw(
        st.lists(
            cuts | st.sampled_from(["stop", " stop", "lo w", "👧", "\u0301", "好"]), min_size=1, max_size=3
        )
    )
    words = [word for word in drawn if word and "\ufffd" not in word]
    assume(words)
    stream = Stream(detokenizer(kind), tokens, tuple(words))
    assert (stream.run(steps), stream.text) == first_stop(kind, tokens, words)


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", KINDS)
def test_one_token_at_a_time_prints_every_script_as_the_library_does(kind: str, script: str) -> None:
    tokens = encoded(kind, SCRIPTS[script])
    stream = Stream(detokenizer(kind), tokens)
    stream.run([(1, 1, 0)] * len(tokens))
    assert stream.text == checkpoint(kind).tokenizer.decode(tokens)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("t5", "word_piece")])
@pytest.mark.parametrize("script", ["emoji", "flags", "devanagari", "chinese", "right_to_left"])
def test_what_has_all_bytes_gives_every_script_back(kind: str, script: str) -> None:
    """The test's own oracle, the library, would say nothing if both lost the same characters."""
    stream = Stream(detokenizer(kind), encoded(kind, "stop " + SCRIPTS[script]))
    stream.run([(1, 1, 0)] * len(stream.tokens))
    assert stream.text.lstrip() == "stop " + SCRIPTS[script]


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_the_whole_characters_of_a_broken_run_of_bytes_are_printed(kind: str) -> None:
    vocabulary = checkpoint(kind).tokenizer.get_vocab()
    tokens = [vocabulary[f"<0x{byte:02X}>"] for byte in b"\xe4\xbd\xa0\xe5\xa5" + "👋".encode()]
    stream = Stream(detokenizer(kind), tokens)
    stream.run([(1, 1, 0)] * len(tokens))
    assert stream.text == "你\ufffd👋"


@pytest.mark.parametrize("kind", KINDS)
@examples
@given(text=texts)
def test_a_prompt_gets_the_ids_that_the_library_gives_it(kind: str, text: str) -> None:
    tokenizer = checkpoint(kind).tokenizer
    assume(not any(token in text for token in [*TURNS, *checkpoint(kind).special_tokens]))
    wanted = tokenizer.encode(text).ids
    answer = door(kind).answer({"text_input": text})
    if not tokenizer.encode(text, add_special_tokens=False).ids:
        wanted = tokenizer.encode("").ids
    if isinstance(answer, RefusedError):
        assert not wanted, answer
    else:
        assert answer.prompt.tolist() == wanted


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("byte_level", "llama_2")])
@examples
@given(text=texts.map(lambda text: text.replace("<|user|>", "")))
def test_a_chat_gets_the_ids_of_its_rendered_text(kind: str, text: str) -> None:
    answer = door(kind).answer({"messages": json.dumps([{"role": "user", "content": text}])})
    assert isinstance(answer, Request), answer
    rendered = f"<|user|>{text}<|end|><|assistant|>"
    assert answer.prompt.tolist() == checkpoint(kind).tokenizer.encode(rendered, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("byte_level", "llama_2")])
def test_special_tokens_that_users_type_are_text_or_refused(kind: str) -> None:
    special = checkpoint(kind).tokenizer.token_to_id("<|end|>")
    answer = door(kind).answer({"text_input": "hello <|end|> world"})
    if isinstance(answer, RefusedError):
        assert kind in ("t5", "unigram_with_bytes")  # their vocabularies hold special tokens as words
        assert str(answer).startswith("'<|end|>' in the prompt")
    else:
        assert special not in answer.prompt.tolist()


def test_an_answer_behind_its_prompt_keeps_the_space_between_words() -> None:
    def echoed(kind: str, text: str, continues: bool) -> str:
        tokens = np.array(encoded(kind, text), np.int32)
        window = TokenWindow(1, tokens, echo="hello", finish=Finish.STOP, continues_text=continues)
        return detokenizer(kind).piece(window).text

    for continues in (True, False):
        for kind in ("llama_2", "t5", "mistral", "word_piece"):
            assert echoed(kind, "world", continues) == "hello world"
        assert echoed("gemma", "world", continues) == "helloworld"


@pytest.mark.parametrize("kind", KINDS)
@examples
@given(data=st.data(), prompt=texts, steps=steps)
def test_a_plain_prompt_and_its_answer_read_as_the_library_decodes_both_together(
    kind: str, data: st.DataObject, prompt: str, steps: list[tuple[int, int, int]]
) -> None:
    asked = door(kind).answer({"text_input": prompt})
    assume(isinstance(asked, Request))
    ids = encoded(kind, prompt)
    assume(ids)
    tokens = data.draw(answers(kind))
    stream = Stream(detokenizer(kind), tokens, continues_text=asked.continues_text)
    stream.run(steps)
    before, whole = decoded(kind, ids), decoded(kind, [*ids, *tokens])
    assert whole == before + stream.text


@pytest.mark.parametrize("kind", ["llama_2", "phi_3", "mistral", "t5", "unigram_with_bytes", "word_piece"])
def test_the_first_word_keeps_its_space_after_a_plain_prompt_and_drops_it_in_a_chat(kind: str) -> None:
    """All of these put a space before the first word of a text, and take it away when they decode."""
    tokens = encoded(kind, "world stop")
    chat = {"messages": json.dumps([{"role": "user", "content": "hello"}])}
    for fields, text in (({"text_input": "hello"}, " world stop"), (chat, "world stop")):
        asked = door(kind).answer(fields)
        assert isinstance(asked, Request), asked
        stream = Stream(detokenizer(kind), tokens, continues_text=asked.continues_text)
        stream.run([(1, 1, 0)] * len(tokens))
        assert stream.text == text


def test_a_stop_word_that_begins_with_a_space_is_found_at_the_beginning_of_a_continuation() -> None:
    tokens = encoded("llama_2", "world stop")
    for continues, (stopped_at, text) in {True: (1, ""), False: (0, "world stop")}.items():
        stream = Stream(detokenizer("llama_2"), tokens, (" world",), continues_text=continues)
        assert stream.run([(1, 1, 0)] * len(tokens)) == stopped_at
        assert stream.text == text


REFUSED = {
    "a CTC": decoders.CTC(),
    "a BPEDecoder": decoders.BPEDecoder(),
    "a Replace with a pattern": decoders.Sequence([decoders.Replace(Regex("▁+"), " "), decoders.Fuse()]),
    "a Replace over several tokens": decoders.Sequence([decoders.Fuse(), decoders.Replace(" .", ".")]),
    "a Replace of nothing": decoders.Replace("", "-"),
    "a Strip of every token": decoders.Sequence([decoders.Replace("▁", " "), decoders.Strip(" ", 1, 0)]),
    "a Strip of the end": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    "a Strip of two spaces": decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 2, 0)]),
    "a Strip behind Metaspace": decoders.Sequence(
        [decoders.Metaspace(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    ),
    "a Metaspace behind Fuse": decoders.Sequence([decoders.Fuse(), decoders.Metaspace()]),
    "a WordPiece behind ByteLevel": decoders.Sequence([decoders.ByteLevel(), decoders.WordPiece()]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_decoder_that_needs_the_whole_answer_is_refused_by_name(name: str) -> None:
    with pytest.raises(
        CheckpointError, match=rf"the decoder's step {name.split()[1]} can't be done token by token: \w+"
    ):
        spelling(REFUSED[name])


def test_a_tokenizer_without_a_decoder_is_refused() -> None:
    with pytest.raises(CheckpointError, match="no decoder"):
        Detokenizer(read(Tokenizer(models.BPE()), {}, config=CONFIG))


def test_a_normaliser_that_would_let_users_write_special_tokens_is_refused() -> None:
    """BERT's removes private-use characters, of which our spelling of special
    tokens is made, where it runs before they are found.
    """
    tokenizer = t5()
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=False)
    written = tokenizer.to_str().replace('"normalized":false', '"normalized":true')
    with pytest.raises(CheckpointError, match="normalizer"):
        open_door(read(Tokenizer.from_str(written), {}, config=CONFIG), LimitSettings())
