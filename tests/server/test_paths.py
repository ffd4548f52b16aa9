"""The bundled model with all defaults, as a reader of the README starts it, in directories with spaces,
quotes, other letters and what a shell would run; errors that name no path; who may read shared memory.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server.serving import ROOT, Gapless, wait_for

ODD = """a b"c'd;$HOME`id`&(é)\\"""


@pytest.fixture(scope="module")
def oddly_placed() -> Iterator[Gapless]:
    """Model, run directory and what is learned lie in directories with odd names."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / ODD
        (place / "run").mkdir(parents=True)
        model = shutil.copytree(ROOT / "models/bundled", place / "model")
        settings = {"model.directory": model, "prediction.directory": place / "learned"}
        with Gapless({"RUNTIME_DIRECTORY": str(place / "run")}, **settings) as gapless:
            yield gapless


def test_the_small_client_prints_the_answer_as_http_streams_it(oddly_placed: Gapless) -> None:
    prompt = "Convert to camelCase: def read_all_lines(file_name): pass"
    words = [sys.executable, "client/stream.py", prompt, "--port", str(oddly_placed.grpc_port)]
    said = subprocess.run(words, check=False, cwd=ROOT, capture_output=True, text=True, timeout=120)
    chat = json.dumps([{"role": "user", "content": prompt}])
    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout == oddly_placed.generate_stream(messages=chat).text + "\n"
    assert "readAllLines" in said.stdout
    assert ODD in str(oddly_placed.run_directory)


def test_errors_name_no_path_of_the_host(oddly_placed: Gapless) -> None:
    for path in ("ensemble/versions/9", "ensemble/versions/9/generate", "none", "tokenizer"):
        status, text = oddly_placed.post(f"/v2/models/{path}", {"text_input": "x"})
        assert status >= 400
        assert not set(oddly_placed.run_directory.parts[1:]) & set(text.split("/")), text
        assert "/" not in text.replace("\\/", "/"), text


def test_other_users_can_read_no_shared_memory_also_of_a_model_that_was_loaded_again(
    oddly_placed: Gapless,
) -> None:
    check_private(oddly_placed)
    before = oddly_placed.stub_pid("tokenizer")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: oddly_placed.stub_pid("tokenizer") != before, 60)
    wait_for(lambda: oddly_placed.generate(text_input="hello", max_tokens=5)["status"] == 200, 60)
    check_private(oddly_placed)


def check_private(gapless: Gapless) -> None:
    regions = list(Path("/dev/shm").glob(f"{gapless.run_directory.name}-*"))
    assert regions
    assert {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}
