"""What people see of a job while a server trains it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import tqdm as bars

from commands.finetune import progress
from tests.pure.finetuning.test_jobs import new_job


def test_the_time_for_which_a_job_has_waited_counts_neither_for_its_pace_nor_for_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, now_s, shown = new_job(tmp_path), 1000.0, io.StringIO()

    def later(_: float) -> None:
        nonlocal now_s
        if job.status == "queued" and now_s == 1000.0:
            now_s += 100.0
        elif job.status == "queued":
            job.change(status="running")
            job.add_loss(step=1, loss=2.0, tokens=50)
            now_s += 10.0
        else:
            job.end("succeeded", "done")

    def seen(**given: Any) -> Any:
        return bars.tqdm(**{**given, "disable": False, "file": shown, "mininterval": 0})

    monkeypatch.setattr(bars.std, "time", lambda: now_s)
    monkeypatch.setattr(progress, "tqdm", seen)
    monkeypatch.setattr(progress.time, "sleep", later)
    progress.watch(job)
    assert "1/2 [00:10<00:10" in shown.getvalue()
    assert "5 tokens/s" in shown.getvalue()
