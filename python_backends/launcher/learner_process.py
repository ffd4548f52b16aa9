"""The process of the learner, for the supervisor. No request depends on it."""

from __future__ import annotations

from python_backends.launcher.companion import Companion
from python_backends.launcher.run_files import LEARNER, RunFiles

LONGEST_PAUSE_S = 300.0


class LearnerProcess(Companion):
    def __init__(self, files: RunFiles) -> None:
        super().__init__(LEARNER, "python_backends.learner", files, LONGEST_PAUSE_S)
