"""The rows of `peers`: worker, options and environment of each.

A worker is a class in `engines.ENGINES` or a module of `workers/`. Options go to its constructor. A
row has the name of its engine, or `engine@tokens` if a step has another number of tokens than usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.common.work import PEER_TOKEN_BUDGET
from benchmarks.peers.environments import Environment, ready, vllm_variants


@dataclass(frozen=True, slots=True)
class Setup:
    """One row: an engine with its options. `variant` is the name of the variant if the engine has several."""

    name: str
    worker: str
    options: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    variant: str = ""

    @property
    def environment(self) -> Environment:
        """The environment with the variables of this row. Raises CalledProcessError or OSError if it can't be
        made.
        """
        found = ready(self.worker)
        return Environment(found.python, found.variables | self.variables)


SETUPS = {
    setup.name: setup
    for setup in (
        Setup("gapless", "gapless"),
        Setup("gapless_async", "gapless", {"steps_ahead": 1}),
        Setup("gapless_torch", "gapless", {"kind": "torch", "cpp_layers": "off"}),
        Setup("gapless_triton", "gapless_triton"),
        Setup("openvino", "openvino"),
        Setup("openvino_defaults", "openvino", {"default_kv_precision": True}),
        Setup("vllm", "vllm"),
        Setup("llama_cpp", "llama_cpp"),
        Setup("transformers", "transformers"),
        Setup("transformers_continuous", "transformers_continuous"),
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
BUDGETED = ("openvino", "openvino_defaults", "vllm")  # whose rows are measured with each token budget
# whose tokens may differ from the reference in float32: its KV is quantised
QUANTISED = ("openvino_defaults",)


def default_engines(shape: str) -> list[str]:
    return [name for name in DEFAULT if shape == "S" or name not in NOT_ON_LARGE]


def setups_of(names: Iterable[str], token_budgets: Iterable[int]) -> list[Setup]:
    """Returns a row for each engine; for the peers, one for each token budget."""
    budgets = list(token_budgets)
    made = []
    for name in names:
        setup = SETUPS[name]
        made += [with_budget(setup, budget) for budget in budgets] if name in BUDGETED else [setup]
    return made


def with_budget(setup: Setup, tokens: int) -> Setup:
    if tokens == PEER_TOKEN_BUDGET:
        return setup
    return replace(setup, name=f"{setup.name}@{tokens}", options={**setup.options, "token_budget": tokens})


def variants(setup: Setup, known: Mapping[str, Mapping[str, str]] | None = None) -> list[Setup]:
    """Returns the variants that are tried before the best one is measured; only itself if there are no
    variants.
    """
    if setup.worker != "vllm":
        return [setup]
    found = vllm_variants() if known is None else known
    return [replace(setup, variables=dict(variables), variant=name) for name, variables in found.items()]
