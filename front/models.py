"""/v1/models: the model itself, and the adapters that can be asked for."""

from __future__ import annotations

from typing import Any

from front.model import Model


def list_models(model: Model) -> list[dict[str, Any]]:
    adapters = dict.fromkeys(adapter.name for adapter in model.adapters)
    return [describe(model, name) for name in dict.fromkeys((*model.names, *adapters))]


def describe(model: Model, name: str) -> dict[str, Any]:
    """Raises ProblemError if there is no such model."""
    return {
        "id": name,
        "object": "model",
        "created": model.made_s,
        "owned_by": "gapless",
        "root": model.name,
        "parent": model.name if model.adapter(name) else None,
        "max_model_len": model.max_tokens,
    }
