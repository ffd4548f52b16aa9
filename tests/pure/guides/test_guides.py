"""Guides of every type: what they let through, what is refused, what they may cost."""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import runpy
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from python_backends.guides.errors import MOST_SHOWN, GuideError, UncompiledError
from python_backends.guides.grammars import TYPES, grammar_of
from python_backends.guides.guides import MAX_GUIDE_BYTES, MOST_KEPT, Guides, _refuse_large_multiples
from python_backends.guides.lark import as_lark
from python_backends.guides.prepared import Followed
from python_backends.guides.vocabulary import Vocabulary
from tests.support.guided import END, STOP, TOKENS, VOCABULARY, allowed, drawn, guides, matcher

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


def takes(kind: str, guide: str, text: bytes) -> bool:
    """Whether `text` is whole."""
    found = matcher(kind, guide)
    return found.take(list(text)) and END in allowed(found)


def tag(**found: Any) -> str:
    return json.dumps({"type": "structural_tag", "format": found})


CALL = {"begin": "<tool>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</tool>"}
ADA = b'{"name": "Ada", "age": 36}'
CALLS = tag(type="triggered_tags", triggers=["<tool"], tags=[CALL])
ONE = tag(type="triggered_tags", triggers=["<tool"], tags=[CALL], at_least_one=True, stop_after_first=True)
ARITHMETIC = """root  ::= (expr "=" ws term "\\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \\t\\n]*
"""  # llama.cpp's example
INT64 = json.dumps({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1})
KEYS: dict[str, Any] = {f"k{i}": {} for i in range(500)}  # any of them may be absent
THOUGHT = {"type": "tag", "begin": "<think>", "content": {"type": "any_text"}, "end": "</think>"}


@pytest.mark.parametrize(
    ("kind", "guide", "text", "is_whole"),
    [
        ("json", "", b'{"a": [1, null]}', True),
        ("json", "", b"12", True),
        ("json", "", b"{", False),
        ("json_schema", json.dumps(PERSON), ADA, True),
        ("json_schema", json.dumps(PERSON), b'{\n  "name": "Ada",\n  "age": 36\n}', True),
        ("json_schema", json.dumps(PERSON), b'{"name": "Ada"}', False),
        ("json_schema", json.dumps(PERSON), b'{"name":   "Ada", "age": 1}', False),
        ("json_schema", "true", b"[1]", True),
        ("json_schema", INT64, str(-(2**63) + 1024).encode(), True),
        ("json_schema", INT64, str(2**63 - 1).encode(), True),
        ("json_schema", INT64, str(2**63).encode(), False),
        ("json_schema", INT64.replace("integer", "number"), b"-1.5", True),
        ("json_schema", json.dumps({"maximum": 10**400, "type": "number"}), b"1", True),
        ("json_schema", json.dumps({"const": 2**60, "default": 2**60 + 1}), str(2**60).encode(), True),
        ("json_schema", json.dumps({"properties": {"maximum": {"const": 1}}}), b'{"maximum": 1}', True),
        ("regex", "(a+)+b", b"aaab", True),
        ("regex", "(a+)+b", b"aaa", False),
        ("regex", "é{2}/", "éé/".encode(), True),
        ("grammar", 'root ::= "x" [0-9]+ | "y"', b"x12", True),
        ("grammar", 'start: "x" NUMBER | "y"\nNUMBER: /[0-9]+/', b"y", True),
        ("grammar", '?start: "a"', b"a", True),
        ("grammar", '!start: "a"', b"a", True),
        ("grammar", 'start[capture] : "a"', b"a", True),
        ("grammar", '# start: here\nroot ::= start\nstart ::= "a"', b"a", True),
        ("grammar", ARITHMETIC, b"a+(b_1-2)=2 \n\n", True),
        ("grammar", ARITHMETIC, b"a+ =2\n", False),
        ("grammar", 'root ::= name | "if" "x"\nname ::= [a-z]+ "1"', b"ifx", True),
        ("grammar", 'root ::= name | "if" "x"\nname ::= [a-z]+ "1"', b"if1", True),
        ("grammar", r'root ::= [\u00e9] "\u00e9a\x41\"" [\U0001F600]', 'ééaA"😀'.encode(), True),
        ("grammar", "root ::= [a&&b]+ [!--]? [a~~-]* [^a]", b"a&b--~a-a", False),
        ("grammar", "root ::= [a&&b]+ [!--]? [a~~-]* [^a]", b"a&b--~a-\n", True),
        ("grammar", 'root ::= . "a"{0} fooBar foo-bar\nfooBar ::= "a"\nfoo-bar ::= "b"', b"\nab", True),
        ("ebnf_grammar", 'root ::= "x" root "x" | "y"', b"xxyxx", True),
        ("ebnf_grammar", 'root ::= "x" root "x" | "y"', b"xxyx", False),
        ("structural_tag", tag(type="const_string", value='"ü'), '"ü'.encode(), True),
        ("structural_tag", CALLS, b"hello", True),
        ("structural_tag", CALLS, b"hi <tool>" + ADA + b"</tool> <tool>" + ADA + b"</tool> bye", True),
        ("structural_tag", CALLS, b"hi <tool>" + ADA, False),
        ("structural_tag", CALLS, b"hi <tool>nothing", False),
        ("structural_tag", ONE, b"hi", False),
        ("structural_tag", ONE, b"hi <tool>" + ADA + b"</tool>", True),
        ("structural_tag", ONE, b"hi <tool>" + ADA + b"</tool> bye", False),
        (
            "structural_tag",
            tag(type="sequence", elements=[THOUGHT, {"type": "regex", "pattern": "[0-9]+"}]),
            b"<think>a <tool> b</think>12",
            True,
        ),
        (
            "structural_tag",
            tag(type="or", elements=[{"type": "grammar", "grammar": 'root ::= "q"'}, THOUGHT]),
            b"q",
            True,
        ),
        ("structural_tag", tag(type="tags_with_separator", separator=", ", tags=[CALL]), b"", True),
        ("structural_tag", tag(type="json_schema", json_schema={}, style="json", excludes=[]), b"1", True),
        (
            "structural_tag",
            tag(type="tags_with_separator", separator=", ", tags=[CALL], at_least_one=True),
            b"<tool>" + ADA + b"</tool>, <tool>" + ADA + b"</tool>",
            True,
        ),
        (
            "structural_tag",
            json.dumps(
                {
                    "type": "structural_tag",
                    "structures": [{"begin": "<f=a>", "schema": PERSON, "end": "</f>"}],
                    "triggers": ["<f="],
                }
            ),
            b"so <f=a>" + ADA + b"</f>",
            True,
        ),
    ],
)
def test_a_text_is_whole_if_it_is_what_the_guide_says(
    kind: str, guide: str, text: bytes, is_whole: bool
) -> None:
    assert takes(kind, guide, text) == is_whole


