"""The models that tritonserver serves, and their stubs: the processes in which it runs Python models.

The server reports "ready" even if a stub is dead or hangs. So the launcher looks for the stub's process and
for its beats. Called by the server and the supervisor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

from python_backends.linux.pauses import Silence
from python_backends.watching.board import Board

STUBS = ("tokenizer", "scheduler", "detokenizer")  # no request is served unless all of them run
PREDICTOR = "length_predictor"
PROGRAM = "triton_python_backend_stub"
SUSPECT_AFTER_S = 2.0  # without a beat: the server is not ready, but the stub is not killed yet
LEAST_PREDICTOR_S = 60.0  # its priority is so low that its beats may be late
KILL_S = 5.0


class Stubs:
    """The stubs of `models`. To find them, all processes of the machine are searched, so this is done only
    while one is missing.

    A stub without a beat on the board for `dead_after_s` hangs.
    """

    def __init__(self, models: Iterable[str], board: Board, dead_after_s: float) -> None:
        self._models = set(models)
        self._processes: dict[str, psutil.Process] = {}
        self._board = board
        self._dead_after_s = dict.fromkeys(self._models, dead_after_s)
        if PREDICTOR in self._models:
            self._dead_after_s[PREDICTOR] = max(dead_after_s, LEAST_PREDICTOR_S)
        self._silences = {model: Silence() for model in self._models}

    def dead(self, server: int) -> set[str]:
        """Returns the names of the models that have no stub process below the server (a process id)."""
        if self._models - {
            model for model, stub in self._processes.items() if stub.is_running() and _models_of(stub)
        }:
            self._processes = _find(server)
        return self._models - self._processes.keys()

    def look(self) -> None:
        """Reads the beats of all stubs, while they are loaded. To be called several times a second."""
        for model, silence in self._silences.items():
            silence.look(self._board.sign(model))

    def forget(self, models: Iterable[str]) -> None:
        """Counts the silence of these models from zero, because they have been or will be loaded."""
        for model in models:
            self._silences[model] = Silence()

    @property
    def suspects(self) -> set[str]:
        """Names of the models that are silent, of those that every request needs."""
        return {
            model
            for model in STUBS
            if model in self._models and self._silences[model].seconds > SUSPECT_AFTER_S
        }

    @property
    def hung(self) -> set[str]:
        """Names of the models that have been silent for too long."""
        return {model for model in self._models if self._silences[model].seconds > self._dead_after_s[model]}

    def kill(self, model: str) -> None:
        """Kills a stub that hangs: Triton can't unload its model while the process hangs."""
        with contextlib.suppress(KeyError, psutil.Error):
            self._processes[model].kill()
            self._processes[model].wait(KILL_S)


def _find(server: int) -> dict[str, psutil.Process]:
    try:
        children = psutil.Process(server).children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    return {model: child for child in children for model in _models_of(child)}


def _models_of(process: psutil.Process) -> list[str]:
    """Returns the model that a stub serves, from its command line; empty for other processes."""
    try:
        line = process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []
    if not line or PROGRAM not in line[0]:
        return []
    return [model for model in (*STUBS, PREDICTOR) if any(f"/{model}/" in word for word in line)]
