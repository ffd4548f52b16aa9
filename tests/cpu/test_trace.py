"""The trace on demand: the loop's work beside the device's, on one clock; nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backends.engine import trace
from python_backends.engine.trace import begins, trace_steps
from python_backends.instance import __main__ as process
from python_backends.instance.build import build
from python_backends.instance.loop import Instance
from python_backends.nouns.step import StepOutput
from python_backends.settings import EngineSettings, Settings
from tests.support.instance_link import Link, submit
from tests.support.toy_engine import TOY


def test_a_trace_shows_the_loops_work_beside_the_devices(tmp_path: Path) -> None:
    scheduler, running = build(Settings(engine=EngineSettings(kind=TOY, slots=2, options="step_ms=2")))
    link = Link([[submit(0, 4, max_tokens=30)]])
    instance = Instance(scheduler, running, link, lambda _: None, 1)
    plain = instance.scheduler, instance.engine, instance.link
    assert trace_steps(instance, 8, tmp_path / "trace.json") == 8
    assert (instance.scheduler, instance.engine, instance.link) == plain
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = [event["name"] for event in events if event.get("ph") == "X"]
    assert all(names.count(name) >= 8 for name in ("plan", "launch", "collect", "apply", "publish"))
    steps = [event for event in events if event.get("pid") == "device"]
    assert [step["name"] for step in steps] == [f"step {number}" for number in range(8)]
    assert all(step["dur"] == pytest.approx(2000) for step in steps)
    launches = sorted(event["ts"] for event in events if event.get("name") == "launch")
    assert launches[0] - 100 < steps[0]["ts"]
    while link.num_ended < 1:
        instance.turn()


def test_an_instance_writes_it_where_gapless_writes_all_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Installed by pip, the code is in a folder where nothing is written."""
    monkeypatch.setattr(process, "WRITTEN", tmp_path / "state/gapless")
    monkeypatch.setattr(trace, "trace_steps", lambda _loop, _num_steps, path: path.write_text("{}"))
    nothing: Any = None
    process._trace(nothing)
    (written,) = (tmp_path / "state/gapless").iterdir()
    assert written.match("gapless-trace-*.json")


def test_steps_are_placed_on_the_clock_by_which_they_were_collected() -> None:
    outputs = [StepOutput(number, *[np.zeros(0)] * 2, None, 2.0, 1.0) for number in range(3)]  # type: ignore[arg-type]
    assert begins(outputs, [13.5, 16.0, 19.2], 1.0) == [11.0, 14.0, 17.0]
    assert begins([], [], 1.0) == []
