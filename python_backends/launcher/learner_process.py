"""The process of the learner, for the supervisor. No request depends on it."""

from __future__ import annotations

from python_backends.launcher.companion import Companion
from python_backends.launcher.run_files import RunFiles
from python_backends.watching.launcher_record import LauncherRecord

LEARNER = "learner"  # its name in the counts of restarts
LONGEST_PAUSE_S = 300.0


class LearnerProcess(Companion):
    def __init__(self, files: RunFiles, record: LauncherRecord) -> None:
        super().__init__(LEARNER, "python_backends.learner", files, record, LONGEST_PAUSE_S)
