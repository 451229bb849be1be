"""Chromium for tests of pages: the machine's own, driven by Playwright."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest


def launched() -> Iterator[Any]:
    """A browser, for a fixture to yield from; skips where the machine has none."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="NO PLAYWRIGHT: pip install playwright"
    )
    found = next(
        (
            path
            for name in ("chromium", "chromium-browser", "google-chrome")
            if (path := shutil.which(name))
        ),
        None,
    )
    if found is None:
        pytest.skip("NO CHROMIUM on the PATH: apt install chromium")
    # As root, as in a container, Chromium starts only without its sandbox; the pages are our own.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=found, args=arguments)
        yield browser
        browser.close()
