"""/v1/models: the model itself, and the adapters that can be asked for, with the fields that OpenAI's clients
read and those that Anthropic's do.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from front.model import Model


def list_models(model: Model) -> dict[str, Any]:
    """All in one page."""
    names = dict.fromkeys(model.names)
    adapters = dict.fromkeys(adapter.name for adapter in model.adapters)  # which may be gone a moment later
    parents = {**dict.fromkeys(adapters, model.name), **dict.fromkeys(names)}
    shown = [_shown(model, name, parents[name]) for name in {**names, **adapters}]
    page = {"has_more": False, "first_id": shown[0]["id"], "last_id": shown[-1]["id"]}
    return {"object": "list", "data": shown, **page}


def describe(model: Model, name: str) -> dict[str, Any]:
    """Raises ProblemError if there is no such model."""
    return _shown(model, name, model.name if model.adapter(name) else None)


def _shown(model: Model, name: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": name,
        "created": model.made_s,
        "created_at": datetime.fromtimestamp(model.made_s, UTC).isoformat(),
        "owned_by": "gapless",
        "root": model.name,
        "parent": parent,
        "max_model_len": model.max_tokens,
    }
