"""Each module has a test file of its name, or its docstring says where it is tested; and tests lie apart from
what they need.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
FOLDERS = ("python_backends", "client", "build")
UNTESTED = ("__init__", "__main__")
MODULES = sorted(
    path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if path.stem not in UNTESTED
)
TESTED_IN = re.compile(r"\bTested\s+in\s+((?:tests/\w+(?:/\w+)*\.py(?:,\s+|\s+and\s+)?)+)\.(?:\s|$)")


def name_of(path: Path) -> str:
    """The name by which a module is imported: the modules in `build` have none before theirs."""
    words = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(words[words[0] == "build" :])


@cache
def imports(path: Path) -> frozenset[str]:
    """Modules, and names in modules, that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def files_of_its_name(path: Path) -> list[Path]:
    """Those that import it, or start it by its path: another module may have the same name."""
    files = [file for ending in ("", "s", "es") for file in TESTS.rglob(f"test_{path.stem}{ending}.py")]
    started = f'"{path.relative_to(ROOT)}"'
    return [file for file in files if name_of(path) in imports(file) or started in file.read_text()]


def files_that_are_named(docstring: str) -> list[str]:
    """The files that a docstring says with `Tested in`."""
    found = TESTED_IN.search(docstring)
    return re.findall(r"tests/[\w/]+\.py", found[1]) if found else []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_each_module_has_a_test_of_its_name_or_says_where_it_is_tested(path: Path) -> None:
    named = files_that_are_named(ast.get_docstring(ast.parse(path.read_text())) or "")
    assert named or files_of_its_name(path), 'write "Tested in tests/….py." at the end of its docstring'
    for name in named:
        assert (ROOT / name).is_file(), name
        assert Path(name).name.startswith("test_"), name


def test_what_a_docstring_says_is_found() -> None:
    one, two, three = "tests/pure/test_a.py", "tests/cpu/test_b.py", "tests/cpu/test_c.py"
    assert files_that_are_named(f"What it is. Tested in {one}.") == [one]
    assert files_that_are_named(f"Tested\nin {one},\n{two} and {three}.") == [one, two, three]
    assert files_that_are_named(f"{one} compares it with the docs.") == []


def test_a_test_of_another_module_of_the_same_name_does_not_count() -> None:
    """`text/table.py` and `streams/table.py`, and one test_table.py."""
    package = ROOT / "python_backends"
    assert files_of_its_name(package / "text/door/table.py") == [TESTS / "pure/text/test_table.py"]
    assert files_of_its_name(package / "streams/table.py") == []


def test_what_tests_need_is_in_the_folder_support() -> None:
    apart = (TESTS / "support", TESTS / "standin")
    for path in TESTS.rglob("*.py"):
        if not any(path.is_relative_to(folder) for folder in apart):
            assert path.stem.startswith("test_") or path.stem in ("conftest", "__init__"), path
    for path in (TESTS / "support").rglob("*.py"):
        assert not path.stem.startswith("test_"), path
        tests = [name for name in imports(path) if name.startswith("tests.")]
        assert all(name.startswith("tests.support") for name in tests), path
