"""Looks at HTML reports as a person would who sees little, uses no mouse, or holds a telephone.

    python3 reports/tests/axe_pages.py [--quick] FOLDER_OR_PAGE...

Every page is opened 1280 and 400 pixels wide, light and dark, once as it comes and once with all that is folded
opened. --quick, as the test of the build has it: wide and light, narrow and dark, by axe with all opened alone.
It fails where axe finds a violation, where the page is wider than its window or a table or a text is cut
off, where something is fetched from elsewhere, where the page's script complains, where the Tab key does not come to
everything that can be used, where a link to another report leads nowhere, and where a page is not there in a second:
its load by the browser's navigation timing, the best of a few.

Needs PyPI's `axe-playwright-python` and a Chromium: that of Playwright, of the PATH, or of EQUIGRAD_CHROMIUM.
Ends with 0, with 1 where something was found, with 77 where these are not there.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

try:
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import Browser, Page, sync_playwright
except ImportError:
    print("skipped: needs `pip install axe-playwright-python` and a Chromium")
    sys.exit(77)

VIEWS = ((1280, "light"), (400, "dark"), (1280, "dark"), (400, "light"))
QUICK_VIEWS = VIEWS[:2]
TABS = 400
"""As many stops of the Tab key are tried."""
LARGE_BYTES = 300_000
"""A page of thousands of cases is neither opened nor shown to axe, which takes minutes: its rows are those of others."""
LOADED_MS = 1000
LOADS = 10

OPEN = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
CUT_OFF = """() => {
  const wide = [...document.querySelectorAll('.wide, pre, figure, article, header, section')].filter(
    e => !e.closest('details:not([open])') && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0);
  return wide.map(e => `${e.tagName.toLowerCase()}.${e.className} of ${(e.closest('section') || e).id}: ` +
    `${e.scrollWidth} in ${e.clientWidth}`).slice(0, 5);
}"""
REACHABLE = """() => {
  const all = [...document.querySelectorAll('a[href], button, input, summary, [tabindex="0"]')];
  return all.filter(e => e.checkVisibility() && e.getClientRects().length).length;
}"""


REPORTS = "() => [...document.querySelectorAll('nav.reports a')].map(e => e.getAttribute('href'))"
LOADED = "() => performance.getEntriesByType('navigation')[0].loadEventEnd"


def pages_of(arguments: list[str]) -> list[Path]:
    pages: list[Path] = []
    for argument in map(Path, arguments):
        pages += sorted(argument.rglob("*.html")) if argument.is_dir() else [argument]
    return pages


def reached(page: Page) -> int:
    """Stops of the Tab key, until it is back at the first."""
    page.evaluate("document.activeElement && document.activeElement.blur(); window.seen = new Set()")
    for count in range(TABS):
        page.keyboard.press("Tab")
        new = page.evaluate(
            "() => { const e = document.activeElement; if (!e || e === document.body || window.seen.has(e)) return false;"
            " window.seen.add(e); return true; }"
        )
        if not new:
            return count
    return TABS


def violations(page: Page) -> list[str]:
    found = []
    for one in Axe().run(page, options={"resultTypes": ["violations"]}).response["violations"]:
        where = one["nodes"][0]["html"][:120]
        found.append(f"axe {one['id']} ({one['impact']}), {len(one['nodes'])} times: {one['help']}: {where}")
    return found


def cut_off(page: Page, width: int) -> list[str]:
    found = []
    inside = page.evaluate("document.documentElement.scrollWidth")
    if inside > width:
        found.append(f"{inside} pixels wide")
    return found + [f"cut off: {one}" for one in page.evaluate(CUT_OFF)]


def load_ms(browser: Browser, file: Path) -> float:
    """The least of some: what else the machine does makes a load longer, nothing makes it shorter."""
    times = []
    for _ in range(LOADS):
        page = browser.new_page(viewport={"width": VIEWS[0][0], "height": 800})
        page.goto(file.resolve().as_uri())
        page.wait_for_function(f"({LOADED})() > 0")
        times.append(page.evaluate(LOADED))
        page.close()
        if min(times) < LOADED_MS:
            break
    return float(min(times))


def links_of(browser: Browser, file: Path) -> list[str]:
    page = browser.new_page()
    page.goto(file.resolve().as_uri())
    links = page.evaluate(REPORTS)
    page.close()
    return [f"the report {one} is not there" for one in links if not (file.parent / one).is_file()]


def problems_of(browser: Browser, file: Path, quick: bool) -> list[str]:
    found = links_of(browser, file)
    is_large = file.stat().st_size > LARGE_BYTES
    for width, scheme in QUICK_VIEWS if quick else VIEWS:
        context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
        page = context.new_page()
        said: list[str] = []
        page.on("pageerror", lambda error, said=said: said.append(f"script: {error}"))
        page.on("request", lambda to, said=said: said.append(f"asks for {to.url}") if to.url[:4] == "http" else None)
        page.goto(file.resolve().as_uri())
        said += [f"as it comes: {one}" for one in cut_off(page, width)]
        if not is_large and not quick:
            said += [f"as it comes: {one}" for one in violations(page)]
        can, did = page.evaluate(REACHABLE), reached(page)
        if did < min(can, TABS):
            said.append(f"Tab comes to {did} of {can}")
        if not is_large:
            page.evaluate(OPEN)
            page.wait_for_timeout(50)
            said += [f"all opened: {one}" for one in cut_off(page, width) + violations(page)]
        found += [f"{width} px, {scheme}, {one}" for one in said]
        context.close()
    return found


def main() -> int:
    words = sys.argv[1:]
    quick = "--quick" in words
    pages = pages_of([one for one in words if one != "--quick"])
    if not pages:
        print("expected pages or folders with pages, got none. Name some, such as equigrad-report.")
        return 2
    chromium = os.environ.get("EQUIGRAD_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    wrong = 0
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        except Exception as error:  # Playwright's error has no narrower type for this
            print(f"skipped: no Chromium starts: {str(error).splitlines()[0]}")
            return 77
        for file in pages:
            loaded_ms = load_ms(browser, file)
            problems = problems_of(browser, file, quick)
            if loaded_ms >= LOADED_MS:
                problems.append(f"loads in {loaded_ms:.0f} ms, which is not below {LOADED_MS}")
            wrong += len(problems)
            print(f"{'FAILED' if problems else 'held'}  {file}, loads in {loaded_ms:.0f} ms", flush=True)
            for one in problems:
                print(f"    {one}")
        browser.close()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
