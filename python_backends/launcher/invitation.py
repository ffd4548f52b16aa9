"""The text that the launcher prints when it is ready: its ports, and commands to try."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, asked_at, in_url, ip_of
from python_backends.settings import IS_CHECKOUT, IS_INSTALLED, ROOT, ServerSettings

QUESTION = "What is the capital of France?"


def invitation(server: ServerSettings, front_port: int = 0, is_https: bool = False) -> str:
    """`front_port`: of OpenAI's interface and the page; 0: there is none. `is_https`: how to ask there."""
    ip = ip_of(server.address)
    host = LOOPBACK if ip == ALL_IPV4 else in_url(ip)
    url = f"http://{host}:{server.http_port}/v2/models/ensemble/generate_stream"
    messages = rf'"messages": "[{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]"'
    curl = f"curl -sN {url} -d '{{{messages}, \"stream\": true}}'"
    commands = "\n\n".join(f"  {each}" for each in (curl, *_programs(server, host)))
    ports = f"HTTP {server.http_port}, gRPC {server.grpc_port}, metrics {server.metrics_port}"
    page = ""
    if front_port:
        page = f"In a browser: http{'s' if is_https else ''}://{host}:{front_port}/\n\n"
        ports = f"OpenAI's interface {front_port} (/v1), {ports}"
    return f"""
Gapless is ready on {server.address}: {ports}
Try it in another terminal:

{commands}

{page}Ctrl-C ends it.
"""


def _programs(server: ServerSettings, host: str) -> Iterator[str]:
    """Those of an installed Gapless, or of a checkout; the host of a container has neither."""
    url = asked_at(server)
    if IS_INSTALLED:
        yield f"gapless chat --url '{url}'" if url else "gapless chat"
    elif IS_CHECKOUT:
        python = Path(sys.executable)
        if python.is_relative_to(ROOT):
            python = python.relative_to(ROOT)
        elsewhere = "" if host == LOOPBACK else f" --host '{host}'"
        yield f'{python} client/stream.py{elsewhere} --port {server.grpc_port} "{QUESTION}"'
        yield f"make chat URL='{url}'" if url else "make chat"
