"""The library of the layers: compiled, sealed and loaded, or left out with a reason."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from python_backends.engine.cpu import library
from python_backends.engine.cpu.library import Kind
from tests.support.tiny_models import Serving, TinyModel, random_requests


@pytest.fixture
def nothing_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Where a processor that has what is needed would find it."""
    monkeypatch.setattr(library, "WRITTEN", tmp_path)
    monkeypatch.setattr(library, "processor_flags", lambda: library.NEEDED[Kind.AVX512_BF16])
    library.library.cache_clear()
    yield tmp_path / "run" / "compiled"
    library.library.cache_clear()


@pytest.mark.usefixtures("nothing_compiled")
def test_without_a_compiler_it_says_so_and_torchs_operators_serve(
    one: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with caplog.at_level(logging.INFO, "gapless.instance"):
        engine = one.engine(block_tokens=32)
        answers = Serving(engine).run(random_requests(2))
    assert "no layers of ours: there is no C++ compiler: apt-get install g++ brings one" in caplog.text
    assert engine._layer_steps is None
    assert len(answers) == 2


def test_what_does_not_compile_is_shown_and_left_out(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    source = tmp_path / "layers.cpp"
    source.write_text("this is no C++")
    monkeypatch.setattr(library, "SOURCE", source)
    assert library.library() is None
    assert "this is no C++" in caplog.text
    assert list(nothing_compiled.iterdir()) == []


def test_an_older_compiler_makes_what_it_can_and_the_log_says_what_computes(
    nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that does not know tiles fails for these; the processor has vectors, too."""
    compiler = tmp_path / "g++-10"
    wants_output = (
        'while [ "$1" != -o ]; do case "$1" in -mamx*) echo "unrecognized option $1" >&2; exit 1 ;; esac;'
        " shift; done"
    )
    compiler.write_text(f'#!/bin/sh\n{wants_output}\necho made >"$2"\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(library, "_obstacle", lambda path: "")
    monkeypatch.setattr(library, "kinds_here", lambda: list(Kind))
    with caplog.at_level(logging.INFO, "gapless.instance"):
        made = library.library()
    assert made is not None
    assert made.name.startswith("layers-avx512_bf16-")
    assert "no layers of ours of amx: " in caplog.text
    assert "layers in C++ compute, by avx512_bf16" in caplog.text
    assert [path.name for path in nothing_compiled.iterdir()] == [made.name]


@pytest.fixture
def made(nothing_compiled: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A library in its place, made under a umask that lets everybody write."""
    compiler = tmp_path / "compiler"
    compiler.write_text(
        '#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\nexec g++ -shared -x c++ /dev/null -o "$2"\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    umask = os.umask(0)
    try:
        yield library.compiled(Kind.AVX512_BF16)
    finally:
        os.umask(umask)


def test_nobody_else_may_write_what_is_made_whatever_the_umask(made: Path) -> None:
    assert [oct(path.stat().st_mode & 0o777) for path in (made.parent, made)] == ["0o755", "0o755"]
    made.parent.chmod(0o777)  # as an earlier version left it
    assert library.compiled(Kind.AVX512_BF16) == made
    assert oct(made.parent.stat().st_mode & 0o777) == "0o755"


@pytest.mark.parametrize("damage", ["empty", "cut", "text", "zeros"])
def test_a_library_that_cannot_be_loaded_is_compiled_again(made: Path, damage: str) -> None:
    whole = made.read_bytes()
    damaged = {"empty": b"", "cut": whole[: len(whole) // 2], "text": b"made", "zeros": bytes(len(whole))}
    made.unlink()  # this process has it loaded, and would die at its end if that file changed
    made.write_bytes(damaged[damage])
    made.chmod(0o755)
    assert library.library() == made
    ctypes.CDLL(str(made))


def test_a_library_that_this_host_cannot_load_is_compiled_again_and_left_out_if_that_does_not_help(
    made: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As one that needs a newer library of C++ than there is."""

    def refuse(path: str) -> None:
        raise OSError("GLIBCXX_3.4.99 not found")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    monkeypatch.setattr(library, "kinds_here", lambda: [Kind.AVX512_BF16])
    assert made.exists()
    assert library.library() is None
    assert "is compiled again: GLIBCXX_3.4.99 not found" in caplog.text
    assert "no layers of ours: " in caplog.text


def test_what_a_wheel_brings_is_used_and_where_it_can_not_be_loaded_it_is_compiled(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    brought = tmp_path / "brought" / made.name
    brought.parent.mkdir()
    made.rename(brought)
    monkeypatch.setattr(library, "BROUGHT", brought.parent)
    assert library.is_kept()
    assert library.library() == brought
    assert not made.exists()
    content = brought.read_bytes()
    brought.unlink()  # this process has it loaded
    brought.write_bytes(content[: len(content) // 2])
    library.library.cache_clear()
    assert library.library() == made


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
def test_a_library_that_others_may_write_is_not_run(
    made: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    made.chmod(mode)
    assert library.library() is None
    assert "other users may write it" in caplog.text


def test_without_a_compiler_one_serves_that_lies_there_for_fewer_instructions(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a host with another processor."""
    other = library.compiled(Kind.AVX512)
    made.unlink()
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert library.library() == other


def test_a_library_of_somebody_else_is_not_run(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "trusted_owners", lambda: {4711})
    assert made.exists()
    assert library.library() is None


@pytest.mark.usefixtures("nothing_compiled")
def test_another_processor_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library, "processor_flags", lambda: {"avx"})
    with caplog.at_level(logging.INFO, "gapless.instance"):
        assert library.library() is None
    assert "the processor has no avx2, f16c, fma" in caplog.text
