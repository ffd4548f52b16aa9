"""The fuzz target of the door, for a short while: what `make fuzz` does for longer."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

from tests.support.server.serving import ROOT

MOST_MIB = 2048  # that it may take


def test_the_door_stands_twenty_thousand_inputs(tmp_path: Path) -> None:
    # a process that is started has its starter's peak of memory as its own
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    command = [
        sys.executable,
        "-m",
        "tests.support.fuzzed_door",
        "-runs=20000",
        "-max_total_time=30",
        f"-rss_limit_mb={MOST_MIB + peak_mib}",
        "-malloc_limit_mb=1024",
        f"-artifact_prefix={tmp_path}/",
    ]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    assert "Done " in run.stderr, "it has run to the end"
