"""The rows of `peers`: worker, options and environment of each.

A worker is a class in `engines.ENGINES` or a module of `workers/`. Options go to its constructor. A
row has the name of its engine, and the format of its weights if they are not those of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.common.work import PUBLISHED
from benchmarks.peers.environments import Environment, ready, vllm_variants

OWN = {"int8": ("int8",), "int4": ("int4",)}
OF_VLLM = {"int8": ("W8A8",), "int4": ("AWQ",)}


@dataclass(frozen=True, slots=True)
class Setup:
    """One row: an engine with its options. `variant` is the name of the variant if the engine has several.

    `packages`: the list of its environment, where that is not its worker's. `formats`: in which it keeps
    weights of `int8` and of `int4`, as its worker names them.
    """

    name: str
    worker: str
    options: dict[str, Any] = field(default_factory=dict)
    formats: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    variant: str = ""
    packages: str = ""

    @property
    def engine(self) -> str:
        """Engines of the same name have the same environment and the same variants."""
        return self.packages or self.worker

    @property
    def environment(self) -> Environment:
        """The environment with the variables of this row. Raises CalledProcessError or OSError if it can't be
        made.
        """
        found = ready(self.engine)
        return Environment(found.python, found.variables | self.variables)


SETUPS = {
    setup.name: setup
    for setup in (
        Setup("gapless", "gapless", formats=OWN),
        Setup("gapless_torch", "gapless", {"kind": "torch", "cpp_layers": "off"}, OWN),
        Setup("gapless_triton", "gapless_triton", formats=OWN),
        Setup("openvino", "openvino", formats=OWN),
        Setup("openvino_defaults", "openvino", {"default_kv_precision": True}, OWN),
        Setup("vllm", "vllm", formats=OF_VLLM),
        Setup("vllm_zentorch", "vllm", formats=OF_VLLM, packages="vllm_zentorch"),
        Setup("amd_pace", "amd_pace", variables={"PACE_LOG_LEVEL": "warning"}),
        Setup("llama_cpp", "llama_cpp", formats={"int8": ("Q8_0",), "int4": ("Q4_0", "Q4_1", "Q4_K_M")}),
        Setup("transformers", "transformers"),
    )
}
DEFAULT = (
    "gapless",
    "gapless_triton",
    "gapless_torch",
    "openvino",
    "openvino_defaults",
    "vllm",
)
NOT_ON_LARGE = ("gapless_torch",)  # a round takes long
ON_PUBLISHED = ("gapless", "openvino", "vllm", "llama_cpp")
ON_AMD = ("vllm_zentorch", "amd_pace")  # with AVX512_BF16; in turn with those above
# whose tokens may differ from the reference in float32: its KV is quantised
QUANTISED = ("openvino_defaults",)


def default_engines(shape: str) -> list[str]:
    if shape == PUBLISHED:
        return [*ON_PUBLISHED, *(ON_AMD if is_amd() else ())]
    return [name for name in DEFAULT if shape == "S" or name not in NOT_ON_LARGE]


def is_amd() -> bool:
    flags = Path("/proc/cpuinfo").read_text()
    return "AuthenticAMD" in flags and "avx512_bf16" in flags


def setups_of(names: Iterable[str], weights: str = "same") -> list[Setup]:
    """Returns a row for each engine and each of its formats of such weights, if it has any."""
    return [setup for name in names for setup in with_formats(SETUPS[name], weights)]


def with_formats(setup: Setup, weights: str) -> list[Setup]:
    if weights == "same":
        return [setup]
    return [
        replace(setup, name=f"{setup.name} {each}", options={**setup.options, "weights": each})
        for each in setup.formats.get(weights, ())
    ]


def variants(setup: Setup, known: Mapping[str, Mapping[str, str]] | None = None) -> list[Setup]:
    """Returns the variants that are tried before the best one is measured; only itself if there are no
    variants.
    """
    if setup.worker != "vllm":
        return [setup]
    found = vllm_variants(setup.engine) if known is None else known
    return [replace(setup, variables=dict(variables), variant=name) for name, variables in found.items()]
