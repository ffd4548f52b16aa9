"""Patterns match as `re` does in PEFT, and none takes long."""

from __future__ import annotations

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backends.engine.torch.adapters.path_patterns import PatternError, compiled

PATHS = [
    f"model.layers.{layer}.{module}"
    for layer in (0, 1, 10, 21)
    for module in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj")
]
PATTERNS = [
    *("q_proj", "self_attn.q_proj", "proj", "model.layers.0.self_attn.q_proj", r"layers\.1\.mlp\.down_proj"),
    *("^model.layers.1.mlp.down_proj", "^mlp.down_proj", "q_proj$", "", ".*", ".+", "^.*$", "model.*"),
    *("(q|k)_proj", "[qk]_proj", "[^qk]_proj", "(?:q|k)_proj", r"(layers\.(0|1)\..*)", "[a-z]_proj"),
    *(r"layers\.\d+\.mlp\.\w+", r".*\.1\..*", "(q_proj|)", "(self_attn.)?q_proj", "(q|down)_.*?oj"),
    *(
        r"layers\.(1[0-9]|2[01])\..*",
        "q_pro.?j",
        "(q_pro.)*j",
        r"[\w.-]*j",
        r"self\_attn\.q\_proj",
        "a|b|q_proj",
    ),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_matches_the_paths_that_it_matches_in_peft(pattern: str) -> None:
    for path in PATHS:
        assert bool(compiled(pattern)(path)) == bool(re.match(rf"(.*\.)?({pattern})$", path)), path


@given(st.text("ab.()|*+?^$[]\\d-", max_size=10), st.text("ab.1", max_size=8))
def test_what_is_taken_matches_as_in_re(pattern: str, path: str) -> None:
    try:
        matches = compiled(pattern)
    except PatternError:
        return
    assert bool(matches(path)) == bool(re.match(rf"(.*\.)?({pattern})$", path))


@pytest.mark.parametrize(
    "pattern",
    [
        *("(([a-z0-9._]+)+)+!", "(a+)+b", "(a|a)*b" * 50, ".*" * 400 + "!", "(.|.)" * 150 + "!", "(x*)*y"),
        *("(" * 5000, "(" * 400 + ")" * 400, "a{1000}{1000}", "(a?){9999}", "[a-z" * 100, "a" * 100_000),
        *("(.*)(.*)(.*)(.*)(.*)(.*)(.*)(.*)!", "(?=a)", r"(a)\1", "(?i)q_proj", "(", ")", "*a", "a**", "a++"),
        *("(?P<n>a)", r"\bq", r"\Aq", "[z-a]", "\\", "(?>a)", "[[a]&&[b]]+!", "é", "q\n", "(?#x)q"),
    ],
)
def test_no_pattern_takes_long(pattern: str) -> None:
    """Each is refused, or matched for a long path at once."""
    with contextlib.suppress(PatternError):
        compiled(pattern)(".".join(["aaaaaaaaaaaaaaaaaaaaaaaaaaaa"] * 8))


def test_what_is_refused_says_why() -> None:
    for pattern, reason in (
        ("(a+)+", "a repetition inside of a repetition"),
        ("(?=a)b", "'?=a)b' is not supported"),
        ("(a", "a parenthesis is not closed"),
        ("a)", "a parenthesis is closed that was not opened"),
        ("a{3}", "'{3}' is not supported"),
        ("[z-a]", "bad character range z-a"),
        ("x" * 1001, "more than 1000 characters"),
    ):
        with pytest.raises(PatternError, match=re.escape(reason)):
            compiled(pattern)
