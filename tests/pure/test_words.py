"""Words that used to have several meanings have one: docs/glossary.md says which."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_backends"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS_OF_NAMES: dict[str, set[str]] = {  # where names may have this word in them
    "room": set(),
    "rest": {"scheduling"},
    "epoch": {"nouns", "scheduling", "streams", "instance", "handover", "cluster"},
    # text: a checkpoint's generation_config.json, a template's tag
    "generation": {"engine", "nouns", "scheduling", "text"},
    "door": {"finetuning", "text", "triton_models"},
    "flush": {"nouns", "streams", "instance"},
    "span": {"engine", "nouns", "scheduling", "triton_models", "watching"},
}
PHRASES = {  # in comments and docstrings
    r"\brooms? for\b|\b(has|have|is|no|more|make|makes|made|left|without) room\b": (
        "free slots, blocks or bytes"
    ),
    r"\bsteady (run|step)s?\b": "a run",
    r"(?i)\b(nobody|somebody|everybody|whoever)\b": "no request, another process, all rows …",
    r"\banew\b": "again",
    r"\b(life|lives) of (a|the|its|that) slots?\b": "slot_generation",
}


def names_of(tree: ast.AST) -> set[str]:
    """Names of functions, classes, parameters, variables and attributes that a module defines."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return found


def words_of(name: str) -> set[str]:
    """In the singular: `num_spans` and `AttentionSpans` have the word "span"."""
    words = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
    return {*words, *(word.removesuffix("s") for word in words)}


def prose_of(path: Path) -> list[str]:
    """Its comments and docstrings."""
    with path.open("rb") as file:
        comments = [
            token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT
        ]
    nodes = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
    ]
    return comments + [" ".join(text.split()) for node in nodes if (text := ast.get_docstring(node))]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_word_is_in_the_names_of_its_rooms_alone(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for name in names_of(ast.parse(path.read_text())):
        for word in words_of(name) & ROOMS_OF_NAMES.keys():
            assert room in ROOMS_OF_NAMES[word], name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_an_epoch_is_a_requests_and_a_generation_a_slots(path: Path) -> None:
    for name in names_of(ast.parse(path.read_text())):
        if "epoch" in words_of(name):
            assert "request" in name, name
        if "generation" in words_of(name) and path.parts[-2] != "text" and "text" not in path.parts:
            assert name in ("generation", "generations") or "slot" in name, name


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_comments_and_docstrings_use_the_words_of_the_glossary(path: Path) -> None:
    for text in prose_of(path):
        for phrase, better in PHRASES.items():
            assert not re.search(phrase, text), f"{text!r}: {better}"


def test_the_glossary_has_these_words() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    for word in (*ROOMS_OF_NAMES, "run", "table", "share"):
        assert re.search(rf"\b{word}\b", text), word
