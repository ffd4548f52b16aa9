"""A program in a terminal of its own, for tests and pictures: what a person types, and what they see."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Sequence

from tests.support.server.serving import ROOT


class Terminal:
    def __init__(self, command: Sequence[str]) -> None:
        self._end, theirs = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *command],  # its controlling terminal: Ctrl-C is a signal
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=ROOT,
            env=environment,
        )
        os.close(theirs)
        self.seen = ""
        self._told = 0  # how much of it has been waited for

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, text: str, timeout_s: float = 240) -> None:
        """Until `text` has come, behind what was waited for before. Raises AssertionError."""
        end_s = time.monotonic() + timeout_s
        while (found := self.seen.find(text, self._told)) < 0:
            ready, _, _ = select.select([self._end], [], [], max(0, end_s - time.monotonic()))
            assert ready, f"{text!r} did not come, but {self.seen[self._told :]!r}"
            self.seen += os.read(self._end, 4096).decode(errors="replace")
        self._told = found + len(text)

    def close(self) -> int:
        """Its exit code; a program that stays is ended."""
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            return self.process.wait()
        finally:
            os.close(self._end)
