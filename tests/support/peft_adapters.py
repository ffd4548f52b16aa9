"""LoRA adapters made by PEFT, whose B is not zero."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

from python_backends.engine.torch.adapters.modules import modules_of, names_of
from tests.support.model_source import facts_from


def adapted_model(model: Any, rank: int, seed: int = 0, patterns: bool = False) -> Any:
    """PEFT's model over a copy of `model`, all modules of its text adapted. `patterns`: layer 1 has another
    rank, one module another alpha, and the scale is rsLoRA's.
    """
    torch.manual_seed(100 + seed)
    model = copy.deepcopy(model)
    facts = facts_from(model)
    names = list(names_of(modules_of(facts)))
    options: dict[str, Any] = {}
    if left_out := facts.family.left_out:
        options["exclude_modules"] = rf".*({'|'.join(left_out)}).*"
    if patterns:
        options |= {
            "rank_pattern": {rf"{facts.family.layers}\.1\..*": rank + 1},
            "alpha_pattern": {names[0]: 3},
            "use_rslora": True,
        }
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules=names,
        task_type="CAUSAL_LM",
        lora_dropout=0.1,
        fan_in_fan_out=facts.family.inputs_first,
        **options,
    )
    made = get_peft_model(model, config).eval()
    for key, weight in made.named_parameters():
        if ".lora_" in key:
            torch.nn.init.normal_(weight, std=0.15)
    return made


def save_adapter(model: Any, directory: Path, rank: int, seed: int = 0, patterns: bool = False) -> Path:
    adapted_model(model, rank, seed, patterns).save_pretrained(directory)
    return directory
