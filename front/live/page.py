"""Sends the page at `/`: one file, and a policy by which a browser runs nothing but what is in it."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

FILE = Path(__file__).with_name("page.html")
INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)
HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-cache",
    "vary": "accept",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


def is_wanted(method: str, path: str, headers: Headers) -> bool:
    """Whether a browser asks for it: other clients ask `/` whether there is a server."""
    return path == "/" and method in ("GET", "HEAD") and "text/html" in headers.get("accept", "")


def page() -> Response:
    """The same for all who ask: it says nothing of the server, and needs no key."""
    text, its_policy = _read()
    return Response(text, headers={**HEADERS, "content-security-policy": its_policy})


@cache
def _read() -> tuple[str, str]:
    text = FILE.read_text()
    return text, policy(text)


def policy(text: str) -> str:
    """Returns the content security policy of a page: its own scripts and styles, by their digests, and the
    server that it came from.
    """
    digests: dict[str, list[str]] = {"script": [], "style": []}
    for kind, content in INLINE.findall(text):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        digests[kind].append(f"'sha256-{digest}'")
    return "; ".join(
        [
            "default-src 'none'",
            *(f"{kind}-src {' '.join(found)}" for kind, found in digests.items()),
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        ]
    )
