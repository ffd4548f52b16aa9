"""A hub of models on loopback, which answers what huggingface_hub asks: the commit of a revision, the files
of a commit, and the files themselves, whole or from a byte on. It can be gated, private, slow or full of
holes.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import unquote, urlparse

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REVISIONS = {"main": COMMIT, "v1": COMMIT, COMMIT: COMMIT}
LARGE = (".safetensors", ".bin", ".gguf")


@dataclass
class StandInHub:
    """`files`: what each model has, by its name. Requests are kept as "METHOD path [range]"."""

    files: dict[str, dict[str, bytes]]
    token: str = ""  # what private and gated models want
    gated: bool = False
    status: int = 0  # of every answer, if not 0
    cut_at: int = 0  # the first answer with a large file ends after so many bytes
    byte_s: float = 0.0  # how long a byte of a large file takes
    sizes: dict[str, int] = field(default_factory=dict)  # what it says of a file in place of the truth
    requests: list[str] = field(default_factory=list)

    def __enter__(self) -> StandInHub:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Answers,), {"hub": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def fetched(self) -> set[str]:
        """The files of which content was asked for."""
        found = (re.match(r"GET /.*/resolve/[^/]+/(\S+)", each) for each in self.requests)
        return {match[1] for match in found if match}


class Answers(BaseHTTPRequestHandler):
    hub: StandInHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *values: Any) -> None:  # noqa: A002
        pass

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        path, part = unquote(urlparse(self.path).path), self.headers.get("Range", "")
        self.hub.requests.append(f"{self.command} {path} {part}".strip())
        if self.hub.status:
            self._refuse(self.hub.status)
            return
        is_open = self.headers.get("Authorization") == f"Bearer {self.hub.token}" or not self.hub.token
        if (found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path)) is not None:
            self._answer_of_model(*found.groups(), is_open=is_open)
        elif (found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)) is not None:
            if is_open:
                self._send_file(found[1], found[3], part)
            else:
                self._refuse(401, "GatedRepo")
        else:
            self._refuse(404)

    def _answer_of_model(self, model: str, what: str, revision: str, *, is_open: bool) -> None:
        if model not in self.hub.files or not (is_open or self.hub.gated):
            self._refuse(401, "RepoNotFound")
        elif revision not in REVISIONS:
            self._refuse(404, "RevisionNotFound")
        elif what == "revision":
            self._send_json({"id": model, "sha": REVISIONS[revision], "private": False, "tags": []})
        else:
            self._send_json([self._entry(name, text) for name, text in self.hub.files[model].items()])

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        size = self.hub.sizes.get(name, len(content))
        entry: dict[str, Any] = {"type": "file", "path": name, "size": size, "oid": etag(content)[:40]}
        if name.endswith(LARGE):
            entry["lfs"] = {"size": size, "oid": etag(content), "pointerSize": 134}
        return entry

    def _send_file(self, model: str, name: str, part: str) -> None:
        content = self.hub.files[model].get(name)
        if content is None:
            self._refuse(404, "EntryNotFound")
            return
        first = int(part.removeprefix("bytes=").partition("-")[0]) if part else 0
        self.send_response(206 if part else 200)
        self.send_header("ETag", f'"{etag(content)}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(len(content) - first))
        if part:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.end_headers()
        if self.command == "GET":
            self._send_content(content[first:], is_large=name.endswith(LARGE))

    def _send_content(self, content: bytes, *, is_large: bool) -> None:
        if is_large and self.hub.cut_at:
            content, self.hub.cut_at = content[: self.hub.cut_at], 0
            self.close_connection = True
        if not (is_large and self.hub.byte_s):
            self.wfile.write(content)
            return
        try:
            for byte in content:
                self.wfile.write(bytes([byte]))
                time.sleep(self.hub.byte_s)
        except OSError:  # the client has left
            self.close_connection = True

    def _send_json(self, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _refuse(self, status: int, code: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", f"{code} of the stand-in")
        self.send_header("Content-Length", "0")
        self.end_headers()


def etag(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def files_of(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
