"""What Jenkins' junit-10.xsd (xunit plugin) asks of a file, as rules: elements, their attributes, what may be within, and texts.

usage: python3 junit_rules.py FILE   a line for each problem
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

CHILDREN = {
    "testsuites": {"testsuite"},
    "testsuite": {"testsuite", "properties", "testcase", "system-out", "system-err"},
    "properties": {"property"},
    "testcase": {
        "skipped",
        "error",
        "failure",
        "rerunFailure",
        "rerunError",
        "flakyFailure",
        "flakyError",
        "system-out",
        "system-err",
    },
    "rerun": {"stackTrace", "system-out", "system-err"},
}
REQUIRED = {
    "testsuite": {"name", "tests", "failures", "errors"},
    "property": {"name", "value"},
    "testcase": {"name"},
    "rerun": {"type"},
}
OPTIONAL = {
    "testsuites": {"name", "time", "tests", "failures", "errors"},
    "testsuite": {"group", "time", "skipped", "timestamp", "hostname", "id", "package", "file", "log", "url"},
    "testcase": {"time", "classname", "group"},
    "failure": {"type", "message"},
    "error": {"type", "message"},
    "skipped": {"type", "message"},
    "rerun": {"message"},
}
WITH_TEXT = {"failure", "error", "skipped", "system-out", "system-err", "rerun", "stackTrace"}
TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]{0,3})?")
"""Of suites; three decimals, as older releases of the schema have it."""


def problems(text: str) -> list[str]:
    """What is against the rules; [] of a valid file."""
    root = ElementTree.fromstring(text)
    if root.tag not in ("testsuites", "testsuite"):
        return [f"the root is {root.tag}"]
    return [one for element in root.iter() for one in _of(element)]


def _of(element: ElementTree.Element) -> list[str]:
    kind = "rerun" if re.fullmatch("(rerun|flaky)(Failure|Error)", element.tag) else element.tag
    given = set(element.attrib)
    required = REQUIRED.get(kind, set())
    found = [f"{kind} has no {name}" for name in sorted(required - given)]
    found += [f"{kind} has {name}" for name in sorted(given - required - OPTIONAL.get(kind, set()))]
    found += [f"{one.tag} in {kind}" for one in element if one.tag not in CHILDREN.get(kind, set())]
    texts = [element.text, *(one.tail for one in element)]
    if kind not in WITH_TEXT and any((one or "").strip() for one in texts):
        found.append(f"text in {kind}")
    if kind in ("testsuites", "testsuite") and not TIME.fullmatch(element.get("time", "")):
        found.append(f"time of {kind} is {element.get('time')}")
    return found


if __name__ == "__main__":
    print("".join(f"{one}\n" for one in problems(Path(sys.argv[1]).read_text())), end="")
