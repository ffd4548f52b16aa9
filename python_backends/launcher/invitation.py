"""The text that the launcher prints when it is ready: its ports, and commands to try."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from python_backends.settings import ROOT, ServerSettings


def invitation(server: ServerSettings) -> str:
    url = f"http://{server.address}:{server.http_port}/v2/models/ensemble/generate_stream"
    messages = (
        r'"messages": "[{\"role\": \"user\", \"content\": \"Convert to camelCase: def'
        r' read_all_lines(file_name): pass\"}]"'
    )
    ports = f"HTTP {server.http_port}, gRPC {server.grpc_port}, metrics {server.metrics_port}"
    stream = f"{_shown(sys.executable)} client/stream.py --port {server.grpc_port}"
    return f"""
Gapless is ready on {server.address}: {ports}
Try it in another terminal:

  curl -sN {url} -d '{{{messages}, "stream": true}}'

  {stream} "Convert to camelCase: def read_all_lines(file_name): pass"

  make chat{"" if server.grpc_port == 8001 else f" URL={server.address}:{server.grpc_port}"}

Ctrl-C ends it.
"""


def _shown(path: str) -> str:
    """Returns the path relative to the checkout if it is in the checkout."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(ROOT))
    return path
