"""The picture of a caught bug that the README shows: the report of a run with a planted fault, down to the first row of
pictures of what failed.

    python3 reports/tests/screenshot.py build/dev docs/caught.png

Needs PyPI's `playwright` and a Chromium: that of Playwright, of the PATH, or of EQUIGRAD_CHROMIUM.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

CASE = "zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine"
"""That of the README."""
SIZE = {"width": 1000, "height": 1400}
BELOW = 4
"""Pixels shown below the first row of pictures."""


def main(build: str, picture: str) -> None:
    path = os.pathsep.join([str(Path(build).resolve()), os.environ["PATH"]])
    with tempfile.TemporaryDirectory() as folder:
        words = ["equigrad", "run", CASE, "--fault", "averaged_twice", "-q", "--report", "equigrad-report"]
        done = subprocess.run(words, cwd=folder, env={**os.environ, "PATH": path}, stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 1:
            sys.exit(f"expected a run that fails (1), got {done.returncode}. Run it by hand: {' '.join(words)}")
        with sync_playwright() as play:
            chromium = os.environ.get("EQUIGRAD_CHROMIUM") or shutil.which("chromium")
            browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport=SIZE, color_scheme="light", device_scale_factor=1.5)
            page.goto(Path(folder, "equigrad-report", "index.html").as_uri())
            drawn = [one.bounding_box() for one in page.locator(".pictures").first.locator("> *").all()]
            first_row = [one["y"] + one["height"] for one in drawn if one and one["y"] == drawn[0]["y"]]
            page.screenshot(path=picture, clip={"x": 0, "y": 0, "width": SIZE["width"], "height": max(first_row) + BELOW})
            browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
