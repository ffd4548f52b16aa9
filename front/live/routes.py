"""The routes of the page: the stream that it reads, and what its button asks for."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from front.bodies import Bodies
from front.errors import json_response
from front.live.demo import check_origin, kill, victim_in
from front.live.glance import Glance
from front.queue import Queue
from front.responses import Events, Manner
from python_backends.watching.board import Board
from python_backends.watching.launcher_record import read_restarts

ENDLESS = Manner(end=b"")


class Live:
    def __init__(self, queue: Queue, bodies: Bodies, board: Board, demo: bool) -> None:
        """`demo`: a page may kill an instance."""
        self._queue = queue
        self._bodies = bodies
        self._glance = Glance(queue.now, lambda: read_restarts(board)[1], demo)
        self.routes = [Route("/glance", self._watch)]
        if demo:
            self.routes.append(Route("/glance/kill", self._kill, methods=["POST"]))

    def end(self) -> None:
        """Ends the streams of pages: the process is about to end."""
        self._glance.end()

    async def _watch(self, _request: Request) -> Response:
        return Events(self._glance.watch(), ENDLESS)

    async def _kill(self, request: Request) -> Response:
        check_origin(request.headers)
        number = victim_in(await self._bodies.read(request))
        kill(await self._queue.now(), number)
        return json_response({"killed": number})
