"""The models that tritonserver serves, and the stubs: the processes in which it runs those of Python.

The server goes on saying "ready" when a stub is dead or hangs. So the launcher looks for the stub's process,
and for its beats. Called by the server and the supervisor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import psutil

from python_backends.linux.pauses import Silence
from python_backends.watching.board import Board

STUBS = ("tokenizer", "scheduler", "detokenizer")  # without any of them nothing is served
PREDICTOR = "length_predictor"
PROGRAM = "triton_python_backend_stub"
SUSPECT_AFTER_S = 2.0  # without a beat; it is not given up yet, but takes no requests
LEAST_PREDICTOR_S = 60.0  # its priority is so low that its beats may wait
KILL_S = 5.0


class Stubs:
    """Those of `models`. Finding them looks through all processes of the machine, so it is done only while
    one is missing.

    One that has not beaten on the board for `dead_after_s` hangs.
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
        """Names of the models whose stub process below the server, a process id, is gone."""
        if self._models - {
            model for model, stub in self._processes.items() if stub.is_running() and _models_of(stub)
        }:
            self._processes = _find(server)
        return self._models - self._processes.keys()

    def look(self) -> None:
        """One look at the beats of all of them, while they are loaded.
        Looks are to come several times a second.
        """
        for model, silence in self._silences.items():
            silence.look(self._board.sign(model))

    def forget(self, models: Iterable[str]) -> None:
        """These have been loaded just now, or will be."""
        for model in models:
            self._silences[model] = Silence()

    @property
    def suspects(self) -> set[str]:
        """Names of the models which are silent, and without which nothing is served."""
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
        """Ends the stub that hangs: Triton could not unload its model while the process stands still."""
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
    """The model that a stub serves, by its command line."""
    try:
        line = process.cmdline() if process.status() != psutil.STATUS_ZOMBIE else []
    except psutil.Error:
        return []
    if not line or PROGRAM not in line[0]:
        return []
    return [model for model in (*STUBS, PREDICTOR) if any(f"/{model}/" in word for word in line)]
