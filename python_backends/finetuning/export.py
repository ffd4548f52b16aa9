"""Writes a trained adapter as a PEFT directory, which `PeftModel.from_pretrained` and servers read."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.numpy import save_file

from python_backends.finetuning import checkpoints
from python_backends.finetuning.files import write_directory
from python_backends.finetuning.jobs import Job, JobError


def export_once(job: Job) -> None:
    """Writes the adapter to `adapter/` in the job's directory, unless it is there. Raises JobError."""
    if not (job.directory / "adapter").exists():
        export(job, job.directory / "adapter")


def export(job: Job, directory: Path) -> int:
    """Writes the adapter as it is in the last checkpoint to `directory`, which must not exist yet. Returns
    the step of that checkpoint. Raises JobError.
    """
    if directory.exists():
        raise JobError(f"{directory}: it exists already")
    found = checkpoints.last(job.directory / "checkpoints")
    if found is None:
        raise JobError(f"{job.id}: it has no checkpoint yet")
    place, state = found
    weights = {key: each for key, each in state.items() if key.endswith(".weight")}
    options = job.options
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": job.fields["model"],
        "r": options["rank"],
        "lora_alpha": options["alpha"],
        "lora_dropout": 0.0,
        "target_modules": options["targets"],
        "bias": "none",
        "fan_in_fan_out": False,
        "use_rslora": False,
        "use_dora": False,
        "modules_to_save": None,
        "inference_mode": True,
    }

    def write(path: Path) -> None:
        save_file(weights, path / "adapter_model.safetensors", {"format": "pt"})
        (path / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")

    write_directory(directory, write)
    return place.step
