"""What `quantization_config` says of the weights: in which layout they are stored. What is not known is
refused by the name of its field, so that no weight is read as something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from python_backends.checkpoint.layouts import Awq, Blocks, Bytes, Gptq, Layout, PackedRows
from python_backends.checkpoint.source import CheckpointError

FIELD = "quantization_config"


class Said:
    """A table of the configuration. Its questions raise CheckpointError by the field's name."""

    def __init__(self, path: Path, name: str, table: object) -> None:
        self._path, self._name = path, name
        if not isinstance(table, dict):
            raise CheckpointError(f"{path}: {name}: must be an object")
        self._table = table

    def get(self, name: str) -> Any:
        return self._table.get(name)

    def names(self) -> list[str]:
        return list(self._table)

    def part(self, name: str, table: object) -> Said:
        return Said(self._path, f"{self._name}: {name}", table)

    def refusal(self, name: str, must: str) -> CheckpointError:
        value = " ".join(repr(self._table.get(name)).split())
        return CheckpointError(f"{self._path}: {self._name}: {name} = {value:.100}: {must}")

    def one_of(self, name: str, allowed: tuple[Any, ...]) -> Any:
        """None where it is not said, if that is allowed."""
        value = self._table.get(name)
        if not any(value == each and type(value) is type(each) for each in allowed):
            listed = ", ".join(str(each) for each in allowed if each is not None)
            raise self.refusal(name, f"only {listed or 'none'} is served")
        return value

    def none(self, *names: str) -> None:
        """Neither of them is there, or has a value."""
        for name in names:
            if self._table.get(name) not in (None, False, "", [], {}):
                raise self.refusal(name, "is not served")

    def size(self, name: str) -> int:
        """Of a group; 0: all."""
        value = self._table.get(name)
        if type(value) is not int or (value < 1 and value != -1):
            raise self.refusal(name, "must be a positive number, or -1")
        return max(value, 0)

    def pair(self, name: str) -> tuple[int, int]:
        value = self._table.get(name)
        sizes = value if isinstance(value, list) else []
        if len(sizes) != 2 or not all(type(each) is int and each > 0 for each in sizes):
            raise self.refusal(name, "must be two positive numbers")
        return sizes[0], sizes[1]


def read_layout(path: Path, config: Mapping[str, Any]) -> Layout | None:
    """None: the weights are not quantised. `path`: of the configuration. Raises CheckpointError."""
    if config.get(FIELD) is None:
        return None
    said = Said(path, FIELD, config[FIELD])
    method = said.one_of("quant_method", tuple(METHODS))
    return METHODS[method](said)


def _fp8(said: Said) -> Layout:
    said.one_of("activation_scheme", ("dynamic", "static", None))
    said.one_of("fmt", ("e4m3", None))
    said.none("kv_cache_scheme")
    blocks = Blocks() if said.get("weight_block_size") is None else Blocks(*said.pair("weight_block_size"))
    return Bytes(("F8_E4M3",), blocks, ("weight_scale_inv", "weight_scale"), in_float32=True)


def _awq(said: Said) -> Layout:
    said.one_of("bits", (4,))
    for name in ("version", "format"):
        said.one_of(name, ("gemm", "GEMM", None))
    said.one_of("zero_point", (True, None))
    return Awq(said.size("group_size"))


def _gptq(said: Said) -> Layout:
    bits = said.one_of("bits", (4, 8))
    names = ("checkpoint_format", "format")  # the first goes before the other, as in transformers
    older, newer = (said.one_of(name, ("gptq", "gptq_v2", None)) for name in names)
    said.one_of("pack_dtype", ("int32", None))
    said.none("is_marlin_format")
    rules = said.part("dynamic", said.get("dynamic") or {})
    if not all(name.startswith("-:") for name in rules.names()):  # those say that modules stay as they were
        raise said.refusal("dynamic", "must give no module other bits")
    return Gptq(bits, said.size("group_size"), zeros_less_one=(older or newer) != "gptq_v2")


def _compressed(said: Said) -> Layout:
    said.one_of("quantization_status", ("compressed", "frozen", None))
    said.none("kv_cache_scheme", "transform_config")
    sparsity = said.part("sparsity_config", said.get("sparsity_config") or {})
    sparsity.one_of("format", ("dense", None))
    groups = said.part("config_groups", said.get("config_groups"))
    found = {_group(groups.part(name, groups.get(name)), said.get("format")) for name in groups.names()}
    if len(found) != 1:
        raise said.refusal("config_groups", "must say of all weights the same")
    return found.pop()


def _group(group: Said, format_of_all: object) -> Layout:
    weights = group.part("weights", group.get("weights"))
    weights.none("dynamic")
    weights.one_of("actorder", ("weight", "static", False, None))
    named = group.part("format", {"format": group.get("format") or format_of_all})
    kept = named.one_of("format", ("float-quantized", "int-quantized", "naive-quantized", "pack-quantized"))
    if kept == "pack-quantized":
        weights.one_of("type", ("int",))
        bits, blocks = weights.one_of("num_bits", (4, 8)), _blocks(weights, ("channel", "group"))
        return PackedRows(bits, blocks, has_zeros=not weights.one_of("symmetric", (True, False)))
    kinds = {"float-quantized": ("float",), "int-quantized": ("int",)}.get(kept, ("float", "int"))
    kind = weights.one_of("type", kinds)
    weights.one_of("num_bits", (8,))
    weights.one_of("symmetric", (True,))
    blocks = _blocks(weights, ("tensor", "channel", "group", "block"))
    return Bytes(("F8_E4M3",) if kind == "float" else ("I8",), blocks)


def _blocks(weights: Said, allowed: tuple[str, ...]) -> Blocks:
    strategy = weights.one_of("strategy", allowed)
    if strategy == "block":
        return Blocks(*weights.pair("block_structure"))
    if strategy == "group":
        return Blocks(1, weights.size("group_size"))
    return Blocks(1) if strategy == "channel" else Blocks()


METHODS: dict[str, Callable[[Said], Layout]] = {
    "compressed-tensors": _compressed,
    "fp8": _fp8,
    "awq": _awq,
    "gptq": _gptq,
}