@pytest.mark.parametrize(
    ("kind", "guide", "says"),
    [
        ("json", "{}", "must be empty"),
        ("json_schema", "{", "must be a JSON schema"),
        ("json_schema", "3", "an object, true or false"),
        ("json_schema", "false", "no JSON fits"),
        ("json_schema", '{"type": "wrong"}', "wrong"),
        ("json_schema", '{"not": {}}', "not"),
        ("json_schema", json.dumps({"items": {"const": 2**53 + 1}}), "const: 9007199254740993 would become"),
        ("json_schema", json.dumps({"enum": [1, {"a": -(2**60) + 1}]}), "enum: -1152921504606846975 would"),
        ("json_schema", json.dumps({"minimum": 2**53 + 1}), "minimum: 9007199254740993 would become"),
        ("json_schema", json.dumps({"const": 10**400}), "const: 1000000000000000000000000000000000000000 wo"),
        ("json_schema", '{"$ref": "https://example.com/a"}', "example.com"),
        ("json_schema", '{"$ref": "file:///etc/passwd"}', "passwd"),
        ("json_schema", '{"$ref": "#"}', "no text can follow it"),
        ("json_schema", '{"items": ' * 500 + "{}" + "}" * 500, "recursion"),
        ("json_schema", json.dumps({"type": "object", "properties": KEYS}), "max is 600"),
        ("regex", "(", "unclosed group"),
        ("regex", "(a)\\1", "backreferences"),
        ("regex", "(" * 20_000 + ")" * 20_000, "regex"),
        ("grammar", "", "rammar"),
        ("grammar", "root ::= other", "there is no rule other"),
        ("grammar", 'root ::= "\\uD800"', "\\uD800: there is no such character"),
        ("grammar", 'start: "<a>" /</ <|im_end|>?', "<|im_end|>: special tokens and ids can't be a part"),
        ("grammar", 'start: "a" <[65]>', "<[65]>: special tokens and ids can't be a part"),
        ("grammar", "root ::= " + "(" * 5000 + '"a"' + ")" * 5000, "must be a grammar"),
        ("grammar", 'start: start "a"', "no text can follow it"),
        ("grammar", "start: other", "other"),
        ("grammar", '  start.1: "a"', "priority not supported"),
        ("grammar", 'start: <|nothing|> "a"', "nothing"),
        ("structural_tag", "[]", 'with "type"'),
        ("structural_tag", tag(type="nonsense"), "format.type = 'nonsense': must be one of"),
        ("structural_tag", tag(type="sequence", elements=[3]), "format.elements[0]: must be an object"),
        ("structural_tag", tag(type="sequence", elements=[]), "format.elements: must be a list"),
        (
            "structural_tag",
            tag(type="sequence", elements=[{"type": "any_text"}, THOUGHT]),
            "format.elements[0]: any_text must be last",
        ),
        (
            "structural_tag",
            tag(type="triggered_tags", triggers=["<a"], tags=[CALL]),
            "format.tags[0].begin = '<tool>': must begin with one of the triggers",
        ),
        (
            "structural_tag",
            tag(type="tag", begin="a", content=THOUGHT, end=3),
            "format.end: must be a string",
        ),
        (
            "structural_tag",
            tag(type="sequence", elements=[THOUGHT, {"type": "any_text", "excludes": ["a"]}]),
            "format.elements[1].excludes: is not known; there are no others",
        ),
        ("structural_tag", tag(type="json_schema", json_schema={}, style="qwen_xml"), "format.style: is not"),
        (
            "structural_tag",
            tag(type="tags_with_separator", tags=[{**CALL, "ends": ""}], separator=""),
            "format.tags[0].ends: is not known; there are begin, content, end",
        ),
        ("structural_tag", '{"type": "structural_tag", "formats": {}}', "formats: is not known"),
        ("structural_tag", CALLS.replace('["<tool"]', "[3]"), "format.triggers[0]: must be a string"),
        ("structural_tag", ONE.replace("true", '"no"', 1), "format.at_least_one: must be true or false"),
        ("structural_tag", tag(type="regex", pattern="\ud800"), "format.pattern: must be text that UTF-8"),
        ("structural_tag", tag(type="grammar", grammar="\ud800"), "format.grammar: must be text that UTF-8"),
        (
            "json_schema",
            '{"allOf": [{"type": "integer", "multipleOf": 9973}, {"type": "integer", "multipleOf": 9967}]}',
            "the least common multiple of all of them must be at most 10,000, not 99,400,891 or more",
        ),
        (
            "json_schema",
            '{"properties": {"ab": {"multipleOf": 9973}}, "patternProperties": {"^a": {"multipleOf": 9967}}}',
            "the least common multiple of all of them must be at most 10,000, not 99,400,891 or more",
        ),
    ],
)
def test_a_guide_that_can_not_be_followed_is_refused_in_one_line(kind: str, guide: str, says: str) -> None:
    with pytest.raises(GuideError, match=re.escape(says)) as refused:
        guides().check(grammar_of(kind, guide))
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) <= MOST_SHOWN


