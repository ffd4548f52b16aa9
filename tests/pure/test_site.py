"""The navigation of the site of the docs: that of docs/index.md, with every page once. `make docs` builds the
site, and ends with an error at a link to no file.
"""

from __future__ import annotations

import os.path
from collections import Counter
from pathlib import Path

from build.site.conf import INDEX, NOTEBOOK, navigation, notes

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_of_the_docs_is_in_the_navigation_once() -> None:
    index, notebook = ((ROOT / f"{name}.md").read_text() for name in (INDEX, NOTEBOOK))
    linked = [link for _, links in navigation(index) for link in links] + notes(notebook)
    pages = Counter(os.path.normpath(f"docs/{link}.md") for link in linked)
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} - {f"{INDEX}.md"}
    assert there - pages.keys() == set()
    assert [page for page, count in pages.items() if count > 1] == []
    assert all((ROOT / page).is_file() for page in pages)


def test_headings_and_pages_come_in_the_order_of_the_index() -> None:
    page = (
        "# The docs\n\n**You want this**\n\n| | |\n|---|---|\n| a | [A](a.md#here), [B](../B.md) |\n"
        "| c | [c](c.toml) |\n"
        "\n**And that**\n\n| | |\n|---|---|\n| b | [B](../B.md#there), [how](how-to/do.md) |\n"
    )
    assert navigation(page) == [("You want this", ["a", "../B"]), ("And that", ["how-to/do"])]
    assert notes("| [why](notebook/x.md) | see [y](notebook/y.md), [x](notebook/x.md#a), [z](z.md) |") == [
        "notebook/x",
        "notebook/y",
    ]
