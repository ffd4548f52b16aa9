"""The models that tritonserver serves, and the stubs: the processes in which it runs those of Python.

A dead stub shows in nothing but its missing process: the server goes on saying "ready". Called by the server and the supervisor.
"""

from __future__ import annotations

from collections.abc import Iterable

import psutil

STUBS = ("tokenizer", "scheduler", "detokenizer")  # without any of them nothing is served
PREDICTOR = "length_predictor"
PROGRAM = "triton_python_backend_stub"


class Stubs:
    """Those of `models`. Finding them looks through all processes of the machine, so it is done only while one is missing."""

    def __init__(self, models: Iterable[str]) -> None:
        self._models = set(models)
        self._processes: dict[str, psutil.Process] = {}

    def dead(self, server: int) -> set[str]:
        """Names of the models whose stub process below the server, a process id, is gone."""
        if self._models - {model for model, stub in self._processes.items() if stub.is_running() and _models_of(stub)}:
            self._processes = _find(server)
        return self._models - self._processes.keys()


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
