"""Guides that mean harm are refused or followed, and leave nothing behind; what they cost is measured by
benchmarks/hostile_guides.py.
"""

from __future__ import annotations

import json

import pytest

from benchmarks.hostile_guides import HOSTILE
from python_backends.guides.errors import MOST_SHOWN, GuideError
from python_backends.guides.grammars import grammar_of
from python_backends.guides.guides import MOST_KEPT, Guides
from python_backends.guides.prepared import MOST_PREPARED, Followed
from tests.support.guided import END, allowed, guides

NUM_TOKENS = 60


@pytest.fixture(scope="module")
def known() -> Guides:
    return guides()


def refused(known: Guides, kind: str, guide: str) -> str:
    """What is wrong with a guide; empty: nothing."""
    try:
        known.begin(grammar_of(kind, guide)).result()
    except GuideError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_guide_that_means_harm_is_refused_or_followed_through_a_restart(known: Guides, name: str) -> None:
    kind, guide = HOSTILE[name]
    if refusal := refused(known, kind, guide):
        assert "\n" not in refusal
        assert len(refusal) <= MOST_SHOWN
        return
    grammar = grammar_of(kind, guide)
    matcher = known.matcher(Followed(grammar, [], (END,)))
    tokens: list[int] = []
    may = allowed(matcher)
    while len(tokens) < NUM_TOKENS and set(may) > {END}:
        tokens.append(may[len(tokens) ** 2 % (len(may) - (END in may))])  # END is the last
        matcher.take(tokens[-1:])
        may = allowed(matcher)
    if may:
        assert allowed(known.matcher(Followed(grammar, tokens, (END,)))) == may


def test_thousands_of_schemas_leave_few_behind(known: Guides) -> None:
    for number in range(3000):
        schema = {"type": "object", "properties": {f"key{number}": {"type": "integer"}}}
        known.check(grammar_of("json_schema", json.dumps(schema)))
    assert len(known._kept) == MOST_KEPT


def test_thousands_of_answers_that_go_on_leave_few_matchers_behind(known: Guides) -> None:
    grammar = grammar_of("regex", "a*")
    for number in range(3 * MOST_PREPARED):
        known.prepare(Followed(grammar, [ord("a")] * (number + 1), (END,))).result()
    assert len(known._prepared) == MOST_PREPARED
    latest = Followed(grammar, [ord("a")] * (number + 1), (END,))
    assert known.is_prepared(latest)
    assert not known.is_prepared(latest._replace(tokens=[ord("a")]))


def test_an_answer_that_has_gone_on_meanwhile_takes_the_matcher_that_was_prepared(known: Guides) -> None:
    begun = Followed(grammar_of("regex", "ab?c*d"), [ord("a")], (END,))
    known.prepare(begun).result()
    num_prepared = len(known._prepared)
    found = known.matcher(begun._replace(tokens=[ord("a"), ord("b"), ord("c")]))
    assert allowed(found) == [ord("c"), ord("d")]
    assert len(known._prepared) == num_prepared - 1
