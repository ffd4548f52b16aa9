"""The channel to a server: gRPC's options, and proxies of the environment."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import Any

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 20_000),  # finds a dead connection while a stream is silent
    ("grpc.keepalive_timeout_ms", 30_000),  # a server that pauses for less keeps its streams
    ("grpc.http2.max_pings_without_data", 0),
    (
        "grpc.min_reconnect_backoff_ms",
        200,
    ),  # by default, gRPC would wait for seconds before it connects again
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)
# gRPC takes them for this host, too
VARIABLES = ("grpc_proxy", "https_proxy", "http_proxy")  # the first that is set
_SCHEME = re.compile(r"^(?:dns:(?://[^/]*/)?|ipv[46]:|passthrough:/*)")


def channel_options(url: str) -> tuple[tuple[str, Any], ...]:
    """Returns gRPC's options for a channel to `url`: a server on this host is never asked through a proxy."""
    return (*CHANNEL_OPTIONS, ("grpc.enable_http_proxy", 0)) if is_local(url) else CHANNEL_OPTIONS


def is_local(url: str) -> bool:
    """Whether it is an address of the loopback interface, as gRPC writes addresses."""
    target = _SCHEME.sub("", url)
    host = target[1:].partition("]")[0] if target.startswith("[") else target.rpartition(":")[0] or target
    if host.rstrip(".").lower() == "localhost" or url.startswith("unix"):
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    ip = getattr(ip, "ipv4_mapped", None) or ip
    return ip.is_loopback or ip.is_unspecified


def with_proxy(said: str, url: str) -> str:
    """Returns what was said about a connection to `url`, and the proxy that it may have gone through."""
    variable = next((name for name in VARIABLES if os.environ.get(name)), None)
    if variable is None or is_local(url):
        return said
    proxy = re.sub(r"//.*@", "//", os.environ[variable])  # without a password
    return f"{said} (asked through the proxy {proxy} of {variable}, unless no_proxy has this address)"
