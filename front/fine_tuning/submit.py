"""Makes a job by the command line, in a process of its own: it encodes every line of the training file, and
needs libraries that the front leaves out.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from front.errors import INVALID, ProblemError
from front.fine_tuning.asks import FIELDS
from python_backends.linux.files import is_writable
from python_backends.settings import ROOT, Settings

log = logging.getLogger("gapless.front")

OPTION = re.compile(r"--([a-z-]+)(?= )")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}  # the engine has the processors


def check_trains(settings: Settings) -> None:
    """Raises ProblemError where this server trains nothing, or could not serve what it has trained."""
    directory = settings.adapters_directory
    if directory is None:
        why = "adapters.directory is not set"
    elif not settings.finetuning.enabled:
        why = "finetuning.enabled is not set"
    elif not is_writable(directory):
        why = "adapters.directory can't be written"
    else:
        return
    raise ProblemError(400, f"this server trains nothing, because {why}", "training_is_off")


class Submitting:
    """One after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = list(_words_of(settings))
        self._turn = asyncio.Lock()

    async def submit(self, training_file: Path, options: list[str]) -> dict[str, Any]:
        """Returns the fields of the new job. Raises ProblemError."""
        words = ["submit", str(training_file), "--detach", "--json", *options]
        async with self._turn:
            process = await asyncio.create_subprocess_exec(
                *("nice", "-n", "10", sys.executable, "-m", "commands.finetune", *self._settings, *words),
                cwd=ROOT,
                env={**os.environ, **ONE_THREAD},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            try:
                said, errors = await process.communicate()
            finally:
                if process.returncode is None:  # the front ends
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            is_of_server = process.returncode == os.EX_IOERR
            raise _problem(errors.decode(errors="replace"), training_file, is_of_server)
        fields: dict[str, Any] = msgspec.json.decode(said)
        return fields


def _words_of(settings: Settings) -> Iterator[str]:
    for section, values in dataclasses.asdict(settings).items():
        for name, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else value
            yield from ("--set", f"{section}.{name}={text}")


def _problem(errors: str, training_file: Path, is_of_server: bool) -> ProblemError:
    lines = errors.strip().splitlines()
    if is_of_server or not lines or "Traceback" in errors:
        log.error("a job could not be made: %s", errors)
        said = "the job could not be made; the log of the front says more"
        return ProblemError(500, said, "failed", kind="server_error")
    said = lines[-1]
    if said.startswith(f"{training_file}: "):
        said = said.removeprefix(f"{training_file}: ")
        return ProblemError(400, f"training_file: {said}", "invalid_training_file", "training_file")
    if (found := OPTION.match(said)) is not None and found[1] in FIELDS:
        name = FIELDS[found[1]]
        return ProblemError(400, f"{name} = {said[found.end() + 1 :]}", INVALID, name)
    return ProblemError(400, said, INVALID)
