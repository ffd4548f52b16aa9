"""The text that the launcher prints when it is ready: its ports, and commands to try."""

from __future__ import annotations

import sys
from pathlib import Path

from python_backends.launcher.address import ALL_IPV4, LOOPBACK, in_url, ip_of
from python_backends.settings import ROOT, ServerSettings

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
    python = Path(sys.executable)
    if python.is_relative_to(ROOT):
        python = python.relative_to(ROOT)
    elsewhere = "" if host in (LOOPBACK, ALL_IPV4) else f" --host '{host}'"
    stream = f"{python} client/stream.py{elsewhere} --port {server.grpc_port}"
    return f"""
Gapless is ready on {server.address}: {ports}
Try it in another terminal:

  curl -sN {url} -d '{{{messages}, "stream": true}}'

  {stream} "{QUESTION}"

  make chat{"" if server.grpc_port == 8001 and not elsewhere else f" URL='{host}:{server.grpc_port}'"}

{page}Ctrl-C ends it.
"""
