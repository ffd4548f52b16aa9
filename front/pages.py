"""Lists that are given out page by page, as OpenAI's clients walk through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from front.errors import refused


def page_of(items: Sequence[Any], request: Request, usual: int = 20, most: int = 100) -> dict[str, Any]:
    """Returns the `items`, structs or objects with an id, that follow the one whose id is `after`: at most
    `limit` of them, `usual` if the request names no limit. `limit` is at most `most`. Raises ProblemError.
    """
    query = request.query_params
    plain = msgspec.to_builtins(items)
    asked = query.get("limit", str(usual))
    if not (asked.isascii() and asked.isdecimal() and 1 <= int(asked[:9]) <= most):
        raise refused("limit", f" = {asked[:40]!r}: must be a whole number between 1 and {most}")
    if after := query.get("after"):
        ids = [item["id"] for item in plain]
        if after not in ids:
            raise refused("after", f" = {after[:64]!r}: there is nothing of this id")
        plain = plain[ids.index(after) + 1 :]
    shown = plain[: int(asked)]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(plain) > len(shown),
    }
