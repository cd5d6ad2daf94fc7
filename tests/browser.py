"""A browser without a window, for the tests of pages; without one they are skipped."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

NO_PACKAGE = "the Python package playwright is not installed"
NO_CHROMIUM = "no chromium on PATH; Debian's package chromium has it"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason=NO_PACKAGE)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip(NO_CHROMIUM)
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=chromium)
        yield opened
        opened.close()
