"""A checkpoint's tensors by name, wherever they lie, and what is said of files that can't be read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from python_backends.checkpoint.digests import fingerprint
from python_backends.checkpoint.opening import open_source
from python_backends.checkpoint.source import CheckpointError

A, B = np.arange(6, dtype=np.float32).reshape(2, 3), np.full(4, 7, np.float16)
INDEX = "model.safetensors.index.json"


def sharded(directory: Path) -> Path:
    save_file({"a": A}, directory / "one.safetensors")
    save_file({"b": B, "a": A + 1}, directory / "two.safetensors")
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (directory / INDEX).write_text(json.dumps(index))
    return directory


def test_tensors_are_known_by_name_shape_type_and_place(tmp_path: Path) -> None:
    save_file({"a": A, "b": B}, tmp_path / "model.safetensors", {"format": "pt"})
    tensors = open_source(tmp_path).tensors
    assert {name: (each.shape, each.dtype) for name, each in tensors.items()} == {
        "a": ((2, 3), "F32"),
        "b": ((4,), "F16"),
    }
    for name, values in (("a", A), ("b", B)):
        begin = tensors[name].begin or 0
        content = tensors[name].file.read_bytes()[begin : begin + tensors[name].num_bytes]
        assert content == values.tobytes()


def test_a_header_is_read_once_and_numbers_may_lie_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mixture of GPTQ has 15,000 tensors in a file: to read its header for each took half an hour."""
    path, header = (
        tmp_path / "model.safetensors",
        {"a": ("F32", [2, 3], [1, 25]), "b": ("F16", [4], [25, 33])},
    )
    fields = {
        name: dict(zip(("dtype", "shape", "data_offsets"), each, strict=True))
        for name, each in header.items()
    }
    fields["c"] = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
    text = json.dumps(fields).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\x05" + A.tobytes() + B.tobytes())
    source = open_source(tmp_path)
    assert set(source.tensors) == {"a", "b", "c"}
    monkeypatch.delattr("python_backends.checkpoint.weight_files.safe_open")
    for name, values in (("a", A), ("b", B), ("c", np.full(1, 5, np.uint8))):
        assert np.array_equal(source.read(name).numpy(), values)


def test_a_pickled_file_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    torch.save({"a": torch.from_numpy(A), "b": torch.from_numpy(B)}, tmp_path / "pytorch_model.bin")
    opened, load = [], torch.load
    monkeypatch.setattr(torch, "load", lambda *given, **named: opened.append(given) or load(*given, **named))
    source = open_source(tmp_path)
    assert np.array_equal(source.read("a").numpy(), A)
    assert np.array_equal(source.read("b").numpy(), B)
    assert len(opened) == 1


def test_a_tensor_in_two_shards_is_that_of_the_last_file(tmp_path: Path) -> None:
    tensors = open_source(sharded(tmp_path)).tensors
    assert {name: each.file.name for name, each in tensors.items()} == {
        "a": "two.safetensors",
        "b": "two.safetensors",
    }


def test_a_whole_file_goes_before_an_index_even_a_stale_one(tmp_path: Path) -> None:
    save_file({"whole": A}, sharded(tmp_path) / "model.safetensors")
    (tmp_path / "one.safetensors").unlink()
    assert list(open_source(tmp_path).tensors) == ["whole"]


def test_a_directory_without_weights_has_no_tensors(tmp_path: Path) -> None:
    (tmp_path / "consolidated.safetensors").write_bytes(b"not asked for")
    source = open_source(tmp_path)
    assert (source.config, source.generation, source.texts, dict(source.tensors)) == ({}, {}, {}, {})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: (path / "one.safetensors").unlink(), r"one\.safetensors: it is missing"),
        (lambda path: (path / "one.safetensors").write_bytes(b"version https"), r"one\.safetensors can't be"),
        (lambda path: (path / "two.safetensors").write_bytes(b""), r"two\.safetensors can't be loaded"),
        (lambda path: (path / INDEX).write_text("{}"), rf"{INDEX}: weight_map must be"),
        (lambda path: (path / INDEX).write_text('{"weight_map": {"a": 1}}'), rf"{INDEX}: weight_map must be"),
        (lambda path: (path / INDEX).write_text('{"weight_map"'), rf"{INDEX}: Expecting"),
        (lambda path: (path / INDEX).write_text("[]"), rf"{INDEX}: must hold a JSON object"),
    ],
)
def test_a_file_that_can_not_be_read_is_named_in_one_line(
    tmp_path: Path, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(sharded(tmp_path))
    with pytest.raises(CheckpointError, match=says) as refused:
        _ = open_source(tmp_path).tensors
    assert str(tmp_path) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_any_tensor_that_is_another_gives_another_fingerprint(tmp_path: Path) -> None:
    small = {f"norm{i}": np.full(8, i, np.float32) for i in range(40)}
    large = {f"large{i}": np.zeros(1 << 16, np.float32) for i in range(8)}
    prints = set()
    for changed in (None, "norm17", "large3"):
        tensors = small | large
        if changed:
            tensors[changed] = tensors[changed] + 1
        save_file(tensors, tmp_path / "model.safetensors")
        prints.add(fingerprint(open_source(tmp_path), "float32"))
    prints.add(fingerprint(open_source(tmp_path), "bfloat16"))
    assert len(prints) == 4
