"""The routes, and what holds for all of them: keys, the bound of a body, errors in one shape."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from client.async_client import AsyncClient
from front.anthropic.answer import answer_message
from front.anthropic.errors import PATH
from front.batches.pace import Pace
from front.batches.routes import BatchRoutes
from front.batches.store import BatchStore
from front.batches.work import BatchWork
from front.bodies import Bodies
from front.chat import answer_chat
from front.completions import answer_completion
from front.corrections.routes import CorrectionRoutes
from front.corrections.store import Corrections
from front.corrections.work import CorrectionWork
from front.errors import ProblemError, json_response
from front.failures import HANDLERS, failure
from front.files.routes import FileRoutes
from front.files.store import Files
from front.fine_tuning.routes import FineTuningRoutes
from front.fine_tuning.submit import Submitting
from front.health import Health
from front.keys import Keys, key_in
from front.live.page import is_wanted, page
from front.live.routes import Live
from front.metrics import FrontMetrics
from front.metrics_page import CONTENT_TYPE, Page
from front.model import Model
from front.models import describe, list_models
from front.observed import Observed
from front.open_responses.answer import answer_response
from front.origins import KeylessPages, allow_origins
from front.queue import Queue
from front.shared_metrics import SharedMetrics
from front.tinker.routes import TinkerRoutes
from front.tokenizing import Tokenizing
from python_backends.checkpoint.places import SHORT, place_of
from python_backends.settings import WRITTEN, Settings
from python_backends.watching.launcher_record import is_draining

OPEN = ("/health",)  # without a key
Answer = Callable[[bytes, Model, AsyncClient], Response]
POSTS: dict[str, Answer] = {
    "/v1/chat/completions": answer_chat,
    "/v1/completions": answer_completion,
    "/v1/responses": answer_response,
    PATH: answer_message,
}
BATCHED = ("/v1/chat/completions", "/v1/completions", "/v1/responses")


class App:
    """An ASGI application."""

    def __init__(
        self,
        settings: Settings,
        run_directory: Path,
        model: Model,
        client: AsyncClient,
        keys: Keys,
        number: int = 0,
    ) -> None:
        """`number`: of this front process."""
        self.health = Health(run_directory, settings.server.http_port, model, client)
        self._bodies = Bodies()
        self._model = model
        self._client = client
        self._keys = keys
        self._pages = KeylessPages(settings.front.allowed_origins)
        self._queue = Queue(run_directory)
        metrics = FrontMetrics()
        self.shared_metrics = SharedMetrics(metrics, model.board, number, settings.front.processes)
        self._page = Page(model.name)
        tokenizing = Tokenizing(settings, model)
        kept = WRITTEN / settings.front.directory
        place = partial(place_of, model=settings.model_directory, num_digits=SHORT)
        files, batches = Files(kept / "files"), BatchStore(place(kept / "batches"))
        corrections = Corrections(place(kept / "corrections"))
        submitting = Submitting(settings)
        self.corrections = CorrectionWork(settings, model, corrections, submitting)
        asked = {path: self._asked(POSTS[path]) for path in BATCHED}
        self._pace = Pace(self._queue.now)
        self.batches = BatchWork(batches, files, self._pace, asked)
        self.tinker = TinkerRoutes(settings, model, client, self._bodies)
        self._live = Live(self._queue, self._bodies, model.board, settings.front.demo)
        routes = [  # looked through in this order
            *(Route(path, self._post(answer), methods=["POST"]) for path, answer in POSTS.items()),
            Route("/", self._root),
            Route("/health", self._health),
            Route("/metrics", self._show_metrics),
            Route("/v1/embeddings", self._embeddings, methods=["POST"]),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/v1/requests/{name}", self._one_request),
            Route("/tokenize", self._apart(tokenizing.tokenize), methods=["POST"]),
            Route("/detokenize", self._apart(tokenizing.detokenize), methods=["POST"]),
            Route(f"{PATH}/count_tokens", self._apart(tokenizing.count_message), methods=["POST"]),
            *self._live.routes,
            *FileRoutes(files).routes,
            *FineTuningRoutes(settings, model, files, self._bodies, submitting).routes,
            *CorrectionRoutes(settings, corrections, self._bodies, tokenizing).routes,
            *self.tinker.routes,
            *BatchRoutes(batches, files, self._bodies, BATCHED).routes,
        ]
        self._routes = Starlette(routes=routes, exception_handlers=HANDLERS)
        paths = [route.path for route in routes]
        draining = partial(is_draining, model.board)
        observed = Observed(self._guarded, metrics, self._queue, paths, settings.front.log_requests, draining)
        self._outermost = allow_origins(observed, settings.front.allowed_origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._outermost(scope, receive, send)

    def end(self) -> None:
        """Ends what would go on without end."""
        self._live.end()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = self._refusal(scope["method"], scope["path"], Headers(scope=scope))
        answer = self._routes if problem is None else failure(problem, scope["path"])
        await answer(scope, receive, send)

    def _refusal(self, method: str, path: str, headers: Headers) -> ProblemError | None:
        """Returns why who asks may not; None: it may."""
        if path in OPEN:
            return None
        if not self._keys:
            return self._pages.refusal(headers)
        if is_wanted(method, path, headers) or self._keys.allow(key_in(headers)):
            return None
        said = "no key, or an unknown one: send Authorization: Bearer KEY, or x-api-key: KEY"
        return ProblemError(401, said, "invalid_api_key")

    async def _root(self, request: Request) -> Response:
        """The page for browsers; clients ask for it to find out whether there is a server."""
        if is_wanted(request.method, request.url.path, request.headers):
            return page()
        return json_response({"model": self._model.name}, headers={"vary": "accept"})

    async def _health(self, _request: Request) -> Response:
        healthy = self.health.is_healthy()
        return json_response({"status": "ok" if healthy else "not ready"}, 200 if healthy else 503)

    async def _show_metrics(self, _request: Request) -> Response:
        text = self._page.text(self.shared_metrics.of_all(), await self._queue.status())
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def _embeddings(self, _request: Request) -> Response:
        raise ProblemError(404, "this server has no embeddings: it serves a model that answers", "not_found")

    async def _models(self, _request: Request) -> Response:
        return json_response(list_models(self._model))

    async def _one_model(self, request: Request) -> Response:
        return json_response(describe(self._model, request.path_params["name"]))

    async def _one_request(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = await self._queue.requests(name)
        if found is None:
            said = "the server starts, or is started again; try again later"
            raise ProblemError(503, said, "unavailable", kind="server_error")
        if not found:
            raise ProblemError(404, f"there is no open request {name[:128]!r}", "not_found")
        return json_response({"id": name, "object": "request", "choices": found})

    def _post(self, answer: Answer) -> Any:
        async def endpoint(request: Request) -> Response:
            if is_draining(self._model.board):
                said = "the server is shutting down and takes no new requests"
                raise ProblemError(503, said, "shutting_down", kind="server_error")
            self._pace.see_others()
            return answer(await self._bodies.read(request), self._model, self._client)

        return endpoint

    def _asked(self, answer: Answer) -> Callable[[bytes], Response]:
        return lambda body: answer(body, self._model, self._client)

    def _apart(self, work: Callable[[bytes], Any]) -> Any:
        """What would keep others waiting is done in another thread."""

        async def endpoint(request: Request) -> Response:
            return json_response(await asyncio.to_thread(work, await self._bodies.read(request)))

        return endpoint
