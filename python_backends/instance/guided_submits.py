"""Requests whose guide is being compiled: the loop submits them when that is done, and computes meanwhile.

Owns them until then. Called by the loop; another thread compiles, and wakes it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from python_backends.guides.errors import GuideError
from python_backends.guides.guides import Compiled, Guides
from python_backends.nouns.messages import ANY_EPOCH, Cancel, Failed, Submit
from python_backends.nouns.moves import Reserve


@dataclass(frozen=True, slots=True)
class _Held:
    message: Submit
    compiled: Future[Compiled]


class GuidedSubmits:
    def __init__(self, guides: Guides | None = None, wake: Callable[[], None] = lambda: None) -> None:
        """`guides`: None where the engine follows none; then no request waits here."""
        self._guides, self._wake = guides, wake
        self._held: dict[int, _Held] = {}  # by request

    def hold(self, message: Submit) -> bool:
        """Whether `message` waits here until its guide is compiled; `take` gives it back."""
        request = message.request
        self._held.pop(request.request_id, None)  # an earlier life of it
        if self._guides is None or not request.sampling.grammar:
            return False
        compiled = self._guides.begin(request.sampling.grammar)
        if compiled.done():
            return False
        self._held[request.request_id] = _Held(message, compiled)
        compiled.add_done_callback(lambda _: self._wake())
        return True

    def expect(self, message: Reserve) -> None:
        """A request will move here: its guide is compiled meanwhile."""
        if self._guides is not None and message.request.sampling.grammar:
            self._guides.begin(message.request.sampling.grammar)

    def cancel(self, message: Cancel) -> None:
        held = self._held.get(message.request_id)
        if held is not None and message.request_epoch in (ANY_EPOCH, held.message.request_epoch):
            del self._held[message.request_id]

    def forget_all(self) -> None:
        self._held.clear()

    def take(self) -> tuple[list[Submit], list[Failed]]:
        """The requests that can be submitted now, in the order in which they came, and those that can't."""
        if not self._held:
            return [], []
        done = [each for each in self._held.values() if each.compiled.done()]
        submits: list[Submit] = []
        failed: list[Failed] = []
        for each in done:
            del self._held[each.message.request.request_id]
            error = each.compiled.exception()
            if error is None:
                submits.append(each.message)
            elif isinstance(error, GuideError):
                failed.append(_failed(each.message, error))
            else:
                raise error
        return submits, failed


def _failed(message: Submit, error: GuideError) -> Failed:
    says = f"guided_decoding_guide: {error}"
    return Failed(message.request.request_id, says, message.request_epoch)
