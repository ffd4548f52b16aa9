"""What was asked for, when it is there: of a number of a model in training, or of a sampler."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from starlette.responses import Response

from front.errors import ProblemError, json_response
from front.model import Model
from front.tinker.bodies import state_path
from front.tinker.data import output_of
from front.tinker.sessions import Sampler, Session, Sessions
from front.tinker.training import FailedError, Trained
from python_backends.finetuning import ask_files
from python_backends.nouns import asks

HOLD_S = 30.0  # an ask for what is not there; clients ask again after 45 s
LOOK_EVERY_S, CHECK_EVERY_S = 0.01, 1.0
SERVED_S = 30.0  # within which instances take an adapter, or never
T = TypeVar("T")
PROTOBUF = "application/x-protobuf"


class Futures:
    def __init__(self, sessions: Sessions, model: Model, adapters: Path | None) -> None:
        self._sessions = sessions
        self._model = model
        self._adapters = adapters

    async def retrieve(self, request_id: str) -> Response:
        """Raises ProblemError."""
        owner, _, number = request_id.rpartition(":")
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise ProblemError(404, f"{request_id[:64]!r}: there is no such request", "not_found")
        session = self._sessions.find(owner)
        try:
            if owner in session.models:
                return await self._of_model(session, session.models[owner], int(number))
            return await _of_sample(session, request_id)
        except FailedError as error:
            return json_response({"error": str(error), "category": "user" if error.by_caller else "server"})
        except TimeoutError:
            said = {"type": "try_again", "request_id": request_id, "queue_state": "active"}
            return json_response(said, 408)

    async def _of_model(self, session: Session, model: Trained, number: int) -> Response:
        """Raises FailedError and TimeoutError."""
        if number == 0:
            return json_response({"type": "create_model", "model_id": model.id})
        until_s = time.monotonic() + HOLD_S
        check = partial(model.check, number)
        match answer := await _until(lambda: model.answer(number), check, until_s):
            case asks.Learned():
                return Response(output_of(answer), media_type=PROTOBUF)
            case asks.Stepped():
                return json_response({"metrics": {"grad_norm": answer.norm}})
            case asks.Published():
                return json_response(await self._saved(session, model, number, answer.adapter, until_s))
            case asks.Saved():
                return json_response({"type": "save_weights", "path": state_path(model.job.id, answer.name)})
            case asks.Loaded():
                return json_response({"type": "load_weights"})
            case asks.Refused():
                raise FailedError(answer.error, True)
        raise FailedError("it was refused when it was asked for", True)

    async def _saved(
        self, session: Session, model: Trained, number: int, adapter: str, until_s: float
    ) -> dict[str, Any]:
        """When it can be asked for. Raises FailedError and TimeoutError."""
        check = partial(self._check_served, model, number, adapter)
        await _until(lambda: self._is_served(adapter) or None, check, until_s)
        ask = model.saves[number]
        kind = {"type": "save_weights_for_sampler"}
        path = f"tinker://{model.id}/sampler_weights/{adapter}"
        if ask.path is not None:
            return {**kind, "path": path}
        name = session.add_sampler(ask.sampling_session_seq_id, Sampler(adapter, path))
        return {**kind, "sampling_session_id": name}

    def _check_served(self, model: Trained, number: int, adapter: str) -> None:
        """Raises FailedError if the adapter will not be served, and OSError."""
        model.check(number)
        name, _, version = adapter.partition("@")
        if self._adapters is not None and not (self._adapters / name / version).is_dir():
            raise FailedError(f"{adapter}: it was removed before it could be asked for", True)
        if ask_files.answered_s(model.job.directory, number) > SERVED_S:
            raise FailedError(f"{adapter}: the instance did not take it; its log says why", False)

    def _is_served(self, adapter: str) -> bool:
        return any(adapter == each.full_name for each in self._model.adapters)


async def _of_sample(session: Session, name: str) -> Response:
    """Raises FailedError, TimeoutError and ProblemError."""
    task = session.samples.get(name)
    if task is None:
        raise ProblemError(404, f"{name[:64]!r}: there is no such sample", "not_found")
    done, _ = await asyncio.wait({task}, timeout=HOLD_S)
    if not done:
        raise TimeoutError
    found = task.result()
    if isinstance(found, ProblemError):
        raise FailedError(str(found), found.status < 500)
    return Response(found, media_type=PROTOBUF)


async def _until(find: Callable[[], T | None], check: Callable[[], None], until_s: float) -> T:
    """What `find` gives when it is not None. Raises what `check` raises, and TimeoutError."""
    check_s = time.monotonic() + CHECK_EVERY_S
    while (found := find()) is None:
        now_s = time.monotonic()
        if now_s > until_s:
            raise TimeoutError
        if now_s > check_s:
            check_s = now_s + CHECK_EVERY_S
            check()
        await asyncio.sleep(LOOK_EVERY_S)
    return found
