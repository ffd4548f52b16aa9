"""Which requests may enter an instance that has crashed under them.

A crash names no culprit. After the first one everything re-enters together. Requests that were in a slot at
two crashes are suspects: they re-enter one at a time and alone, each until it has come a few tokens past
where it stood when the instance died, or has ended. A request that is alone at a crash is the culprit. Then
all requests go on together.
"""

from __future__ import annotations

from collections.abc import Iterable

from python_backends.nouns.request import Finish
from python_backends.streams.stream import Stream

SUSPECT_AFTER = 2  # crashes
CLEARED_AFTER_TOKENS = 4  # past the mark of the last crash


class Quarantine:
    def __init__(self) -> None:
        self.on_trial: Stream | None = None

    def admissible(self, unsubmitted: Iterable[Stream], streams: Iterable[Stream]) -> list[Stream]:
        """Those of the unsubmitted that may be submitted now, in order of arrival;
        a trial takes place when none of all is there.
        """
        if self.on_trial is not None:
            return []
        waiting = sorted(unsubmitted, key=lambda stream: stream.request.arrival_ns)
        suspects = [stream for stream in waiting if stream.crashes >= SUSPECT_AFTER]
        if not suspects:
            return waiting
        if any(stream.submitted for stream in streams):
            return []
        self.on_trial = suspects[0]
        return suspects[:1]

    def acquitted(self) -> Stream | None:
        """The stream on trial if it has passed; it must leave the instance so that the next one is alone."""
        trial = self.on_trial
        if trial is None or not _has_passed(trial):
            return None
        self.on_trial = None
        trial.crashes = 0
        return trial

    def crashed(self, streams: Iterable[Stream]) -> Stream | None:
        """Books a crash for all streams that held a slot. Returns the culprit if one was alone."""
        on_trial, self.on_trial = self.on_trial, None
        if on_trial is not None and on_trial.submitted and on_trial.finish == Finish.RUNNING:
            return on_trial
        present = [stream for stream in streams if stream.submitted]
        # the message that a request got a slot may be lost with the instance
        for stream in [stream for stream in present if stream.seated] or present:
            stream.crashes += 1
            stream.crash_mark = len(stream.tokens)
        return None


def _has_passed(trial: Stream) -> bool:
    return trial.finish != Finish.RUNNING or len(trial.tokens) >= trial.crash_mark + CLEARED_AFTER_TOKENS
