"""Pages in browsers. Those of other origins may ask if the operator allows it (CORS). A browser sends what
others ask, too, and keeps the answer from them; so where no key keeps them out, they are refused.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from front.errors import ProblemError
from front.observed import REQUEST_IDS

ANY = "*"
WEB = ("http://", "https://", "null")  # how the origins of pages begin; programs and extensions have others
INNER = ("localhost", "local", "internal", "lan", "svc", "test")  # no name of the Internet ends so


def origins_in(joined: str) -> list[str]:
    """Returns the origins that are joined by commas."""
    return [origin.strip() for origin in joined.split(",") if origin.strip()]


def allow_origins(app: ASGIApp, origins: str) -> ASGIApp:
    """Returns `app`, which browsers may ask from pages of these origins, joined by commas; "": from none."""
    allowed = origins_in(origins)
    if not allowed:
        return app
    shown = [*REQUEST_IDS, "retry-after"]
    return CORSMiddleware(
        app, allow_origins=allowed, allow_methods=["*"], allow_headers=["*"], expose_headers=shown
    )


class KeylessPages:
    """Which pages may ask a server without keys: its own, and those of the origins that are allowed. None may
    ask by another name of the Internet: its owner can let it mean this host, and so make any page one of the
    server's own. That holds for every address: a container listens on all, and is published on this host.
    """

    def __init__(self, origins: str) -> None:
        self._allowed = origins_in(origins)
        self._names = {_name_in(_host_of(origin)) for origin in self._allowed}

    def refusal(self, headers: Headers) -> ProblemError | None:
        """Returns why the request is refused; None: it isn't."""
        if ANY in self._allowed:
            return None
        host, origin = headers.get("host", "").lower(), headers.get("origin", "").lower()
        if (name := _name_in(host)) not in self._names and not _is_inner(name):
            said = "must be an IP address, localhost, or a name in front.allowed_origins"
            return ProblemError(403, f"Host = {host[:80]!r}: without a key, it {said}", "forbidden")
        # browsers alone write Sec-Fetch-Site; it is right where a proxy writes another Host
        is_own = _host_of(origin) == host or headers.get("sec-fetch-site") == "same-origin"
        if not origin.startswith(WEB) or is_own or origin in self._allowed:
            return None
        said = f"Origin = {origin[:80]!r}: without a key, it must be the server's own"
        return ProblemError(403, f"{said}, or in front.allowed_origins", "forbidden")


def _host_of(origin: str) -> str:
    return origin.partition("://")[2]


def _name_in(host: str) -> str:
    """Returns `host`, as in a request's head, without its port."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return host


def _is_inner(name: str) -> bool:
    """Whether it is an address, or a name that no one on the Internet can have."""
    if "." not in name or name.rpartition(".")[2] in INNER:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
