"""A headless Chromium for tests, which are skipped with a message if it is not installed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

#: Without them Chromium dials home at every start.
FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
#: Pages refresh themselves ten times as often.
HASTE: Final = "{ const wait = setTimeout; window.setTimeout = (work, ms, ...more) => wait(work, ms / 10, ...more); }"
PROGRAMS: Final = ("chromium", "chromedriver")

missing = [name for name in PROGRAMS if shutil.which(name) is None]
needs_browser = pytest.mark.skipif(
    bool(missing), reason=f"no {' and no '.join(missing)} here: apt-get install chromium chromium-driver"
)


class Browser:
    """A window.

    Args:
        driver: Selenium's.
    """

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def size(self, width: int, height: int) -> None:
        """Sets the size of the window; a narrow one is a phone."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        """Sets the color scheme: `light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def run(self, script: str) -> Any:
        """Runs a script, and returns its result."""
        return self.driver.execute_script(script)

    def text(self, selector: str) -> str:
        """Returns the text of the first element that matches a selector; empty without one."""
        return str(self.run(f"return document.querySelector({selector!r})?.innerText ?? ''"))

    def complaints(self) -> list[str]:
        """Returns the errors and warnings of the browser since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Starts a browser with an empty profile."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    # The driver is named: Selenium shall look for none on the net.
    driver = webdriver.Chrome(options=options, service=Service(str(shutil.which("chromedriver"))))
    try:
        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": HASTE})
        yield Browser(driver)
    finally:
        driver.quit()
