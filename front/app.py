"""The routes, and what holds for all of them: keys, the bound of a body, request ids, errors in one shape."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from client.async_client import AsyncClient
from front.anthropic.answer import answer_message
from front.anthropic.errors import PATH
from front.chat import answer_chat
from front.completions import answer_completion
from front.errors import ProblemError, json_response
from front.failures import HANDLERS, failure
from front.health import is_healthy
from front.keys import Keys
from front.model import Model
from front.models import describe, list_models
from front.open_responses.answer import answer_response
from front.tokenizing import Tokenizing
from python_backends.settings import Settings

REQUEST_ID = "x-request-id"
REQUEST_IDS = (REQUEST_ID, "request-id")  # OpenAI's, Anthropic's
SANE_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
OPEN = ("/health",)  # without a key
BODY_BYTES = 1 << 20  # of a body, besides twice the bytes of the longest prompt
Answer = Callable[[bytes, Model, AsyncClient], Response]
POSTS: dict[str, Answer] = {
    "/v1/chat/completions": answer_chat,
    "/v1/completions": answer_completion,
    "/v1/responses": answer_response,
    PATH: answer_message,
}


class App:
    """An ASGI application."""

    def __init__(
        self, settings: Settings, run_directory: Path, model: Model, client: AsyncClient, keys: Keys
    ) -> None:
        self._most_bytes = BODY_BYTES + 2 * settings.limits.max_prompt_bytes
        self._http_port = settings.server.http_port
        self._run_directory = run_directory
        self._model = model
        self._client = client
        self._keys = keys
        tokenizing = Tokenizing(settings, model)
        routes = [
            Route("/", self._root),
            Route("/health", self._health),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._one_model),
            Route("/tokenize", self._apart(tokenizing.tokenize), methods=["POST"]),
            Route("/detokenize", self._apart(tokenizing.detokenize), methods=["POST"]),
            Route(f"{PATH}/count_tokens", self._apart(tokenizing.count_message), methods=["POST"]),
            *(Route(path, self._post(answer), methods=["POST"]) for path, answer in POSTS.items()),
        ]
        self._routes = Starlette(routes=routes, exception_handlers=HANDLERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        asked = headers.get(REQUEST_ID, "")
        request_id = asked if SANE_ID.fullmatch(asked) else secrets.token_hex(16)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                for name in REQUEST_IDS:
                    MutableHeaders(scope=message)[name] = request_id
            await send(message)

        if scope["path"] not in OPEN and not self._keys.allow(key_in(headers)):
            said = "no key, or an unknown one: send Authorization: Bearer KEY, or x-api-key: KEY"
            problem = ProblemError(401, said, "invalid_api_key")
            await failure(problem, scope["path"])(scope, receive, send_with_id)
            return
        await self._routes(scope, receive, send_with_id)

    async def _root(self, _request: Request) -> Response:
        """Clients ask for it to find out whether there is a server."""
        return json_response({"model": self._model.name})

    async def _health(self, _request: Request) -> Response:
        healthy = is_healthy(self._run_directory, self._http_port, self._model)
        return json_response({"status": "ok" if healthy else "not ready"}, 200 if healthy else 503)

    async def _models(self, _request: Request) -> Response:
        return json_response({"object": "list", "data": list_models(self._model)})

    async def _one_model(self, request: Request) -> Response:
        return json_response(describe(self._model, request.path_params["name"]))

    def _post(self, answer: Answer) -> Any:
        async def endpoint(request: Request) -> Response:
            return answer(await self._body(request), self._model, self._client)

        return endpoint

    def _apart(self, work: Callable[[bytes], Any]) -> Any:
        """What would keep others waiting is done in another thread."""

        async def endpoint(request: Request) -> Response:
            return json_response(await asyncio.to_thread(work, await self._body(request)))

        return endpoint

    async def _body(self, request: Request) -> bytes:
        """Raises ProblemError."""
        if request.headers.get("content-encoding", "identity") != "identity":
            raise ProblemError(400, "content-encoding: must be identity", "unsupported_encoding")
        body, told = bytearray(), request.headers.get("content-length", "0")
        if told.isdecimal() and int(told[:20]) > self._most_bytes:
            raise self._too_large()
        try:
            async for chunk in request.stream():
                body += chunk
                if len(body) > self._most_bytes:
                    raise self._too_large()
        except ClientDisconnect:
            raise ProblemError(400, "the client left", "client_left") from None
        return bytes(body)

    def _too_large(self) -> ProblemError:
        return ProblemError(413, f"the body must have at most {self._most_bytes} bytes", "body_too_large")


def key_in(headers: Headers) -> str:
    """As an Authorization header has it."""
    given = headers.get("authorization", "")
    return given or f"Bearer {headers.get('x-api-key', '')}"
