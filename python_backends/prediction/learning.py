"""When to learn, from which observations, and the learning itself. Called by the learner every few minutes
(Magnus: every three).

A forest is grown when there are enough observations for a first one, when enough predictions since the last
one were wrong, or when there are twice as many observations; the regressions when there is a tenth more
answers. All in a process of its own, so that its memory is freed
and it can be killed safely.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

from python_backends.nouns.stages import STAGES
from python_backends.prediction.forest import grow
from python_backends.prediction.request_log import RequestLog
from python_backends.prediction.stage_models import MIN_ANSWERS, learned_stages
from python_backends.prediction.versions import Learned, Version, existing, next_number, publish

MIN_OBSERVATIONS = 100  # for a first forest
MIN_WRONG = 10  # wrong predictions since the last forest, for another one
MAX_WRONG, MAX_ORDINARY = 2000, 2000  # observations of one fit, which takes some seconds of one processor
MIN_MORE, MORE = 25, 0.1  # answers more than the last regressions were learned from, for others
MAX_FIT_S = 120  # of a processor
MAX_WAIT_S = 2 * 3600.0  # a fit that hangs

Fit = Callable[[], int | None]  # its exit code; None: it is not over


def is_due(log: RequestLog, encoder: str, last: Version | None) -> bool:
    known = log.num_lessons(encoder)
    if last is None or last.encoder != encoder:
        return known >= MIN_OBSERVATIONS
    if log.num_lessons(encoder, _seen(log, last), wrong_only=True) >= MIN_WRONG:
        return True
    return known >= 2 * last.num_observations and last.num_observations < MAX_WRONG + MAX_ORDINARY


def are_regressions_due(log: RequestLog, last: Version | None) -> bool:
    if last is None:
        return log.num_known() >= MIN_ANSWERS
    return log.num_known(_seen(log, last)) >= max(MIN_MORE, MORE * last.num_observations)


def _seen(log: RequestLog, last: Version) -> int:
    """The id of the last answer that `last` was learned from; 0 if it is of another log: the ids of a new one
    begin again, and those of one that was restored are behind.
    """
    return last.last_id if last.last_id <= log.last_id() else 0


def learn_regressions(directory: Path) -> Version | None:
    """The next regressions, from the log, become the current ones. None if there is nothing to learn from."""
    started_s = time.process_time()
    log = RequestLog(directory)
    last_id = log.last_id()
    known = {stage: found for stage in STAGES if (found := log.known(stage)) is not None}
    log.close()
    learned = learned_stages(known)
    if not learned.models:
        return None
    number, most = next_number(directory, Learned.REGRESSIONS), max(len(each) for each in known.values())
    fit_s = round(time.process_time() - started_s, 2)
    version = Version(number, time.time(), fit_s, most, "", last_id, Learned.REGRESSIONS)
    publish(directory, version, learned.save)
    return version


def learn(directory: Path, encoder: str) -> Version | None:
    """Grows the next version from the log and makes it the current one.
    None if there is nothing to learn from.
    """
    started_s = time.process_time()
    log = RequestLog(directory)
    last_id, lessons = log.last_id(), log.lessons(encoder, MAX_WRONG, MAX_ORDINARY)
    log.close()
    if lessons is None:
        return None
    number = next_number(directory)
    forest = grow(lessons, seed=number)
    version = Version(
        number, time.time(), round(time.process_time() - started_s, 2), len(lessons), encoder, last_id
    )
    publish(directory, version, forest.save)
    return version


def learn_apart(directory: Path, encoder: str) -> Fit:
    """What is due, in a process of its own, which this one does not wait for, and kills when it ends."""
    process = multiprocessing.get_context("spawn").Process(
        target=_learn_within, args=(directory, encoder), name="gapless-fit", daemon=True
    )
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    process.start()
    # multiprocessing sends SIGTERM at the end and waits, and what the launcher has started is deaf to that
    atexit.register(process.kill)
    started_s = time.monotonic()

    def code() -> int | None:
        if process.exitcode is None and time.monotonic() - started_s > MAX_WAIT_S:
            process.kill()
            process.join()
        if process.exitcode is not None:
            atexit.unregister(process.kill)
        return process.exitcode

    return code


def _learn_within(directory: Path, encoder: str) -> None:
    """The kernel ends it by SIGXCPU after `MAX_FIT_S` of processor time. Next to others, at low priority,
    these may last for an hour.
    """
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_FIT_S, MAX_FIT_S + 5))
    learn_what_is_due(directory, encoder)


def learn_what_is_due(directory: Path, encoder: str) -> None:
    log = RequestLog(directory)
    due = what_is_due(log, directory, encoder)
    log.close()
    for what in due:
        if what == Learned.FOREST:
            learn(directory, encoder)
        else:
            learn_regressions(directory)


def what_is_due(log: RequestLog, directory: Path, encoder: str) -> list[Learned]:
    """The regressions first: they are quick."""
    due = {
        Learned.REGRESSIONS: are_regressions_due(log, existing(directory, Learned.REGRESSIONS)),
        Learned.FOREST: is_due(log, encoder, existing(directory)),
    }
    return [what for what, is_so in due.items() if is_so]
