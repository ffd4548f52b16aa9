"""Who may interrupt the engine on a CPU: what the launcher asks of the kernel holds for the whole server."""

from __future__ import annotations

import os

import pytest

from tests.server.serving import Gapless

MODELS = ("tokenizer", "scheduler", "detokenizer")


@pytest.mark.parametrize(("kind", "policy"), [("openvino", os.SCHED_BATCH), ("torch", os.SCHED_OTHER)])
def test_triton_interrupts_only_an_engine_whose_threads_keep_their_processors(kind: str, policy: int) -> None:
    gapless = Gapless(**{"engine.kind": kind})
    try:
        around = {gapless.server_pid(), *(gapless.stub_pid(model) for model in MODELS)}
        assert {os.sched_getscheduler(pid) for pid in around} == {policy}
        assert os.sched_getscheduler(gapless.instance_pid()) == os.SCHED_OTHER
    finally:
        gapless.stop()
