"""/v1/models: the model itself, and the adapters that can be asked for."""

from __future__ import annotations

from typing import Any

from front.model import Model


def list_models(model: Model) -> list[dict[str, Any]]:
    names = dict.fromkeys(model.names)
    adapters = dict.fromkeys(adapter.name for adapter in model.adapters)  # which may be gone a moment later
    parents = {**dict.fromkeys(adapters, model.name), **dict.fromkeys(names)}
    return [_shown(model, name, parents[name]) for name in {**names, **adapters}]


def describe(model: Model, name: str) -> dict[str, Any]:
    """Raises ProblemError if there is no such model."""
    return _shown(model, name, model.name if model.adapter(name) else None)


def _shown(model: Model, name: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.made_s,
        "owned_by": "gapless",
        "root": model.name,
        "parent": parent,
        "max_model_len": model.max_tokens,
    }