@pytest.mark.parametrize(
    "guide",
    [
        {"type": "string", "description": '"multipleOf": 5-6'},
        {"type": "object", "properties": {f"{n}": {"type": "number", "multipleOf": n} for n in (77, 365)}},
        {"allOf": [{"type": "integer", "multipleOf": 6}, {"type": "integer", "multipleOf": 100}]},
    ],
)
def test_multiples_that_are_none_of_one_number_or_few_are_served(guide: dict[str, Any]) -> None:
    guides().check(grammar_of("json_schema", json.dumps(guide)))


@pytest.mark.parametrize(
    ("read", "text"),
    [(as_lark, "\n" * MAX_GUIDE_BYTES), (_refuse_large_multiples, "\\" * MAX_GUIDE_BYTES)],
    ids=["line breaks", "backslashes"],
)
def test_a_guide_is_read_in_time_that_grows_with_its_length(read: Callable[[str], Any], text: str) -> None:
    """No other thread runs while a regular expression is matched; with the square it takes minutes."""
    began_s = time.thread_time()
    with contextlib.suppress(GuideError):
        read(text)
    assert time.thread_time() - began_s < 2


def test_many_multiples_of_one_number_are_refused() -> None:
    schema = {"allOf": [{"multipleOf": n} for n in range(1, 5_000)]}
    with pytest.raises(GuideError, match="multipleOf: "):
        guides().begin(grammar_of("json_schema", json.dumps(schema))).result()


