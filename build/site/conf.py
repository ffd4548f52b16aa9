"""The docs as a site. `make docs` calls Sphinx with this file as its configuration. Each page is that of the
repository, where it lies, and so are the links between pages and to code. A link to no file is an error.

The navigation is that of docs/index.md: a heading for each of its tables, and the pages in their order.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

INDEX, NOTEBOOK = "docs/index", "docs/log"

project = "Gapless"
extensions = ["myst_parser"]
root_doc = INDEX
include_patterns = ["*.md", "docs/**.md", "benchmarks/*.md", "examples/*.md", "models/bundled/*.md"]
exclude_patterns = [".*", "run"]
suppress_warnings = ["toc.not_included"]  # a test compares what is linked with what is there
nitpick_ignore_regex = [("myst", r"[\w/]*|(\.\./)+[\w/]+")]  # folders: a site has no page for one
myst_heading_anchors = 4
html_theme = "furo"
html_title = project
html_copy_source = html_use_index = False


def navigation(page: str) -> list[tuple[str, list[str]]]:
    """The headings of docs/index.md, each with its pages, as links from there; no page comes twice."""
    seen: set[str] = set()
    found: list[tuple[str, list[str]]] = []
    for heading, table in re.findall(r"^\*\*(.+?)\*\*\n(.*?)(?=^\*\*|\Z)", page, re.MULTILINE | re.DOTALL):
        links = dict.fromkeys(re.findall(r"\]\(([\w./-]+)\.md", table))
        found.append((heading, [link for link in links if link not in seen]))
        seen.update(links)
    return found


def notes(page: str) -> list[str]:
    """The pages of the notebook, as links from docs/log.md."""
    return list(dict.fromkeys(re.findall(r"\]\((notebook/\w+)\.md", page)))


def _tree(pages: list[str], caption: str = "") -> str:
    options = f":caption: {caption}\n" if caption else ""
    return "\n".join(["", "```{toctree}", f":hidden:\n:titlesonly:\n{options}", *pages, "```", ""])


def _add_navigation(_app: Sphinx, page: str, text: list[str]) -> None:
    if page == INDEX:
        text[0] += "".join(_tree(pages, heading) for heading, pages in navigation(text[0]))
    elif page == NOTEBOOK:
        text[0] += _tree(notes(text[0]))


def _add_entry(app: Sphinx, error: Exception | None) -> None:
    if error is None:
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><meta http-equiv="refresh" content="0; url={INDEX}.html">\n'
        )


def setup(app: Sphinx) -> None:
    app.connect("source-read", _add_navigation)
    app.connect("build-finished", _add_entry)
