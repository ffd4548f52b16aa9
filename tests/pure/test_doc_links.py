"""Links of all pages lead to files and headings that are there, and files, settings and commands that pages
name exist.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

from python_backends.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
SERVING = ("python_backends", "front", "client", "commands")
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


def test_the_links_of_all_pages_lead_somewhere() -> None:
    assert {str(page): links for page in PAGES if (links := broken(page))} == {}


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


# --- what pages name in code


SECTIONS = {section.name: type(getattr(Settings(), section.name)) for section in dataclasses.fields(Settings)}
EXAMPLES = {
    "engine/echo/engine.py",
    "scheduling/policies/first_fit.py",
    "tests/pure/test_echo.py",
}  # of how-tos
NAMES = [str(path.relative_to(ROOT)) for path in tracked("*")]
TODAYS = [page for page in PAGES if "notebook" not in page.parts and page.name != "CHANGELOG.md"]


def test_files_settings_and_commands_that_pages_name_exist() -> None:
    """The notebook and the changelog name old ones as well."""
    assert {str(page): names for page in TODAYS if (names := unknown(page.read_text()))} == {}


def is_file(name: str) -> bool:
    """From the root, or the end of a path."""
    return any(path == name or path.endswith(f"/{name}") for path in NAMES)


def unknown(text: str) -> list[str]:
    """Files with a folder, settings and targets of `make` that are not there."""
    files = re.findall(r"`([\w.-]+/[\w./-]+\.(?:py|md|toml|json|yml|pbtxt|cpp))", text)
    files += re.findall(r"(?<![\w/`])((?:tests|benchmarks|build|client)/[\w/]+\.py)", text)  # in commands
    missing = [name for name in files if name not in EXAMPLES and not is_file(name)]
    settings = re.findall(
        rf"\b({'|'.join(SECTIONS)})\.(?!py\b|png\b|json\b|toml\b)([a-z_]+)(?:`| = |=)", text
    )
    known = {name: {field.name for field in dataclasses.fields(kind)} for name, kind in SECTIONS.items()}
    missing += [f"{section}.{name}" for section, name in settings if name not in known[section]]
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = re.findall(r"(?:`|^)make (?:-C \S+ )?([a-z-]+)", text, re.MULTILINE)
    return missing + [f"make {name}" for name in named if name not in targets]


def test_commands_of_pages_name_the_environment_of_the_project() -> None:
    """Those of TensorRT-LLM are for NVIDIA's image, which has its own."""
    pages = [page for page in TODAYS if page.parent in (ROOT, ROOT / "docs", ROOT / "docs/how-to")]
    bare = re.compile(r"(?<![\w./])python -m .*|(?<!-m )\bpytest tests.*")
    found = {str(page): names for page in pages if (names := bare.findall(page.read_text()))}
    assert found.keys() == {str(ROOT / "docs/tensorrt_llm.md")}, found


def test_what_is_not_there_is_found() -> None:
    text = "`streams.max_open` `streams.most_open` `engine/kinds.py` `engine/sorts.py`\nmake test\nmake best"
    assert unknown(text) == ["engine/sorts.py", "streams.most_open", "make best"]


def test_the_rooms_that_use_a_dependency_are_there() -> None:
    rooms = re.findall(r"`(\w+/[\w/]*)`", (ROOT / "docs/dependencies.md").read_text())
    places = [ROOT, ROOT / "python_backends"]
    there = [
        room
        for room in rooms
        for place in places
        if (place / room).exists() or (place / f"{room}.py").exists()
    ]
    assert set(rooms) - set(there) == set()
    assert rooms


DISTRIBUTIONS = {  # where they have another name than their modules
    "google": "protobuf",
    "grpc": "grpcio",
    "opentelemetry": "opentelemetry-sdk",
    "python_multipart": "python-multipart",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "scikit-learn",
    "triton_python_backend_utils": "nvidia-pytriton",
    "zmq": "pyzmq",
}
OF_AN_IMAGE = {"tensorrt_llm"}  # no lock has it: docs/tensorrt_llm.md


def imported(path: Path) -> set[str]:
    """Libraries that a file imports, by the names of their modules."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    ours = {*SERVING, "benchmarks", "build"}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - ours - OF_AN_IMAGE


def is_at(place: str, path: Path) -> bool:
    return fnmatch(f"/{path.relative_to(ROOT)}", f"*/{place.removesuffix('.py').rstrip('/')}[./]*")


def test_each_library_has_a_row_that_names_the_rooms_that_import_it() -> None:
    rows = [line.split("|")[1:-1] for line in (ROOT / "docs/dependencies.md").read_text().splitlines()]
    rows = [row for row in rows if len(row) == 3]
    missing = []
    for path in tracked(*(f"{room}/*.py" for room in SERVING)):
        for library in imported(path):
            name = re.compile(rf"(?<![\w-]){DISTRIBUTIONS.get(library, library)}\b")
            places = [where for what, _, where in rows if name.search(what)]
            if not any("everywhere" in where for where in places) and not any(
                is_at(place, path) for where in places for place in re.findall(r"`([^`]+)`", where)
            ):
                missing.append(f"{library}: {path.relative_to(ROOT)}")
    assert missing == []


def test_the_index_of_the_notebook_says_what_its_pages_say() -> None:
    index = (ROOT / "docs/log.md").read_text()
    for page in tracked("docs/notebook/*.md"):
        found = re.search(r"^\*\*Verdict\*\*: (.*)$", page.read_text(), re.MULTILINE)
        assert found is not None, page
        verdict = re.sub(r"\]\((?!\.\./|http)", "](notebook/", found[1]).replace("](../", "](")
        assert f"(notebook/{page.name}) | {verdict} |" in index, page
