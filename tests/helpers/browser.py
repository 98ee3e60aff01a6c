"""Pages in a real browser: selenium drives Chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()


@contextmanager
def chromium_browser(profile: Path) -> Iterator[Any]:
    """Yields a running browser with an empty `profile`; skips the test if there is none on this machine."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no chromium and chromedriver on the PATH")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for option in [*OPTIONS, f"--user-data-dir={profile}"]:
        options.add_argument(option)
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


class Page:
    """A page as the tests see it."""

    def __init__(self, browser: Any):
        self.browser = browser

    def __call__(self, script: str) -> Any:
        return self.browser.execute_script(f"return {script}")

    def all(self, selector: str) -> list[Any]:
        return self.browser.find_elements("css selector", selector)

    def texts(self, selector: str) -> list[str]:
        return self(f"[...document.querySelectorAll({selector!r})].map((e) => e.textContent)")

    def press(self, key: str) -> None:
        from selenium.webdriver import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.browser).send_keys(getattr(Keys, key)).perform()

    def point_at(self, element: Any) -> None:
        from selenium.webdriver import ActionChains

        ActionChains(self.browser).move_to_element(element).perform()

    def media(self, scheme: str = "light", width: int = 1200, height: int = 900, phone: bool = False) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", scheme)
        # changes are drawn in the frame after the next
        self.browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")

    def ink(self, canvas: str = "#lines") -> np.ndarray:
        """Returns the canvas as [height, width, 4]."""
        flat = self(
            f"(() => {{ const c = document.querySelector({canvas!r}); const d = c.getContext('2d')"
            ".getImageData(0, 0, c.width, c.height); return [c.width, c.height, ...d.data]; })()"
        )
        width, height, *pixels = flat
        return np.array(pixels, np.uint8).reshape(height, width, 4)

    def errors(self) -> list[str]:
        """Returns the errors of the page, including violations of its security policy."""
        return [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] == "SEVERE"]
