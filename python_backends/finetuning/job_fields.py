"""Which fields of job.json must be there, and their kinds and limits: a job may have been written by hand, or
by another version. `submit` has the same limits.
"""

from __future__ import annotations

import json
from typing import Any

from python_backends.engine.adapter_directory import MAX_RANK, NAME
from python_backends.nouns.load import JOB_STATUSES

LIMITS = {
    "rank": (1, MAX_RANK),
    "alpha": (1e-3, 1e4),
    "epochs": (1, 10_000),
    "batch_size": (1, 4096),
    "seed": (0, 2**63 - 1),
}
MOST_STEPS = 2**53
LEARNING_RATE = 2e-4  # where nothing is asked for; OpenAI's learning_rate_multiplier multiplies it
MAX_JOB_BYTES = 1 << 20  # of job.json


def checked(written: bytes, job_id: str) -> dict[str, Any]:
    """The fields of a job.json. ValueError names the first one that is wrong."""
    try:
        fields = json.loads(written)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    _check(fields, "", dict, "a JSON object")
    _check_texts(fields, job_id)
    for name in ("created_at", "seed"):
        _check_number(fields, name, LIMITS["seed"])
    _check(fields.get("hyperparameters"), "hyperparameters", dict, "a JSON object")
    _check_number(fields["hyperparameters"], "batch_size", LIMITS["batch_size"])
    _check(fields.get("gapless"), "gapless", dict, "a JSON object")
    _check_options(fields["gapless"])
    return fields  # type: ignore[no-any-return]


def _check_texts(fields: dict[str, Any], job_id: str) -> None:
    if fields.get("id") != job_id:
        raise ValueError(f"id = {fields.get('id')!r:.100}: must be the name of its directory")
    if fields.get("status") not in JOB_STATUSES:
        raise ValueError(f"status = {fields.get('status')!r:.100}: must be one of {', '.join(JOB_STATUSES)}")
    for name in ("model", "fine_tuned_model", "training_file"):
        if name == "model" or fields.get(name) is not None:
            _check(fields.get(name), name, str, "a string")


def _check_options(options: dict[str, Any]) -> None:
    name, targets = options.get("suffix"), options.get("targets")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise ValueError(f"suffix = {name!r:.100}: must be the name of an adapter")
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise ValueError(f"targets = {targets!r:.100}: must be a list of strings")
    for name in ("alone", "asked"):
        _check(options.get(name, False), name, bool, "true or false")
    losses = options.get("held_out_losses", [])
    if not isinstance(losses, list) or not all(isinstance(each, int | float) for each in losses):
        raise ValueError(f"held_out_losses = {losses!r:.100}: must be a list of numbers")
    for name in ("adapter", "from"):
        _check(options.get(name, ""), name, str, "a string")
    _check_number(options, "rank", LIMITS["rank"])
    _check_number(options, "alpha", LIMITS["alpha"], float)
    _check_number(options, "steps", (1, MOST_STEPS))
    _check_number(options, "learning_rate", (0, 1), float)


def _check(value: Any, name: str, kind: type, allowed: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name} = {value!r:.100}: must be {allowed}".removeprefix(" = "))


def _check_number(fields: dict[str, Any], name: str, limits: tuple[float, float], kind: type = int) -> None:
    value: Any = fields.get(name)
    least, most = limits
    is_number = isinstance(value, int | kind) and not isinstance(value, bool)
    if not is_number or not least <= value <= most:
        what = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} = {value!r:.100}: must be {what} between {least:g} and {most:g}")
