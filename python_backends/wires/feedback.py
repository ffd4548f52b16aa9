"""The detokenizer's end of its wire to the scheduler model, whose end is in `SchedulerEnd`."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import zmq

from python_backends.nouns.messages import pack
from python_backends.nouns.request import Feedback, Idle
from python_backends.wires.sockets import address, open_socket

FEEDBACK_EVERY_S = 0.1
MOST_HELD = 32  # a fourth of the windows that may be under way (streams/delivery.py)


class FeedbackEnd:
    """The detokenizer's end: what it found goes to the scheduler model. Any thread may send.

    Every message wakes the scheduler model, and there is one for every window. So feedback that can wait is
    sent together with later feedback.
    """

    def __init__(self, run_directory: Path) -> None:
        self._context = zmq.Context()
        self._socket = open_socket(self._context, zmq.PUSH)
        self._socket.connect(address(run_directory, "feedback"))
        self._lock = threading.Lock()
        self._held: list[Feedback | Idle] = []
        self._sent_s = 0.0

    def send(self, *feedback: Feedback | Idle, can_wait: bool = False) -> None:
        """With what was held before it, in order. What can wait is held if something went out within the last
        FEEDBACK_EVERY_S.

        If much waits it is sent sooner: the scheduler model sends no more windows while too many are not
        confirmed.
        """
        with self._lock:
            self._held += feedback
            now_s = time.monotonic()
            waits = can_wait and now_s - self._sent_s < FEEDBACK_EVERY_S and len(self._held) < MOST_HELD
            if self._held and not waits:
                self._socket.send(pack(tuple(self._held)))
                self._held, self._sent_s = [], now_s

    def close(self) -> None:
        self._context.destroy(linger=0)
