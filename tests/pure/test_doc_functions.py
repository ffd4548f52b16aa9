"""Functions, metrics and trace spans that pages name are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from python_backends.nouns.load import LATE_CAUSES
from python_backends.nouns.request import WaitReason
from python_backends.watching.metrics import ALL_LATE_CAUSES, COUNTERS, GAUGES, HISTOGRAMS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/token_way.md").read_text()
PLACE = re.compile(r"`([\w/]+\.py)` `([\w.]+)`")
OF_FILE = re.compile(r"`([\w.]+)`\s+of `([\w/]+\.py)`")  # in sentences


def defined(path: Path) -> set[str]:
    """Functions and `Class.method`s of a file."""
    nodes = ast.parse(path.read_text()).body
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
    return functions | {
        f"{each.name}.{node.name}"
        for each in classes
        for node in each.body
        if isinstance(node, ast.FunctionDef)
    }


def missing(text: str) -> list[str]:
    """Places and metrics that `text` names and that are not there."""
    wrong = []
    for file, name in PLACE.findall(text):
        path = ROOT / "python_backends" / file
        if not path.exists() or name not in defined(path):
            wrong.append(f"{file} {name}")
    metrics = set(re.findall(r"\bgapless_\w+", text))
    return wrong + sorted(metrics - COUNTERS.keys() - GAUGES.keys() - HISTOGRAMS.keys())


def test_functions_and_metrics_that_the_page_names_exist() -> None:
    assert len(PLACE.findall(PAGE)) > 20
    assert missing(PAGE) == []


def test_what_is_not_there_is_found() -> None:
    text = "`instance/loop.py` `Instance.turn` `instance/loop.py` `Instance.jump` `gapless_slots_busy`"
    assert missing(f"{text} `gapless_slots_idle`") == ["instance/loop.py Instance.jump", "gapless_slots_idle"]


def test_functions_that_the_how_to_for_messages_names_exist() -> None:
    page = (ROOT / "docs/how-to/message.md").read_text()
    named = OF_FILE.findall(page)
    assert len(named) > 8
    assert missing("\n".join(f"`{file}` `{name}`" for name, file in named)) == []


def test_each_place_and_each_cause_names_code_and_says_how_it_is_seen() -> None:
    rows = [line.split("|")[1:-1] for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if "where" not in [cell.strip() for cell in row]]
    assert len(rows) == 9 + 11
    for row in rows:
        assert all(cell.strip() for cell in row), row
        assert PLACE.search("|".join(row)) or "Triton's own code" in row[2], row


def test_the_causes_of_the_counter_are_rows_of_the_page() -> None:
    labels = re.findall(r"^\| (?:`(\w+)`|none) \|.+\|.+\|.+\|.+\|$", PAGE, re.MULTILINE)
    assert [label for label in labels if label] == list(ALL_LATE_CAUSES)
    formula = PAGE[PAGE.index("```") : PAGE.rindex("```")]
    assert all(cause in formula for cause in LATE_CAUSES if cause != "evicted")


def test_the_reasons_of_waiting_are_rows_of_its_page_and_in_the_help_of_its_metric() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/waiting.md").read_text(), re.MULTILINE)
    assert rows == list(WaitReason)
    assert ", ".join(WaitReason) in GAUGES["gapless_waiting"]


def test_trace_spans_that_the_page_names_are_made() -> None:
    sources = [path.read_text() for path in (ROOT / "python_backends/triton_models").glob("*.py")]
    for name in ("prefill", "decode", "detokenize"):
        assert f"`{name}`" in PAGE
        assert any(f'_spans.add("{name}"' in source for source in sources), name
