"""Guides of requests: other threads prepare them before a request gets its slot, and the loop computes
meanwhile.

Owns what is under way. Called by the loop, which the threads wake.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future

from python_backends.guides.errors import GuideError
from python_backends.guides.guides import Guides
from python_backends.guides.prepared import Followed
from python_backends.nouns.messages import Failed, Submit
from python_backends.nouns.moves import Reserve
from python_backends.nouns.request import Ids, Request
from python_backends.scheduling.guides import MOST_MISSING
from python_backends.scheduling.slot_scheduler import SlotScheduler
from python_backends.scheduling.state.sequence import Sequence

log = logging.getLogger("gapless.instance")

Life = tuple[int, int]  # a request, and its epoch


class GuidedRequests:
    def __init__(self, guides: Guides | None = None, wake: Callable[[], None] = lambda: None) -> None:
        """`guides`: None where the engine follows none; then no request waits here."""
        self._guides, self._wake = guides, wake
        self._preparing: dict[Life, Future[None]] = {}

    @property
    def is_preparing(self) -> bool:
        return bool(self._preparing)

    def is_ready(self, sequence: Sequence) -> bool:
        """Whether it can get a slot, and the loop has little to do for that."""
        if self._guides is None:
            return True
        return self._guides.is_prepared(_followed(sequence.request, _output(sequence)))

    def is_compiled(self, request: Request) -> bool:
        """Whether it can come in the midst of its answer: a step would wait for its guide."""
        grammar = request.sampling.grammar
        return self._guides is None or not grammar or self._guides.is_compiled(grammar)

    def expect(self, message: Submit | Reserve) -> None:
        """A request that will want a slot: where few others are prepared, it is, at once."""
        followed = _followed(message.request, message.delivered)
        if self._guides is None or not followed.grammar or len(self._preparing) >= MOST_MISSING:
            return
        if not self._guides.is_prepared(followed):
            self._prepare(self._guides, (message.request.request_id, message.request_epoch), followed)

    def forget_all(self) -> None:
        self._preparing.clear()

    def step(self, scheduler: SlotScheduler) -> list[Failed]:
        """Once a turn, before the next plan. Returns the requests whose guide can't be followed; they have
        ended here.
        """
        if self._guides is None:
            return []
        failed = self._take_done(scheduler) if self._preparing else []
        for sequence in scheduler.guides.missing:
            life = sequence.request_id, sequence.request_epoch
            if life not in self._preparing:
                self._prepare(self._guides, life, _followed(sequence.request, _output(sequence)))
        return failed

    def _prepare(self, guides: Guides, life: Life, followed: Followed) -> None:
        self._preparing[life] = guides.prepare(followed)
        self._preparing[life].add_done_callback(lambda _: self._wake())

    def _take_done(self, scheduler: SlotScheduler) -> list[Failed]:
        done = {life: future for life, future in self._preparing.items() if future.done()}
        failed = []
        for (request_id, request_epoch), future in done.items():
            del self._preparing[request_id, request_epoch]
            error = future.exception()
            if error is not None and not isinstance(error, GuideError):  # a fault of ours
                log.error("request %d: its guide could not be prepared", request_id, exc_info=error)
                error = GuideError("could not be prepared; the server's log says more")
            if error is not None and scheduler.cancel(request_id, request_epoch):
                failed.append(Failed(request_id, f"guided_decoding_guide: {error}", request_epoch))
        if done:
            scheduler.guides_prepared()
        return failed


def _output(sequence: Sequence) -> Ids:
    return sequence.tokens[sequence.num_prompt_tokens :]


def _followed(request: Request, output: Ids) -> Followed:
    sampling = request.sampling
    return Followed(sampling.grammar, output.tolist(), sampling.stop_ids)
