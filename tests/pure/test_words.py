"""Words that used to have several meanings have one: docs/glossary.md says which."""

from __future__ import annotations

import ast
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python_backends"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOMS_OF_NAMES: dict[str, set[str]] = {  # where names may have this word in them
    "room": set(),
    "checkpoint": {"checkpoint", "engine", "instance", "text", "triton_models"},
    "rest": {"scheduling"},
    "epoch": {"nouns", "scheduling", "streams", "instance", "moving", "cluster"},
    # text: a checkpoint's generation_config.json, a template's tag
    "generation": {"checkpoint", "engine", "nouns", "scheduling", "text"},
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


def names_in_package() -> list[tuple[Path, str]]:
    """Each name that the package defines, with its module's path in the package."""
    return [
        (path.relative_to(PACKAGE), name)
        for path in MODULES
        for name in names_of(ast.parse(path.read_text()))
    ]


def is_elsewhere(path: Path, name: str) -> bool:
    """Whether a word of this name belongs to other rooms."""
    room = path.parts[0].removesuffix(".py")
    return any(room not in ROOMS_OF_NAMES[word] for word in words_of(name) & ROOMS_OF_NAMES.keys())


def is_of_nothing(path: Path, name: str) -> bool:
    """Whether it does not say that its epoch is a request's, or its generation a slot's."""
    words = words_of(name)
    if "epoch" in words and "request" not in name:
        return True
    is_slots = "slot" in name or name in ("generation", "generations") or "text" in path.parts
    return "generation" in words and not is_slots


def phrases_in(text: str) -> list[str]:
    """What comments and docstrings must not say, with what they could say instead."""
    return [f"{text!r}: {better}" for phrase, better in PHRASES.items() if re.search(phrase, text)]


def test_a_word_is_in_the_names_of_its_rooms_alone() -> None:
    assert [(str(path), name) for path, name in names_in_package() if is_elsewhere(path, name)] == []


def test_an_epoch_is_a_requests_and_a_generation_a_slots() -> None:
    assert [(str(path), name) for path, name in names_in_package() if is_of_nothing(path, name)] == []


def test_comments_and_docstrings_use_the_words_of_the_glossary() -> None:
    assert [found for path in MODULES for text in prose_of(path) for found in phrases_in(text)] == []


def test_a_wrong_word_is_found() -> None:
    assert is_elsewhere(Path("wires/sessions.py"), "num_spans")
    assert not is_elsewhere(Path("engine/spans.py"), "num_spans")
    assert is_of_nothing(Path("streams/table.py"), "last_epoch")
    assert is_of_nothing(Path("streams/table.py"), "its_generation")
    assert not is_of_nothing(Path("streams/table.py"), "request_epoch")
    assert phrases_in("a slot that has room") == ["'a slot that has room': free slots, blocks or bytes"]


def test_the_glossary_has_these_words() -> None:
    text = (ROOT / "docs/glossary.md").read_text()
    for word in (*ROOMS_OF_NAMES, "run", "table", "share"):
        assert re.search(rf"\b{word}\b", text), word
