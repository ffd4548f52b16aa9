"""/v1/files: what clients upload is kept until they delete it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from front.errors import ProblemError, json_response, refused
from front.files.store import MOST_FILES, File, Files, Written
from front.files.upload import FILE, Upload, boundary_of
from front.pages import page_of

FINE_TUNE, BATCH = "fine-tune", "batch"
PURPOSES = (FINE_TUNE, BATCH)  # of what is uploaded
EXPIRES = "expires_after"


class FileRoutes:
    def __init__(self, files: Files) -> None:
        self._files = files
        self.routes = [
            Route("/v1/files", self._upload, methods=["POST"]),
            Route("/v1/files", self._list),
            Route("/v1/files/{name}", self._show),
            Route("/v1/files/{name}", self._delete, methods=["DELETE"]),
            Route("/v1/files/{name}/content", self._content),
        ]

    async def _upload(self, request: Request) -> Response:
        boundary = boundary_of(request.headers.get("content-type", ""))
        try:
            return json_response(await self._kept(request, boundary))
        except OSError as error:
            said = f"the file can't be kept (front.directory): {error.strerror}"
            raise ProblemError(500, said, "failed", kind="server_error") from error

    async def _kept(self, request: Request, boundary: bytes) -> File:
        """Raises ProblemError and OSError."""
        written = await asyncio.to_thread(self._files.begin)
        try:
            upload = await _read(request, boundary, written)
            name, purpose = _checked(upload)
            return await asyncio.to_thread(self._files.end, written, name, purpose)
        except BaseException:
            self._files.drop(written)
            raise

    async def _list(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._files.all)
        order = request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise refused("order", f" = {order[:40]!r}: must be asc or desc")
        if purpose := request.query_params.get("purpose"):
            found = [file for file in found if file.purpose == purpose]
        most = 10_000
        return json_response(page_of(found[::-1] if order == "asc" else found, request, MOST_FILES, most))

    async def _show(self, request: Request) -> Response:
        return json_response(await asyncio.to_thread(self._files.find, request.path_params["name"]))

    async def _delete(self, request: Request) -> Response:
        name = request.path_params["name"]
        await asyncio.to_thread(self._files.delete, name)
        return json_response({"id": name, "object": "file", "deleted": True})

    async def _content(self, request: Request) -> Response:
        file = await asyncio.to_thread(self._files.find, request.path_params["name"])
        return FileResponse(self._files.path(file.id), media_type="application/octet-stream")


async def _read(request: Request, boundary: bytes, written: Written) -> Upload:
    """Raises ProblemError."""
    upload = Upload(boundary, written)
    async with contextlib.aclosing(_chunks(request)) as chunks:
        await upload.read(chunks)
    return upload


async def _chunks(request: Request) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise ProblemError(400, "the client left", "client_left") from None


def _checked(upload: Upload) -> tuple[str, str]:
    """Returns the file's name and purpose. Raises ProblemError."""
    if upload.file_name is None:
        raise refused(FILE, ": must be there, a part with this name", "invalid_body")
    if any(name.startswith(EXPIRES) for name in upload.fields):
        raise refused(EXPIRES, ": files are kept until they are deleted; leave it out", "unsupported_value")
    purpose = upload.fields.get("purpose", "")
    if purpose not in PURPOSES:
        raise refused("purpose", f" = {purpose[:40]!r}: must be one of {', '.join(PURPOSES)}")
    return upload.file_name, purpose
