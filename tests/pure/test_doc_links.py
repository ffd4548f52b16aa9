"""Relative links of all pages lead to files that are there, and their anchors to headings."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^()\s]+)\)")
NAMED = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg|png)")


def tracked(*patterns: str) -> list[Path]:
    """Files of the repository, those among them that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    return sorted(ROOT / name for name in names if name and (ROOT / name).exists())


PAGES = tracked("*.md")


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them: lower case, no punctuation, a hyphen for each space."""
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in plain}


def links(text: str) -> list[str]:
    """Those to this repository. What stands in code is none."""
    found = LINK.findall(CODE.sub("", text))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def broken(page: Path) -> list[str]:
    wrong = []
    for link in links(page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text())):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_pages_that_code_names_are_there() -> None:
    """In comments, messages and settings: `docs/limits.md`."""
    for path in tracked("*.py", "*.toml", "*.yml", "*.pbtxt", "Makefile", "build/*", "requirements*"):
        if path.suffix != ".svg":
            missing = [
                name for name in NAMED.findall(path.read_text(errors="ignore")) if not (ROOT / name).exists()
            ]
            assert missing == [], path


def test_every_page_of_the_docs_is_linked_from_another_page() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in links(page.read_text())
        if link.partition("#")[0]
    }
    assert {page.resolve() for page in PAGES if page.is_relative_to(ROOT / "docs")} <= linked


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    (tmp_path / "b.md").write_text("# One `two`: three\n```\n# no heading\n```\n")
    page.write_text(
        "[good](b.md#one-two-three) [bad](c.md) [no heading](b.md#no-heading) `[code](d.md)`\n"
        "# Here\n[h](#here) [t](#there) [x](https://x.y)\n"
    )
    assert broken(page) == ["c.md", "b.md#no-heading", "#there"]
