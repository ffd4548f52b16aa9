"""Who may interrupt the engine on a CPU, and where: what the launcher
asks of the kernel holds for the whole server.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from python_backends.engine.cpu.library import library
from tests.support.server.serving import Gapless, wait_for

MODELS = ("tokenizer", "scheduler", "detokenizer")


@pytest.mark.parametrize(
    ("layers", "policy"),
    [("off", os.SCHED_OTHER), *([("auto", os.SCHED_BATCH)] if library() is not None else [])],
)
def test_triton_interrupts_only_an_engine_whose_threads_keep_their_processors(
    layers: str, policy: int
) -> None:
    """And where it does not, it keeps off the processor of the loop, as the engine's other threads do."""
    with Gapless(**{"engine.kind": "torch", "engine.cpp_layers": layers}) as gapless:
        everywhere = frozenset(os.sched_getaffinity(0))
        around = {gapless.server_pid(), *(gapless.stub_pid(model) for model in MODELS)}
        assert {os.sched_getscheduler(pid) for pid in around} == {policy}
        instance = gapless.instance_pid()
        assert os.sched_getscheduler(instance) == os.SCHED_OTHER
        gives_way = policy == os.SCHED_BATCH
        loop = {min(everywhere)} if gives_way and len(everywhere) > 1 else set()
        assert {frozenset(os.sched_getaffinity(pid)) for pid in around} == {everywhere - loop}
        wait_for(lambda: _places(instance) == (loop or everywhere, {everywhere - loop}), 10)


def _places(process: int) -> tuple[set[int], set[frozenset[int]]]:
    """The processors of its main thread, and those of its others."""
    threads = {int(thread.name) for thread in Path(f"/proc/{process}/task").iterdir()} - {process}
    return os.sched_getaffinity(process), {frozenset(os.sched_getaffinity(thread)) for thread in threads}
