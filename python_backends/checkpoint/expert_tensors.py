"""The tensors of experts, by the names of transformers' modules, and the ways in which files have them."""

from __future__ import annotations

from python_backends.checkpoint.model_facts import ModelFacts

Shape = tuple[int, ...]
Pieces = dict[str, Shape]  # tensors that are one, with their shapes

ROUTER, UP, DOWN = "mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"


def expert_shapes(facts: ModelFacts) -> Pieces:
    """Of a layer that has experts."""
    experts, hidden = facts.experts, facts.hidden_size
    assert experts is not None
    return {
        ROUTER: (experts.count, hidden),
        UP: (experts.count, 2 * experts.width, hidden),
        DOWN: (experts.count, hidden, experts.width),
    }


def expert_spellings(facts: ModelFacts) -> dict[str, list[Pieces]]:
    """Of each of these: as transformers computes with it, as most files have it (a tensor for each expert),
    and as GGUF has it (gate and up apart, each for all experts).
    """
    experts, mixture, hidden = facts.experts, facts.family.mixture, facts.hidden_size
    assert experts is not None
    assert mixture is not None
    shapes, up, down = expert_shapes(facts), (experts.width, hidden), (hidden, experts.width)
    gate_name, up_name, down_name = mixture.parts
    each = [f"{mixture.block}.experts.{number}" for number in range(experts.count)]
    stacks: Pieces = {f"mlp.experts.{name}.weight": (experts.count, *up) for name in ("gate_proj", "up_proj")}
    return {
        ROUTER: [{ROUTER: shapes[ROUTER]}, {f"{mixture.block}.gate.weight": shapes[ROUTER]}],
        UP: [
            {UP: shapes[UP]},
            {f"{expert}.{part}.weight": up for expert in each for part in (gate_name, up_name)},
            stacks,
        ],
        DOWN: [
            {DOWN: shapes[DOWN]},
            {f"{expert}.{down_name}.weight": down for expert in each},
            {f"{DOWN}.weight": shapes[DOWN]},
        ],
    }