def test_a_guide_that_takes_too_long_is_compiled_once_and_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is asked for: others find a thread."""
    known, ended, asked = guides(), threading.Event(), Counter[str]()
    compiled = Guides._newly_compiled

    def slow(self: Guides, grammar: str) -> Any:
        asked[grammar] += 1
        if "slow" in grammar:
            ended.wait()
        return compiled(self, grammar)

    monkeypatch.setattr(Guides, "_newly_compiled", slow)
    monkeypatch.setattr("python_backends.guides.guides.COMPILE_S", 0.1)
    grammar = grammar_of("regex", "slow")
    for _ in range(5):
        with pytest.raises(UncompiledError, match=r"could not be compiled within 0\.1 s"):
            known.check(grammar)
    known.begin(grammar_of("regex", "quick")).result()
    monkeypatch.setattr("python_backends.guides.guides.KEPT_S", -1.0)
    ended.set()
    with pytest.raises(GuideError, match="more than -1 s"):
        known.begin(grammar).result()
    assert grammar not in known._kept
    assert asked[grammar] <= 2


def test_what_was_refused_is_refused_again_without_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    known, compiled, asked = guides(), Guides._newly_compiled, Counter[str]()

    def counted(self: Guides, grammar: str) -> Any:
        asked[grammar] += 1
        return compiled(self, grammar)

    monkeypatch.setattr(Guides, "_newly_compiled", counted)
    grammars = [grammar_of("regex", f"{n}(") for n in range(MOST_KEPT + 1)]
    for grammar in [*grammars, grammars[-1], grammars[0]]:
        with pytest.raises(GuideError, match="unclosed group"):
            known.begin(grammar).result()
    assert (asked[grammars[0]], asked[grammars[-1]]) == (2, 1)
    assert len(known._refused) == MOST_KEPT


def test_formats_that_are_too_deep_are_refused() -> None:
    found: dict[str, Any] = {"type": "const_string", "value": "a"}
    for _ in range(40):
        found = {"type": "or", "elements": [found]}
    with pytest.raises(GuideError, match="at most 32 deep"):
        grammar_of("structural_tag", tag(**found))


CHAINS = {
    "rules": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(8000)) + '\nr8000: "a"',
    "terminals": "start: R0\n" + "\n".join(f'R{i}: R{i + 1} "a"' for i in range(1000)) + '\nR1000: "a"',
    "fault": "start: r0\n" + "\n".join(f"r{i}: r{i + 1}" for i in range(2000)) + "\nr2000: /(/",
}


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that does much other work may take longer than the door waits."""
    monkeypatch.setattr("python_backends.guides.guides.COMPILE_S", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("name", ["rules", "terminals"])
def test_a_long_chain_of_rules_is_served(name: str) -> None:
    guides().check(grammar_of("grammar", CHAINS[name]))


@pytest.mark.usefixtures("patient")
def test_a_long_chain_with_a_fault_at_its_end_is_refused() -> None:
    with pytest.raises(GuideError, match="unclosed group"):
        guides().check(grammar_of("grammar", CHAINS["fault"]))


def test_a_chain_of_references_is_served() -> None:
    definitions: dict[str, Any] = {
        f"d{i}": {"properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, "type": "object"} for i in range(1000)
    }
    definitions["d1000"] = {"type": "integer"}
    guide = json.dumps({"$ref": "#/$defs/d0", "$defs": definitions})
    assert len(guide) < MAX_GUIDE_BYTES
    assert takes("json_schema", guide, b'{"a": {"a": {}}}')


def test_an_expression_that_grows_without_end_fails_alone() -> None:
    checked = guides()
    grammar = grammar_of("regex", "a{1000}{1000}")
    try:
        found = checked.matcher(Followed(grammar, list(b"a"), (END,)))
    except GuideError:
        return
    for _ in range(2000):
        if not allowed(found):
            break
        found.take([ord("a")])
    assert not takes("regex", "(a+)+b", b"b")


def test_a_grammar_that_leaves_more_and_more_open_fails_alone() -> None:
    found = matcher("grammar", 'start: a\na: a a | "x"')
    num_taken = 0
    while found.take([ord("x")]):
        num_taken += 1
        assert num_taken < 1000
    assert num_taken > 100
    assert allowed(found) == []


def test_the_number_of_compiled_grammars_is_bounded() -> None:
    checked = guides()
    for i in range(3 * MOST_KEPT):
        checked.check(grammar_of("regex", f"a{{{i + 1}}}"))
    assert len(checked._kept) == MOST_KEPT


def test_what_was_compiled_is_compiled_once() -> None:
    checked, grammar = guides(), grammar_of("json", "")
    assert checked.begin(grammar).result() is checked.begin(grammar).result()


def test_threads_may_ask_at_once() -> None:
    checked = guides()
    grammars = [grammar_of("regex", f"a{{{i % 7 + 1}}}") for i in range(50)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda grammar: checked.matcher(Followed(grammar, [], (END,))), grammars))
    assert [drawn(each, 0)[0] for each in found] == [b"a" * (i % 7 + 1) for i in range(50)]


def test_a_matcher_goes_on_after_the_tokens_that_were_delivered() -> None:
    guide = json.dumps(PERSON)
    for seed in range(5):
        text, is_whole = drawn(matcher("json_schema", guide), seed)
        assert is_whole
        for place in range(0, len(text), 7):
            assert takes_rest(guide, text[:place], text[place:])


def takes_rest(guide: str, begun: bytes, rest: bytes) -> bool:
    found = matcher("json_schema", guide, begun)
    return found.take(list(rest)) and END in allowed(found)


def test_delivered_tokens_that_do_not_follow_the_guide_are_refused() -> None:
    with pytest.raises(GuideError, match="delivered"):
        matcher("regex", "a+", b"b")


def test_any_stop_id_may_come_where_the_answer_is_whole_and_nowhere_else() -> None:
    stop_ids = (END, STOP, ord("b"))
    found = matcher("regex", "ab?", b"", stop_ids)
    assert allowed(found) == [ord("a")]
    found.take([ord("a")])
    assert allowed(found) == sorted(stop_ids)
    plain = matcher("regex", "ab?", b"a", (END,))
    assert allowed(plain) == [ord("b"), END]


def test_a_stop_id_that_is_text_does_not_end_an_answer_that_is_not_whole() -> None:
    assert ord("b") not in allowed(matcher("regex", "a*bc", b"a", (END, ord("b"))))


def test_after_an_error_no_token_may_come() -> None:
    found = matcher("regex", "a+")
    assert not found.take([ord("b")])
    assert allowed(found) == []


def test_special_tokens_are_no_text() -> None:
    assert STOP not in allowed(matcher("regex", "(.|\n)*"))


def test_a_model_whose_answers_never_end_follows_no_guides() -> None:
    endless = Guides(lambda: Vocabulary(TOKENS, range(END, VOCABULARY), (), lambda text: list(text.encode())))
    with pytest.raises(GuideError, match="no token that ends"):
        endless.check(grammar_of("json", ""))


def test_every_type_is_described() -> None:
    assert set(TYPES) == {"json", "json_schema", "regex", "grammar", "ebnf_grammar", "structural_tag"}


def test_what_a_guide_leaves_no_choice_about_is_encoded_once() -> None:
    encoded: list[str] = []

    def encode(text: str) -> list[int]:
        encoded.append(text)
        return list(text.encode())

    vocabulary = Vocabulary(TOKENS, range(END, VOCABULARY), (END,), encode)
    followed = Followed(grammar_of("json_schema", json.dumps(PERSON)), list(b'{"'), (END,))
    several = Guides(lambda: vocabulary)
    masks = [allowed(several.matcher(followed)) for _ in range(3)]
    assert masks == [[ord("n")]] * 3
    assert any('name"' in text for text in encoded)
    assert len(encoded) == len(set(encoded))


def test_an_engine_without_guides_starts_with_an_llguidance_that_lacks_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As TensorRT-LLM's place has it, where PYTHONPATH names that."""

    def older(*, max_items_in_row: int) -> None: ...

    monkeypatch.setattr("llguidance.LLParserLimits", older)
    assert "Guides" in runpy.run_path(inspect.getfile(Guides))
