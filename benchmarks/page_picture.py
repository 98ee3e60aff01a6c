"""The picture of the page of t2t-serve in the documentation: a translation, and a pointer at one of its words.

    t2t-exporter --output_dir=run --export_dir=exported --alignments
    python -m benchmarks.page_picture --export_dir=exported --text="A man in a blue shirt." --word=2 --picture=page.png

The page is the one that the server sends, in Chromium, which selenium drives (`pip install 't2t_repro[test]'`).
The picture is a PNG of its form, with few colors to keep it small.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.serve import server
from t2t_repro.io import atomic_write

OPTIONS = "--headless --no-sandbox --disable-gpu --hide-scrollbars --no-first-run --disable-background-networking"
COLORS = 64
SECONDS = 60  # for a translation


@contextmanager
def browser(width: int, scale: float) -> Iterator[Any]:
    """Yields a running Chromium whose pages have this width in CSS pixels. Raises FileNotFoundError without one."""
    from selenium import webdriver

    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        raise FileNotFoundError("chromium and chromedriver must be on the PATH; install them")
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = chromium
        for option in [*OPTIONS.split(), f"--user-data-dir={profile}"]:
            options.add_argument(option)
        running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
        try:
            metrics = {"width": width, "height": 900, "deviceScaleFactor": scale, "mobile": False}
            running.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            yield running
        finally:
            running.quit()


def photographed(running: Any, address: str, text: str, word: int) -> bytes:
    """Returns a PNG of the page with the translation of `text`, and a pointer at one of its words, from 0.

    Raises ValueError if the page reports an error, or if there is no such word.
    """
    from selenium.webdriver import ActionChains
    from selenium.webdriver.support.ui import WebDriverWait

    running.get(address)
    running.find_element("id", "text").send_keys(text)
    button = running.find_element("css selector", "button[type=submit]")
    button.click()
    WebDriverWait(running, SECONDS).until(lambda _: button.is_enabled())
    for message in running.find_elements("css selector", "#said.wrong"):
        raise ValueError(message.text)
    words = running.find_elements("css selector", "#out > li:first-child > span .word")
    if not 0 <= word < len(words):
        shown = " ".join(each.text for each in words) or "none: export the run with alignments"
        raise ValueError(f"expected the number of a word of the translation, from 0. Received: {word}; words: {shown}")
    ActionChains(running).move_to_element(words[word]).perform()
    # without the time that the answer took, the picture is the same every time
    running.execute_script("document.getElementById('said').textContent = ''; document.activeElement.blur()")
    found: bytes = running.find_element("css selector", "body").screenshot_as_png
    return found


def with_few_colors(png: bytes) -> bytes:
    """Returns a PNG with a palette of `COLORS`."""
    from PIL import Image

    written = io.BytesIO()
    Image.open(io.BytesIO(png)).convert("RGB").quantize(COLORS, dither=Image.Dither.NONE).save(
        written, "PNG", optimize=True
    )
    return written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--export_dir", required=True, help="export directory of t2t-exporter --alignments")
    parser.add_argument("--text", required=True, help="text to translate")
    parser.add_argument("--word", type=int, required=True, help="word of the translation to point at, from 0")
    parser.add_argument("--picture", required=True, help="PNG file to write")
    parser.add_argument("--width", type=int, default=820, help="of the page in CSS pixels; default: %(default)s")
    parser.add_argument("--scale", type=float, default=1.5, help="pixels per CSS pixel; default: %(default)s")
    arguments = parser.parse_args()
    with server(arguments.export_dir, []) as (address, _), browser(arguments.width, arguments.scale) as running:
        picture = with_few_colors(photographed(running, address, arguments.text, arguments.word))
    with atomic_write(arguments.picture) as temporary, open(temporary, "wb") as file:
        file.write(picture)
    print(f"{arguments.picture}: {len(picture):,} bytes")


if __name__ == "__main__":
    main()
