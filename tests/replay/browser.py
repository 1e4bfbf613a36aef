"""A headless Chromium, where there is one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium(width: int = 1400, height: int = 1000) -> Iterator[Any]:
    """A driven browser. Skips the test, saying why, when there is none."""
    selenium = pytest.importorskip("selenium.webdriver", reason="the browser tests need selenium: pip install -e '.[dev]'")
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("no Chromium with its driver here: apt-get install chromium chromium-driver")
    options = selenium.ChromeOptions()
    options.binary_location = browser
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", f"window-size={width},{height}"):
        options.add_argument(f"--{argument}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    page = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
    try:
        yield page
    finally:
        page.quit()


def requested(page: Any) -> list[str]:
    """Addresses that the browser asked for since the last look, other than files, data and its own pages."""
    out = []
    for entry in page.get_log("performance"):
        event = json.loads(entry["message"])["message"]
        if event["method"] == "Network.requestWillBeSent":
            url = event["params"]["request"]["url"]
            if not url.startswith(("file://", "data:", "chrome", "about:")):
                out.append(url)
    return out


def complaints(page: Any) -> list[str]:
    """Everything in the console."""
    return [entry["message"] for entry in page.get_log("browser")]


def scheme(page: Any, name: str) -> None:
    """Prefer light or dark, as a system setting."""
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})


def shot(page: Any, path: Path) -> None:
    path.write_bytes(page.get_screenshot_as_png())
