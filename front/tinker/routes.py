"""/api/v1, as Tinker's SDK asks."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from client.async_client import AsyncClient
from front.bodies import BODY_BYTES, Bodies, TooLargeError
from front.errors import ProblemError, json_response, refused
from front.fields import read_body
from front.fine_tuning.submit import check_trains
from front.model import Model
from front.tinker import bodies as asked
from front.tinker.data import head_of, learn_of, read_request
from front.tinker.futures import Futures
from front.tinker.sampling import SampleAsk, question_of, sampled
from front.tinker.sessions import Sampler, Sessions
from front.tinker.training import Trained, new_job, shape_of
from python_backends.nouns import asks
from python_backends.settings import Settings

API = "/api/v1"
MOST_AT_ONCE = 64  # samples in the ensemble; others wait here
MOST_DROPPED = 64 << 20  # bytes of a body that is too large: the SDK asks again if its connection is reset
CONFIG = {  # of the client
    "fwdbwd_max_chunk_bytes_count": BODY_BYTES // 2,
    "fwdbwd_max_chunk_len": 1024,
    "parallel_fwdbwd_chunks": False,  # else the first is not sent when another is refused, and it waits
    "use_pyqwest_transport": False,  # its default transport needs a newer OpenTelemetry than this server has
}
S = TypeVar("S", bound=Struct)
NO_HEAD = "this server trains no adapter of the head: train_unembed is ignored"


class TinkerRoutes:
    def __init__(self, settings: Settings, model: Model, client: AsyncClient, bodies: Bodies) -> None:
        self._settings, self._model, self._client, self._bodies = settings, model, client, bodies
        self.sessions = Sessions(settings.adapters_directory)
        self._futures = Futures(self.sessions, model, settings.adapters_directory)
        self._gate = asyncio.Semaphore(MOST_AT_ONCE)
        posts = {
            "client/config": self._said(CONFIG),
            "client/dynamic_config": self._said({}),
            "telemetry": self._said({"status": "accepted"}),
            "create_session": self._create_session,
            "session_heartbeat": self._heartbeat,
            "sessions/{name}/finish": self._finish,
            "create_model": self._create_model,
            "get_info": self._info,
            "forward_backward": self._learn,
            "optim_step": self._step,
            "save_weights_for_sampler": self._save,
            "save_weights": self._save_state,
            "load_weights": self._load_state,
            "weights_info": self._state_info,
            "create_sampling_session": self._create_sampler,
            "asample": self._sample,
            "retrieve_future": self._retrieve,
        }
        self.routes = [Route(f"{API}/{name}", work, methods=["POST"]) for name, work in posts.items()]
        self.routes += [
            Route(f"{API}/healthz", self._said({"status": "ok"})),
            Route(f"{API}/get_server_capabilities", self._capabilities),
            Route(f"{API}/samplers/{{name}}", self._sampler),
        ]

    def _said(self, what: dict[str, Any]) -> Callable[[Request], Any]:
        async def endpoint(_request: Request) -> Response:
            return json_response(what)

        return endpoint

    # --- sessions

    async def _create_session(self, _request: Request) -> Response:
        check_trains(self._settings)
        if self._settings.front.processes > 1:
            said = f"front.processes = {self._settings.front.processes}: Tinker's interface needs 1"
            raise ProblemError(400, said, "unsupported_settings")
        session = self.sessions.begin()
        found = {"type": "create_session", "session_id": session.id, "warning_message": NO_HEAD}
        return json_response(found)

    async def _heartbeat(self, request: Request) -> Response:
        self.sessions.hear((await self._read(request, asked.SessionAsk)).session_id)
        return json_response({"type": "session_heartbeat"})

    async def _finish(self, request: Request) -> Response:
        session = self.sessions.find(request.path_params["name"])
        await self.sessions.end(session)
        return json_response({})

    async def _capabilities(self, _request: Request) -> Response:
        names, most = self._model.names, self._model.max_tokens
        found = [{"model_name": name, "max_context_length": most} for name in names]
        return json_response({"supported_models": found})

    # --- models in training

    async def _create_model(self, request: Request) -> Response:
        ask = await self._read(request, asked.ModelAsk)
        asked.check_model(ask, self._model.names)
        session = self.sessions.find(ask.session_id)
        name = f"{session.id}:train:{ask.model_seq_id}"
        if name not in session.models:
            self.sessions.check_models()
            job = await asyncio.to_thread(new_job, self._settings, ask.lora_config)
            session.models[name] = Trained(name, job, ask.lora_config.rank)
        return _promise(name, 0)

    async def _info(self, request: Request) -> Response:
        model = self.sessions.model((await self._read(request, asked.OfModel)).model_id)
        name = self._model.name
        found = {"model_id": model.id, "model_name": name, "is_lora": True, "lora_rank": model.rank}
        return json_response({"type": "get_info", "model_data": {"model_name": name}, **found})

    async def _learn(self, request: Request) -> Response:
        begun = b""
        try:
            begun = await self._bodies.read(request, MOST_DROPPED)
            given = read_request(begun)
        except ProblemError as error:
            await self._leave(head_of(error.begun if isinstance(error, TooLargeError) else begun))
            raise
        most, num_rows = self._model.max_tokens, self._model.checkpoint.num_rows
        return await self._ask(given.model_id, given.seq_id, lambda: learn_of(given, most, num_rows))

    async def _step(self, request: Request) -> Response:
        ask = await self._read_ask(request, asked.StepAsk)
        return await self._ask(ask.model_id, ask.seq_id, lambda: asked.step_of(ask))

    async def _save(self, request: Request) -> Response:
        ask = await self._read_ask(request, asked.SaveAsk)

        def made() -> asks.Publish:
            if ask.path is not None:
                asked.check_name(ask.path)
            if ask.kind != "snapshot":
                raise refused("kind", ": must be snapshot", asked.UNSUPPORTED)
            asked.check_stays(ask.ttl_seconds)
            self.sessions.model(ask.model_id).note_save(ask)
            return asks.Publish(ask.path or "")

        return await self._ask(ask.model_id, ask.seq_id, made)

    async def _save_state(self, request: Request) -> Response:
        ask = await self._read_ask(request, asked.SaveStateAsk)

        def made() -> asks.SaveState:
            asked.check_name(ask.path)
            asked.check_stays(ask.ttl_seconds)
            return asks.SaveState(ask.path)

        return await self._ask(ask.model_id, ask.seq_id, made)

    async def _load_state(self, request: Request) -> Response:
        ask = await self._read_ask(request, asked.LoadStateAsk)
        made = lambda: asks.LoadState(*asked.place_of(ask.path), ask.optimizer)  # noqa: E731
        return await self._ask(ask.model_id, ask.seq_id, made)

    async def _state_info(self, request: Request) -> Response:
        job_id, _ = asked.place_of((await self._read(request, asked.StateAsk)).tinker_path)
        shape = await asyncio.to_thread(shape_of, self._settings, job_id)
        name = self._model.name
        return json_response({"base_model": name, "is_lora": True, "train_unembed": False, **shape})

    async def _read_ask(self, request: Request, kind: type[S]) -> S:
        """As `_read`; one that is refused leaves its number to nothing."""
        body = await self._bodies.read(request)
        try:
            return read_body(body, kind)
        except ProblemError:
            with contextlib.suppress(ProblemError):
                await self._leave(read_body(body, asked.Numbered))
            raise

    async def _leave(self, refused: asked.Numbered | None) -> None:
        """Its number to nothing, if it has one."""
        if refused is not None:
            with contextlib.suppress(ProblemError):
                model = self.sessions.model(refused.model_id)
                await asyncio.to_thread(model.ask, refused.seq_id, asks.Nothing())

    async def _ask(self, name: str, number: int, make: Callable[[], asks.Ask]) -> Response:
        """One that is refused leaves its number to nothing: the ones after it are not kept waiting."""
        model = self.sessions.model(name)
        try:
            ask = make()
        except ProblemError:
            await asyncio.to_thread(model.ask, number, asks.Nothing())
            raise
        await asyncio.to_thread(model.ask, number, ask)
        return _promise(name, number)

    # --- samples

    async def _create_sampler(self, request: Request) -> Response:
        ask = await self._read(request, asked.SamplerAsk)
        session = self.sessions.find(ask.session_id)
        wanted = asked.adapter_of(ask.model_path) if ask.model_path is not None else ask.base_model
        adapter = self._model.adapter(wanted)
        name = session.add_sampler(ask.sampling_session_seq_id, Sampler(adapter, ask.model_path))
        return json_response({"type": "create_sampling_session", "sampling_session_id": name})

    async def _sampler(self, request: Request) -> Response:
        name = request.path_params["name"]
        sampler = self.sessions.sampler(name)
        found = {"sampler_id": name, "base_model": self._model.name, "model_path": sampler.model_path}
        return json_response(found)

    async def _sample(self, request: Request) -> Response:
        ask = await self._read(request, SampleAsk)
        sampler = self.sessions.sampler(ask.sampling_session_id)
        question = question_of(ask, sampler.adapter)
        name = f"{ask.sampling_session_id}:{ask.seq_id}"
        session = self.sessions.find(ask.sampling_session_id)
        session.begin_sample(name, lambda: sampled(self._client, self._gate, ask, question))
        names = [f"{name}:{index}" for index in range(ask.num_samples)]
        return json_response({"request_id": name, "sample_sequence_ids": names})

    async def _retrieve(self, request: Request) -> Response:
        return await self._futures.retrieve((await self._read(request, asked.FutureAsk)).request_id)

    async def _read(self, request: Request, kind: type[S]) -> S:
        return read_body(await self._bodies.read(request), kind)


def _promise(model: str, number: int) -> Response:
    return json_response({"request_id": f"{model}:{number}"})
