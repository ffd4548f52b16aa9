"""/v1/feedback."""

from __future__ import annotations

import asyncio

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from front.bodies import Bodies
from front.corrections.asks import MOST_BYTES, CorrectionAsk, example_of
from front.corrections.store import Correction, Corrections
from front.errors import INVALID, ProblemError, json_response
from front.fields import read_body
from front.fine_tuning.submit import check_trains
from front.pages import page_of
from front.tokenizing import Tokenizing
from python_backends.finetuning.datasets import DatasetError, read_examples
from python_backends.settings import Settings

PATH = "/v1/feedback"


class CorrectionRoutes:
    def __init__(
        self, settings: Settings, corrections: Corrections, bodies: Bodies, tokenizing: Tokenizing
    ) -> None:
        self._settings = settings
        self._corrections = corrections
        self._bodies = bodies
        self._tokenizing = tokenizing
        self.routes = [
            Route(PATH, self._add, methods=["POST"]),
            Route(PATH, self._list),
            Route(f"{PATH}/{{name}}", self._delete, methods=["DELETE"]),
        ]

    async def _add(self, request: Request) -> Response:
        ask = read_body(await self._bodies.read(request), CorrectionAsk)
        if not self._settings.front.corrections:
            raise ProblemError(400, "front.corrections = 0: this server takes none", "corrections_are_off")
        check_trains(self._settings)
        return json_response(await asyncio.to_thread(self._added, ask))

    def _added(self, ask: CorrectionAsk) -> Correction:
        """Raises ProblemError."""
        prompt, example = example_of(ask)
        line = msgspec.json.encode(example)
        if len(line) > MOST_BYTES:
            said = f"messages or prompt, correction: {len(line)} bytes together: must be at most {MOST_BYTES}"
            raise ProblemError(400, said, INVALID)
        try:
            read_examples([line], self._tokenizing.door)
            return self._corrections.add(prompt, example)
        except DatasetError as error:
            raise ProblemError(400, str(error).removeprefix("line 1: "), INVALID) from None
        except OSError as error:
            said = f"the correction can't be kept (front.directory): {error.strerror}"
            raise ProblemError(500, said, "failed", kind="server_error") from error

    async def _list(self, request: Request) -> Response:
        return json_response(page_of(await asyncio.to_thread(self._corrections.all), request))

    async def _delete(self, request: Request) -> Response:
        name = request.path_params["name"]
        await asyncio.to_thread(self._corrections.delete, name)
        return json_response({"id": name, "object": "correction", "deleted": True})
