"""Which requests may enter which instance after one has crashed under them.

A crash names no culprit. After the first one everything re-enters together, and apart from requests that no
crash has touched: if there are several instances, these are in others. A request enters the instance again
that crashed under it, also if it has to wait for it, so that it does not end a second one. Requests that were
in a slot at two crashes are suspects: they re-enter one at a time, each alone in an instance, until it has
come a few tokens past where it stood when the instance died, or has ended. A request that is alone at a crash
is the culprit. Then all requests go on together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from python_backends.nouns.request import Finish
from python_backends.streams.instances import Instances
from python_backends.streams.stream import NO_INSTANCE, Stream

SUSPECT_AFTER = 2  # crashes
CLEARED_AFTER_TOKENS = 4  # past the mark of the last crash
MAX_APART_NS = 30_000_000_000  # after a crash; then a request does not wait for its instance any longer


class Quarantine:
    """Owns the crashes of streams, and which of them is on trial."""

    def __init__(self) -> None:
        self.on_trial: Stream | None = None
        self._is_calm = True  # no open stream has had a crash

    def admissible(
        self, unsubmitted: Iterable[Stream], streams: Iterable[Stream], instances: Instances, now_ns: int
    ) -> list[tuple[Stream, list[int]]]:
        """Those of the unsubmitted that may be submitted now, in order of arrival, each with the instances
        that it may enter. Starts the trial of a suspect if that may begin.
        """
        waiting = sorted(unsubmitted, key=lambda stream: stream.request.arrival_ns)
        self._is_calm = self._is_calm or not any(stream.crashes for stream in streams)
        if self._is_calm:
            return [(stream, instances.ready) for stream in waiting]
        if instances.num_known == 1:
            return self._in_the_only_one(waiting, streams, instances.ready)
        return self._apart(waiting, streams, instances, now_ns)

    def is_calm(self, streams: Iterable[Stream]) -> bool:
        """Whether no trial goes on and no stream must be kept apart: then any stream may enter any
        instance.
        """
        return self._is_calm or (self.on_trial is None and not any(map(is_marked, streams)))

    def acquitted(self) -> Stream | None:
        """The stream on trial if it has passed; it must leave the instance so that the next one is alone."""
        trial = self.on_trial
        if trial is None or not _has_passed(trial):
            return None
        self.on_trial = None
        trial.crashes = 0
        return trial

    def crashed(self, streams: Iterable[Stream], instance: int, now_ns: int) -> Stream | None:
        """Books a crash of `instance` for all streams that held a slot there. Returns the culprit if one was
        alone.
        """
        present = [stream for stream in streams if stream.instance == instance]
        trial = self.on_trial
        if trial is not None and trial.instance == instance:
            self.on_trial = None
            if trial.finish == Finish.RUNNING:
                return trial
        # the message that a request got a slot may be lost with the instance
        for stream in [stream for stream in present if stream.seated] or present:
            stream.crashes += 1
            stream.crash_mark = len(stream.tokens)
            stream.crashed_at = instance
            stream.crashed_ns = now_ns
            self._is_calm = False
        return None

    def _in_the_only_one(
        self, waiting: list[Stream], streams: Iterable[Stream], ready: list[int]
    ) -> list[tuple[Stream, list[int]]]:
        """All enter the only instance that takes requests; suspects when no other stream is there, and
        first.
        """
        if self.on_trial is not None:
            return []
        suspects = [stream for stream in waiting if stream.crashes >= SUSPECT_AFTER]
        if not suspects:
            return [(stream, ready) for stream in waiting]
        if any(stream.instance in ready for stream in streams):
            return []
        self.on_trial = suspects[0]
        return [(suspects[0], ready)]

    def _apart(
        self, waiting: list[Stream], streams: Iterable[Stream], instances: Instances, now_ns: int
    ) -> list[tuple[Stream, list[int]]]:
        """A suspect enters its instance when that is empty, alone; other marked streams enter theirs when no
        unmarked stream is there; the others enter those that remain.
        """
        open_streams, ready = list(streams), instances.ready
        chosen: list[tuple[Stream, list[int]]] = []
        suspects = [stream for stream in waiting if stream.crashes >= SUSPECT_AFTER]
        place = self._place_of_trial(suspects, open_streams, instances, now_ns)
        if self.on_trial is not None and not self.on_trial.submitted:
            chosen.append((self.on_trial, [place]))
        unmarked = {stream.instance for stream in open_streams if not is_marked(stream)}
        free = [each for each in ready if each not in unmarked and each != place]
        marked_at = {stream.instance for stream in open_streams if is_marked(stream)}
        for stream in waiting:
            if stream.crashes >= SUSPECT_AFTER:
                continue
            if is_marked(stream) and now_ns - stream.crashed_ns < MAX_APART_NS:
                own = stream.crashed_at
                allowed = [each for each in free if each == own] if instances.is_known(own) else free[:1]
                marked_at.update(allowed)
                chosen.append((stream, allowed))
        others = [each for each in ready if each not in marked_at and each != place]
        taken = {stream.request_id for stream, _ in chosen} | {each.request_id for each in suspects}
        chosen += [(stream, others) for stream in waiting if stream.request_id not in taken]
        return [(stream, allowed) for stream, allowed in chosen if allowed]

    def _place_of_trial(
        self, suspects: list[Stream], streams: list[Stream], instances: Instances, now_ns: int
    ) -> int:
        """The instance that is kept for the trial of a suspect, which begins as soon as the instance is
        empty; NO_INSTANCE if none is needed or can be spared yet.
        """
        if self.on_trial is not None:
            return self.on_trial.instance
        if not suspects:
            return NO_INSTANCE
        counts, own = Counter(stream.instance for stream in streams), suspects[0].crashed_at
        may_wait = now_ns - suspects[0].crashed_ns < MAX_APART_NS
        if may_wait and len(instances.ready) < 2:
            return NO_INSTANCE
        if own in instances.ready:
            place = own
        elif may_wait and instances.is_known(own):
            return NO_INSTANCE
        else:
            place = min(instances.ready, key=lambda each: counts[each])
        if not counts[place]:
            self.on_trial = suspects[0]
        return place


def is_marked(stream: Stream) -> bool:
    """Whether it was in a slot at a crash and has not yet come past where it stood."""
    return stream.crashes > 0 and len(stream.tokens) < stream.crash_mark + CLEARED_AFTER_TOKENS


def _has_passed(trial: Stream) -> bool:
    return trial.finish != Finish.RUNNING or len(trial.tokens) >= trial.crash_mark + CLEARED_AFTER_TOKENS
