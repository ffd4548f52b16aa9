"""Jobs and their saved states as OpenAI's clients see them."""

from __future__ import annotations

import time
from collections.abc import Container
from typing import Any

from python_backends.finetuning import saved_states
from python_backends.finetuning.jobs import Job

FOUND_S = 10.0  # within which instances find an adapter


def shown(job: Job, served: Container[str]) -> dict[str, Any]:
    """`served`: the adapters that can be asked for. A job that has ended runs until its own one can."""
    fields = job.fields
    adapter = fields.pop("gapless").get("adapter") or None
    is_new = time.time() - (fields["finished_at"] or 0) < FOUND_S
    if fields["status"] == "succeeded" and adapter and adapter not in served and is_new:
        fields |= {"status": "running", "finished_at": None}
    method = {"type": "supervised", "supervised": {"hyperparameters": fields["hyperparameters"]}}
    return fields | {
        "fine_tuned_model": adapter if fields["status"] == "succeeded" else None,
        "method": method,
        "metadata": None,
        "integrations": [],
    }


def checkpoints(job: Job) -> list[dict[str, Any]]:
    """The saved states that are kept, the newest first. If a job has succeeded, its last one is served."""
    losses = {line["step"]: line["loss"] for line in job.losses}
    times = saved_states.times(job.directory / "checkpoints")
    adapter = job.options.get("adapter") if job.status == "succeeded" else None
    return [
        {
            "id": f"ftckpt-{job.id.removeprefix('ftjob-')}-{step}",
            "object": "fine_tuning.job.checkpoint",
            "created_at": int(times[step]),
            "fine_tuned_model_checkpoint": adapter if adapter and step == max(times) else None,
            "fine_tuning_job_id": job.id,
            "metrics": {"step": step, "train_loss": losses.get(step)},
            "step_number": step,
        }
        for step in reversed(times)
    ]
