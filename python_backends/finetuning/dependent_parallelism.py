"""Dependent parallelisation (FlexLLM, NSDI 2026): in how many ways a LoRA path may be cut over `n` ranks
beside a Megatron linear, and what each costs to communicate.

Pure arithmetic. It is not applied yet, because the torch engine has no tensor parallelism. A state says what
each rank has of a tensor: WHOLE all of it, CUT its own columns, PARTIAL a summand. Not counted: the gradient
of the adapter's whole side is reduced over all ranks once a mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from types import MappingProxyType


class State(StrEnum):
    WHOLE = "R"
    CUT = "C"
    PARTIAL = "S"


class Weight(StrEnum):
    WHOLE = "whole"
    OUTPUTS = "cut outputs"
    INPUTS = "cut inputs"


class Collective(StrEnum):
    NONE = "none"
    SLICE = "slice"
    GATHER = "gather"
    ALL_REDUCE = "all-reduce"
    REDUCE_SCATTER = "reduce-scatter"


LINEAR = MappingProxyType(
    {
        (State.WHOLE, Weight.WHOLE): State.WHOLE,
        (State.WHOLE, Weight.OUTPUTS): State.CUT,
        (State.CUT, Weight.INPUTS): State.PARTIAL,
        (State.PARTIAL, Weight.WHOLE): State.PARTIAL,
    }
)
TURNS = MappingProxyType(
    {
        Collective.SLICE: (State.WHOLE, State.CUT),
        Collective.GATHER: (State.CUT, State.WHOLE),
        Collective.ALL_REDUCE: (State.PARTIAL, State.WHOLE),
        Collective.REDUCE_SCATTER: (State.PARTIAL, State.CUT),
    }
)


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """y = after(B · between(A · before(x)))."""

    elements: float  # sent by each rank for each token
    before: Collective
    a: Weight
    between: Collective
    b: Weight
    after: Collective


def candidates(input: State, output: State, n: int, H: int, O: int, r: int) -> list[Candidate]:  # noqa: A002, E741, N803
    """All forms that take x [tokens, H] in state `input` to y [tokens, O] in state `output` over n ranks with
    a rank of r, the cheapest first.

    At most one operator communicates, and nothing that each rank computed whole is sliced. A column-parallel
    linear (output CUT) has no whole B, which each rank would compute for all outputs.
    """
    found = [
        Candidate(_elements((before, between, after), (H, r, O), n), before, a, between, b, after)
        for before, a, between, b, after in product(Collective, Weight, Collective, Weight, Collective)
        if _num_sent(before, between, after) <= 1
        and not (between == Collective.SLICE and a == Weight.WHOLE)
        and not (output == State.CUT and b == Weight.WHOLE)
        and _result(input, before, a, between, b, after) == output
    ]
    return sorted(found)


def _num_sent(*operators: Collective) -> int:
    return sum(operator not in (Collective.NONE, Collective.SLICE) for operator in operators)


def _result(state: State | None, *steps: Collective | Weight) -> State | None:
    """None where a step can't take the state before it."""
    for step in steps:
        if state is None:
            return None
        state = LINEAR.get((state, step)) if isinstance(step, Weight) else _turned(state, step)
    return state


def _turned(state: State, operator: Collective) -> State | None:
    if operator == Collective.NONE:
        return state
    taken, given = TURNS[operator]
    return given if state == taken else None


def _elements(operators: tuple[Collective, ...], sizes: tuple[int, ...], n: int) -> float:
    return sum(_sent(operator, size, n) for operator, size in zip(operators, sizes, strict=True))


def _sent(operator: Collective, size: int, n: int) -> float:
    """Elements of a ring that each rank sends."""
    if operator in (Collective.NONE, Collective.SLICE):
        return 0
    share = (n - 1) / n * size
    return 2 * share if operator == Collective.ALL_REDUCE else share
