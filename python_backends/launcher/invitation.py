"""The text that the launcher prints when it is ready: its ports, and commands to try."""

from __future__ import annotations

import sys
from pathlib import Path

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, asked_at, in_url, ip_of
from python_backends.settings import IS_INSTALLED, ROOT, ServerSettings

QUESTION = "What is the capital of France?"


def invitation(server: ServerSettings, front_port: int = 0, is_https: bool = False) -> str:
    """`front_port`: of OpenAI's interface and the page; 0: there is none. `is_https`: how to ask there."""
    host = in_url(ip_of(server.address))
    url = f"http://{host}:{server.http_port}/v2/models/ensemble/generate_stream"
    messages = rf'"messages": "[{{\"role\": \"user\", \"content\": \"{QUESTION}\"}}]"'
    ports = f"HTTP {server.http_port}, gRPC {server.grpc_port}, metrics {server.metrics_port}"
    page = ""
    if front_port:
        page = f"In a browser: http{'s' if is_https else ''}://{host}:{front_port}/\n\n"
        ports = f"OpenAI's interface {front_port} (/v1), {ports}"
    return f"""
Gapless is ready on {server.address}: {ports}
Try it in another terminal:

  curl -sN {url} -d '{{{messages}, "stream": true}}'

{_stream(host, server.grpc_port)}  {_chat(asked_at(server))}

{page}Ctrl-C ends it.
"""


def _chat(url: str) -> str:
    """`url`: empty where it is the usual one."""
    if IS_INSTALLED:
        return f"gapless chat --url '{url}'" if url else "gapless chat"
    return f"make chat URL='{url}'" if url else "make chat"


def _stream(host: str, port: int) -> str:
    """The small program that is a file of the checkout."""
    if IS_INSTALLED:
        return ""
    python = Path(sys.executable)
    if python.is_relative_to(ROOT):
        python = python.relative_to(ROOT)
    elsewhere = "" if host in (LOOPBACK, ALL_IPV4) else f" --host '{host}'"
    return f'  {python} client/stream.py{elsewhere} --port {port} "{QUESTION}"\n\n'
