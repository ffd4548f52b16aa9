"""[finetuning]: how LoRA adapters are trained."""

from __future__ import annotations

from dataclasses import dataclass

from python_backends.settings.setting import setting

# which servers train: for people, here and where one is refused
TRAINS = (
    "the torch engine trains, with model.weights = 'same', on a CPU or, with engine.cuda_graphs = 'off', on a"
    " CUDA device"
)


@dataclass(frozen=True, slots=True)
class FinetuningSettings:
    enabled: bool = setting(
        True,
        "whether a server trains the jobs that it finds, in the time that serving leaves, with the layers'"
        " weights in memory twice meanwhile, three times where layers in C++ serve;"
        f" {TRAINS}",
    )
    directory: str = setting(
        "run/finetuning",
        "the jobs, in one directory for each checkpoint; relative to this folder",
    )
