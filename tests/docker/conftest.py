"""Whether there is a Docker engine that has Debian's image. Where
GAPLESS_START_ENGINE is set, as in .ci/run, one is started if not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.composed import ROOT, Composed, run

HERE = Path(__file__).parent
BASE = "debian:bookworm-slim"
TAGS = ("gapless", "gapless-ray", "gapless-sbom")  # of the images that are built here
LABEL = "org.opencontainers.image.title=Gapless"  # of all their stages
DEAD_AFTER_S = 4  # a second of each of three pauses may be counted as silence
NOTES: list[str] = []  # what the tests have measured


@cache
def why_not() -> str:
    """Why there is no engine; empty if there is one."""
    missing = _missing()
    if not missing or not os.environ.get("GAPLESS_START_ENGINE"):
        return missing
    started = subprocess.run([HERE / "start-engine"], capture_output=True, text=True, check=False)
    return "" if started.returncode == 0 else f"start-engine: {started.stderr[-500:]}"


def _missing() -> str:
    if not shutil.which("docker") or not _works("docker", "info"):
        return "no Docker engine answers `docker info`"
    if not _works("docker", "compose", "version") and not shutil.which("docker-compose"):
        return "neither `docker compose` nor docker-compose is here"
    if not _works("docker", "image", "inspect", BASE) and not _works("docker", "pull", BASE):
        return f"{BASE} can't be pulled"
    return ""


def _works(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if why_not.cache_info().currsize and why_not():
        terminalreporter.write_line(f"tests/docker skipped: {why_not()}")
    for note in NOTES:
        terminalreporter.write_line(note)


def image_of(tag: str) -> str:
    """Its id; empty if there is none."""
    return run("docker", "image", "ls", "--quiet", "--no-trunc", tag).strip()


@pytest.fixture(scope="session")
def engine() -> Iterator[None]:
    """Each tag names at the end what it did before, and of images that no tag names none of ours is left."""
    if why_not():
        pytest.skip(why_not())
    before = {tag: image_of(tag) for tag in TAGS}
    yield
    for tag, image in before.items():
        if image:
            run("docker", "tag", image, tag)
        elif image_of(tag):
            run("docker", "image", "rm", tag)
    run("docker", "image", "prune", "--force", "--filter", f"label={LABEL}", timeout_s=600)


@pytest.fixture(scope="session")
def composed(engine: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Composed]:
    """The project, its image built and nothing up yet."""
    model = Path(shutil.copytree(ROOT / "models/bundled", tmp_path_factory.mktemp("mounted") / "model"))
    project = Composed(f"gapless-test-{os.getpid()}", model, f"--set streams.dead_after_s={DEAD_AFTER_S}")
    project.compose("build", timeout_s=3000)
    yield project
    project.compose("down", "--volumes", "--remove-orphans")


@pytest.fixture(scope="session")
def served(composed: Composed) -> Composed:
    """The project, up and ready; how large and how quick it is stands in what the tests print."""
    base, image = (
        int(run("docker", "image", "inspect", "--format", "{{.Size}}", name)) for name in (BASE, "gapless")
    )
    composed.up()
    NOTES.append(
        f"image: {image / 1e9:.2f} GB, of it {BASE} {base / 1e9:.2f}; cold start:"
        f" {composed.cold_start_s:.1f} s"
    )
    return composed
