"""/v1/fine_tuning/jobs, and the removal of the models that they have made."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from front.bodies import Bodies
from front.errors import ProblemError, json_response
from front.fields import read_body
from front.files.store import Files
from front.fine_tuning.asks import JobAsk, words_of
from front.fine_tuning.removal import remove_adapter
from front.fine_tuning.shown import checkpoints, shown
from front.fine_tuning.submit import Submitting, check_trains
from front.model import Model
from front.pages import page_of
from front.responses import Whole
from python_backends.finetuning import jobs
from python_backends.settings import Settings

PATH = "/v1/fine_tuning/jobs"
ID = re.compile(r"ftjob-[0-9a-f]{1,64}")


class FineTuningRoutes:
    def __init__(
        self, settings: Settings, model: Model, files: Files, bodies: Bodies, submitting: Submitting
    ) -> None:
        self._settings = settings
        self._model = model
        self._files = files
        self._bodies = bodies
        self._submitting = submitting
        self.routes = [
            Route(PATH, self._create, methods=["POST"]),
            Route(PATH, self._list),
            Route(f"{PATH}/{{name}}", self._of_job(self._shown)),
            Route(f"{PATH}/{{name}}/cancel", self._of_job(self._cancelled), methods=["POST"]),
            Route(f"{PATH}/{{name}}/events", self._pages_of_job(lambda job: job.events[::-1])),
            Route(f"{PATH}/{{name}}/checkpoints", self._pages_of_job(checkpoints)),
            Route("/v1/models/{name:path}", self._remove_model, methods=["DELETE"]),
        ]

    async def _create(self, request: Request) -> Response:
        ask = read_body(await self._bodies.read(request), JobAsk)
        check_trains(self._settings)
        options = words_of(ask, self._model.adapter(ask.model))
        file = await asyncio.to_thread(self._files.find, ask.training_file, "training_file")
        return Whole(self._made(self._files.path(file.id), options))

    async def _made(self, training_file: Path, options: list[str]) -> dict[str, Any]:
        """A new job. None is made if the client leaves before. Raises ProblemError."""
        fields = await self._submitting.submit(training_file, options)
        return await asyncio.to_thread(lambda: self._shown(self._find(fields["id"])))

    async def _list(self, request: Request) -> Response:
        def found() -> list[dict[str, Any]]:
            return [self._shown(job) for job in jobs.all_jobs(self._directory)]

        return json_response(page_of(await asyncio.to_thread(found), request))

    def _of_job(self, work: Callable[[jobs.Job], dict[str, Any]]) -> Any:
        async def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            return json_response(await asyncio.to_thread(lambda: work(self._find(name))))

        return endpoint

    def _pages_of_job(self, work: Callable[[jobs.Job], list[dict[str, Any]]]) -> Any:
        async def endpoint(request: Request) -> Response:
            name = request.path_params["name"]
            found = await asyncio.to_thread(lambda: work(self._find(name)))
            return json_response(page_of(found, request, 20 if "events" in request.url.path else 10))

        return endpoint

    async def _remove_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name in self._model.names:
            raise ProblemError(403, f"{name} is the model that is served", "not_removable", "model")
        adapters = self._settings.adapters_directory
        await asyncio.to_thread(remove_adapter, name, adapters, self._directory)
        return json_response({"id": name, "object": "model", "deleted": True})

    def _shown(self, job: jobs.Job) -> dict[str, Any]:
        return shown(job, {adapter.full_name for adapter in self._model.adapters})

    def _cancelled(self, job: jobs.Job) -> dict[str, Any]:
        try:
            job.cancel()
        except jobs.JobError as error:
            raise ProblemError(400, str(error), "job_has_ended") from None
        return self._shown(self._find(job.id))

    def _find(self, name: str) -> jobs.Job:
        """Raises ProblemError."""
        try:
            if ID.fullmatch(name):
                return jobs.find(self._directory, name)
        except jobs.JobError:
            pass  # there is none, or it can't be read
        raise ProblemError(404, f"{name[:64]!r}: there is no such job", "not_found")

    @cached_property
    def _directory(self) -> Path:
        """Of the jobs for the served checkpoint."""
        return jobs.jobs_directory(self._settings)
