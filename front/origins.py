"""Pages of other origins, which may ask from a browser if the operator allows it (CORS)."""

from __future__ import annotations

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from front.observed import REQUEST_IDS


def allow_origins(app: ASGIApp, origins: str) -> ASGIApp:
    """Returns `app`, which browsers may ask from pages of these origins, joined by commas; "": from none."""
    allowed = [origin.strip() for origin in origins.split(",") if origin.strip()]
    if not allowed:
        return app
    shown = [*REQUEST_IDS, "retry-after"]
    return CORSMiddleware(
        app, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"], expose_headers=shown
    )
