"""A server of a model by its name: the launcher finds it before it starts anything, and nothing behind it
asks the hub.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.hub import COMMIT, StandInHub, files_of
from tests.support.server.serving import ROOT, Gapless, wait_for

NAME = "org/small"
PROMPT = "Convert to camelCase: def read_all_lines(file_name): pass"


def test_a_model_is_served_by_its_name_and_again_without_the_hub(tmp_path: Path) -> None:
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
    settings = {"model.directory": NAME, "model.dtype": "float32"}
    with (
        StandInHub({NAME: files_of(ROOT / "models/bundled")}) as hub,
        Gapless({**environment, "HF_ENDPOINT": hub.url}, **settings) as gapless,
    ):
        num_requests = len(hub.requests)
        check(gapless)
        assert len(hub.requests) == num_requests
    with Gapless({**environment, "HF_HUB_OFFLINE": "1"}, **settings) as gapless:
        before = gapless.instance_pid()
        gapless.kill(before)
        wait_for(lambda: gapless.instance_pid() not in (0, before), 60)
        check(gapless)
        read = json.loads((gapless.run_directory / "settings.json").read_text())["model"]["directory"]
        assert read == str(tmp_path / "home/hub/models--org--small/snapshots" / COMMIT)
    assert jobs(environment, tmp_path).startswith(f"no job in {tmp_path}/jobs/small-")


def check(gapless: Gapless) -> None:
    chat = json.dumps([{"role": "user", "content": PROMPT}])
    assert "readAllLines" in gapless.generate(messages=chat)["text_output"]


def jobs(environment: dict[str, str], folder: Path) -> str:
    """What the command for fine-tuning says of the same model, without the hub."""
    settings = (f"model.directory={NAME}", f"finetuning.directory={folder / 'jobs'}")
    done = subprocess.run(
        [sys.executable, "-m", "commands.finetune", "--sets", " ".join(settings), "list"],
        cwd=ROOT,
        env={**os.environ, **environment, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stderr
