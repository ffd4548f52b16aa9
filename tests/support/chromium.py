"""A browser for tests of the page: Chromium, driven by the package playwright (`build/set-up browser`)."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

WAIT_MS = 60_000  # for what a page is to show


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """That of the system, or playwright's own. Skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="build/set-up browser brings playwright")
    with playwright.sync_playwright() as started:
        try:
            made = started.chromium.launch(executable_path=shutil.which("chromium"))
        except playwright.Error as error:
            pytest.skip(f"Chromium can't be started: {str(error).splitlines()[0]}")
        yield made
        made.close()
