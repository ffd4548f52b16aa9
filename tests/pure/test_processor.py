"""What Linux says of the processor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.linux import processor
from python_backends.linux.processor import processor_flags

TWO = """\
processor\t: 0
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC 9V45 96-Core Processor
flags\t\t: fpu avx2 avx512f

processor\t: 1
model name\t: another
flags\t\t: fpu
"""


@pytest.fixture(autouse=True)
def asked_again() -> Iterator[None]:
    """Answers are kept."""
    processor_flags.cache_clear()
    yield
    processor_flags.cache_clear()


def say(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")


def test_the_first_processor_speaks_for_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say(TWO, tmp_path, monkeypatch)
    assert processor_flags() == {"fpu", "avx2", "avx512f"}


def test_a_kind_of_processor_that_lists_no_flags_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say("processor\t: 0\nFeatures\t: fp asimd\n", tmp_path, monkeypatch)
    assert processor_flags() == frozenset()
