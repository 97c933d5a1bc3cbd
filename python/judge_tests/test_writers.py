"""Boards as pages and texts: everything is in them, once, and nothing of a foreign text is taken for their own."""

from __future__ import annotations

import functools
import html.parser
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import example_boards as examples
import junit_rules
import pytest

from equigrad.judge import compare, pivot, writers
from equigrad.judge.board import WRONG, Board, Cell
from equigrad.judge.outputs import Outputs
from equigrad.judge.summary import GLYPHS, MEANINGS, Box, Summary, counted, summarise

ROOT = Path(__file__).parents[2]
SHARED, OWN = ROOT / "reports" / "templates", ROOT / "python" / "equigrad" / "judge" / "templates"
VOID = {"meta", "link", "br", "col", "wbr", "input", "img", "hr"}


def summary_of(board: Board, baseline: Board | None = None) -> Summary:
    beside = [compare.beside(board, *pair) for pair in compare.versions(board)]
    return summarise(board, compare.against_baseline(baseline, board) if baseline else None, beside)


MIXED, GREEN = summary_of(examples.mixed()), summary_of(examples.green())
GATED = summary_of(examples.mixed(), replace(examples.mixed(), cells=examples.mixed().cells[:150]))
EMPTY = summary_of(Board((), {}, ()))
ALL = {"mixed": MIXED, "green": GREEN, "gated": GATED, "empty": EMPTY}


@functools.cache
def html_of(name: str) -> str:
    return writers.to_html(ALL[name])


class Page(html.parser.HTMLParser):
    """Elements, links and texts of a page, which must be well nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str]]] = []
        self.elements: list[tuple[str, dict[str, str], tuple[str, ...]]] = []
        self.texts: list[tuple[str, str]] = []
        self.said: list[str] = []
        """By a screen reader."""
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.elements.append((tag, given, tuple(name for name, _ in self.open)))
        if tag not in VOID:
            self.open.append((tag, given))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1][0] == tag, (tag, self.open[-3:], self.getpos())
        self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1][0] if self.open else "", data))
        hidden = any(given.get("aria-hidden") == "true" or name in ("style", "script", "title") for name, given in self.open)
        self.said += [] if hidden else [data]

    def of(self, tag: str) -> list[dict[str, str]]:
        """Attributes of all such elements."""
        return [given for name, given, _ in self.elements if name == tag]

    def text(self, *without: str) -> str:
        return " ".join("".join(data for tag, data in self.texts if tag not in ("style", "script", *without)).split())


def classes(page: Page, within: str) -> Counter[str]:
    """Of all elements below one of that tag."""
    return Counter(one for _, given, above in page.elements if within in above for one in given.get("class", "").split())


# ---- HTML


def skeleton() -> str:
    """A pattern of the pages of all reports: each {{key}} is a group of that name."""
    pieces = re.split(r"\{\{(\w+)\}\}", (SHARED / "page.html").read_text())
    return "".join(f"(?P<{piece}>.*)" if at % 2 else re.escape(piece) for at, piece in enumerate(pieces))


@pytest.mark.parametrize("name", ALL)
def test_a_page_has_the_frame_style_and_script_of_all_reports(name: str) -> None:
    found = re.fullmatch(skeleton(), html_of(name), re.DOTALL)
    assert found, "expected the frame of reports/templates/page.html"
    for key, file in (("style", "page.css"), ("script", "page.js")):
        own = (OWN / f"judge.{file.rpartition('.')[2]}").read_text()
        assert found[key] == (SHARED / file).read_text() + own, f"expected reports/templates/{file}, then the judge's own"
    assert found["tone"] in ("held", "failed", "broken", "inconclusive") and found["data_file"] == "board.json"


def test_the_judge_has_no_style_frame_or_colour_of_its_own() -> None:
    """A file of the same name would be a copy."""
    assert not {one.name for one in OWN.iterdir()} & {one.name for one in SHARED.iterdir()}
    style = (OWN / "judge.css").read_text()
    assert not re.search(r"#[0-9a-f]{3,8}\b|\brgb|\bhsl|:root|prefers-color-scheme|--[\w]+:", style)
    assert "<html" not in "".join(one.read_text() for one in OWN.glob("*.html"))


@pytest.mark.parametrize("name", ALL)
def test_every_class_has_a_rule(name: str) -> None:
    page = Page(html_of(name))
    style = next(data for tag, data in page.texts if tag == "style")
    assert [one for one in classes(page, "body") if not re.search(rf"\.{one}(?![\w-])", style)] == []


def test_colours_tell_verdicts_apart() -> None:
    judged = [writers.CLASSES[one] for one in ("held", *WRONG)]
    assert len(set(judged)) == len(judged) and set(writers.CLASSES) == set(GLYPHS)


@pytest.mark.parametrize(
    ("counts", "parts"),
    [
        ({}, []),
        ({"held": 3, "red": 1}, [("red", 0, 25), ("held", 25, 75)]),
        ({"absent": 9999, "hung": 1}, [("hung", 0, 0.5), ("absent", 0.5, 99.5)]),
    ],
)
def test_a_bar_shows_what_went_wrong_however_little(counts: dict[str, int], parts: list[tuple[str, float, float]]) -> None:
    assert writers.proportions(Box(counts)) == parts


@pytest.mark.parametrize("name", ALL)
def test_a_page_is_whole_and_needs_nothing_else(name: str) -> None:
    text = html_of(name)
    page = Page(text)
    assert text.startswith("<!DOCTYPE html>") and page.of("html") == [{"lang": "en"}]
    ids = [given["id"] for _, given, _ in page.elements if "id" in given]
    assert len(ids) == len(set(ids))
    for tag, given, _ in page.elements:
        for attribute in ("src", "href", "action", "data", "poster", "srcset"):
            target = given.get(attribute, "")
            if tag == "a" and target.startswith("#"):
                assert target[1:] in ids, target
            else:
                assert not target or target.startswith("data:") or (tag == "a" and target == examples.KNOWN.link), (
                    tag,
                    target,
                )
        assert not any(one.startswith("on") for one in given)
    assert "@import" not in text and "url(" not in text and "fetch(" not in text


@pytest.mark.parametrize("name", ALL)
def test_a_page_can_be_read_aloud(name: str) -> None:
    page = Page(html_of(name))
    levels = [int(tag[1]) for tag, _, _ in page.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1 and all(after - before <= 1 for before, after in pairwise(levels))
    assert len(page.of("caption")) == len(page.of("table"))
    assert all(given.get("scope") for given in page.of("th"))
    assert len(page.of("summary")) == len(page.of("details"))
    assert all(given.get("tabindex") == "0" and given.get("aria-label") for given in page.of("pre"))
    said = "".join(page.said)
    assert not set("✗◷⊘✓·") & set(said), [one for one in page.said if set("✗◷⊘✓·") & set(one)]
    assert len(page.of("main")) == len(page.of("h1")) == 1


def test_every_cell_is_a_square_of_its_verdict() -> None:
    page = Page(html_of("mixed"))
    squares = [
        (given["title"].rpartition(": ")[2], given["class"])
        for tag, given, above in page.elements
        if tag in ("a", "span") and above[-1:] == ("td",) and ": " in given.get("title", "")
    ]
    assert Counter(squares) == Counter((cell.verdict, writers.CLASSES[cell.verdict]) for cell in MIXED.board.cells)
    links = [given for tag, given, above in page.elements if tag == "a" and above[-1:] == ("td",)]
    assert len(links) == sum(cell.verdict in WRONG for cell in MIXED.board.cells)
    for cell in MIXED.board.cells:
        if cell.verdict in WRONG:
            where = f"#cause-{MIXED.numbers[(cell.engine, cell.case)]}"
            assert any(given["href"] == where and given["title"].startswith(cell.case) for given in links), cell


def test_every_cause_is_there_once_with_its_cells() -> None:
    page = Page(html_of("mixed"))
    text, headings = page.text(), [data.strip() for tag, data in page.texts if tag == "h3" and data.strip()]
    assert len(headings) == len(MIXED.causes) + len(MIXED.troubles) == len(page.of("article"))
    for cause in (*MIXED.causes, *MIXED.troubles):
        assert headings.count(writers.clean(cause.sentence).strip()) == 1, cause.sentence
        assert all(cell.case in text for cell in cause.cells)
    for cause in MIXED.causes:
        assert f"Got {writers.number(cause.example.findings[0].got)}, want" in text


def test_the_script_is_in_the_page_as_it_is() -> None:
    page = Page(html_of("mixed"))
    assert examples.SCRIPT in [data for tag, data in page.texts if tag == "code"]
    assert "run, and confirmed" in page.text()
    board = examples.mixed()
    for confirmed, said in ((False, "not confirmed"), (None, "not run yet")):
        cells = tuple(replace(one, repro=one.repro and replace(one.repro, confirmed=confirmed)) for one in board.cells)
        assert said in Page(writers.to_html(summarise(replace(board, cells=cells)))).text()


def test_foreign_text_stays_text() -> None:
    text = html_of("mixed")
    assert "<x>" not in text and "{{ 7 * 7 }}" in text and "\x00" not in text and "\x1b" not in text
    assert "b &lt; c &gt; &#34;d&#34;" in text
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"
    cells = tuple(replace(one, cause=hostile, text=hostile, kind="") for one in examples.mixed().cells)
    page = Page(writers.to_html(summary_of(replace(examples.mixed(), cells=cells, notes=(hostile,)))))
    assert len(page.of("script")) == 1 and not page.of("img")


def test_a_green_board_looks_green() -> None:
    page = Page(html_of("green"))
    colours = classes(page, "body")
    legends = sum(given.get("aria-label") == "Legend" for given in page.of("ul"))
    assert all(colours[writers.CLASSES[one]] == legends for one in ("red", "crashed", "hung", "void"))
    assert colours[writers.CLASSES["held"]] > 100 and not colours["alarm"] and page.of("header") == [{"class": "held"}]
    assert "HELD" in page.text() and not page.of("article")


def test_what_was_not_judged_is_named() -> None:
    text = Page(html_of("mixed")).text()
    for reason in MIXED.reasons:
        assert reason.text in text
    noted = summarise(
        examples.board(
            {"ddp": {examples.CELLS[0].id: replace(examples.held("ddp", examples.CELLS[0].id), text="no norm to compare")}},
            examples.CELLS,
        )
    )
    assert "no norm to compare" in Page(writers.to_html(noted)).text()
    odd = replace(examples.green(), not_run={"interrupted by SIGINT": 12}, notes=("a note",))
    odd = replace(odd, run=replace(odd.run, partial="interrupted by SIGINT"))
    text = Page(writers.to_html(summarise(odd))).text()
    assert "12 cells: interrupted by SIGINT" in text and "a note" in text and "PARTIAL" in text


def test_a_comparison_is_in_the_page() -> None:
    page = Page(html_of("gated"))
    text = page.text()
    for one in GATED.comparisons:
        for words, changes in writers.comparison_lists(one):
            assert (f"{words.capitalize()} {counted(len(changes), 'cell')}" in text) == bool(changes)
            assert all(change.case in text for change in changes)
    assert "new" in [data for tag, data in page.texts if tag == "b"]
    same = Page(writers.to_html(summary_of(examples.mixed(), examples.mixed()))).text()
    assert "Still wrong, for the same cause" in same and "HELD" in same


def test_the_page_and_that_of_the_runs_beside_it_lead_to_each_other(tmp_path: Path) -> None:
    runs, report = tmp_path / "equigrad-report" / "index.html", tmp_path / "judge-report"
    outputs = Outputs(report=str(report))
    outputs.write(examples.green(), None)
    assert not runs.exists()
    alone = Page((report / "index.html").read_text())
    assert "All reports" not in alone.text()
    assert [one for one in alone.of("nav") if one["aria-label"] == "Reports"][0]["hidden"] == ""
    runs.parent.mkdir()
    begin, end = "<h1>Held</h1>", "<nav>sections</nav>"
    named = "<span>Reports:</span>"
    runs.write_text(f'{begin}<nav class="reports" aria-label="Reports" hidden>{named}</nav>\n{end}')
    faults = '<a href="faults.html">Faults</a>'
    for board, said in ((examples.green(), "✓ HELD"), (examples.mixed(), "✗ RED")):
        outputs.write(board, None)
        link = f'<a href="../judge-report/index.html">Judge <span>{said}</span></a>'
        all_links = named + (link if said == "✓ HELD" else faults + link)
        assert runs.read_text() == f'{begin}<nav class="reports" aria-label="Reports">{all_links}</nav>\n{end}'
        runs.write_text(runs.read_text().replace(link, faults + link))
    links = [given["href"] for given in Page((report / "index.html").read_text()).of("a")]
    assert [(report / one).resolve() for one in links if "equigrad-report" in one] == [runs]
    runs.write_text("somebody's own")
    outputs.write(examples.green(), None)
    assert runs.read_text() == "somebody's own"


def test_a_pivot_has_every_cell_once() -> None:
    for board in (MIXED.board, GREEN.board, _same_places()):
        for engine in board.engines:
            found = [
                cell for table in pivot.pivots(board, engine.key) for line in table.lines for cell in line.cells if cell
            ]
            assert Counter(found) == Counter(board.of_engine(engine.key))
            for table in pivot.pivots(board, engine.key):
                widths = {sum(head.span for head in heads) for heads in table.heads} | {
                    len(line.cells) for line in table.lines
                }
                assert len(widths) == 1


def _same_places() -> Board:
    axes = {"stage": "0", "precision": "fp32", "style": "s", "accumulation": "1"}
    cells = tuple(examples.held("ddp", str(index)) for index in range(4))
    return Board((examples.engine("ddp"),), {cell.case: axes for cell in cells}, cells)


# ---- markdown


@pytest.mark.parametrize("name", ALL)
def test_tables_of_markdown_are_of_one_width(name: str) -> None:
    text = writers.to_markdown(ALL[name])
    fences, width = "", 0
    for line in text.splitlines():
        if line.startswith("```"):
            fences = "" if fences else line
        columns = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") and not fences else 0
        assert not width or not columns or columns == width, line
        width = columns
    assert not fences and "\n\n\n\n" not in text and "\x1b" not in text


def test_markdown_has_every_cause_and_its_script() -> None:
    text = writers.to_markdown(MIXED)
    for cause in (*MIXED.causes, *MIXED.troubles):
        assert text.count(writers.table_text(writers.clean(cause.sentence))) >= 1 and cause.example.case in text
    assert examples.SCRIPT in text and examples.KNOWN.link in text
    assert r"\`code\` \| pipe" in text
    for one in MIXED.engines:
        assert f"| {GLYPHS[one.box.verdict]} | {one.engine.name} |" in text


@pytest.mark.parametrize("bytes_", [200, 1000, 3000, 5000, 6000, 8000, 20000])
def test_markdown_is_cut_where_it_must_be(bytes_: int) -> None:
    whole, text = writers.to_markdown(MIXED), writers.to_markdown(MIXED, bytes_)
    assert len(text.encode()) <= bytes_
    assert text.count("```") % 2 == 0
    assert (text == whole) == (len(whole.encode()) <= bytes_)
    assert text == whole or ("cut off here" in text and whole.startswith(text.partition("\n\n(cut off")[0]))


def test_a_fence_is_longer_than_what_is_in_it() -> None:
    board = examples.mixed()
    script = "print('````')\n"
    cells = tuple(replace(one, repro=one.repro and replace(one.repro, script=script)) for one in board.cells)
    assert f"`````python\n{script}\n`````" in writers.to_markdown(summarise(replace(board, cells=cells)))


# ---- terminal


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_lines_of_a_terminal_fit(name: str, width: int) -> None:
    text = writers.to_text(ALL[name], width)
    for line in text.splitlines():
        to_copy = line.startswith(("  again: ", "  script: ", "  known: "))
        assert len(line) <= width or to_copy or max(map(len, line.split())) > width - 8, line
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", text)
    assert text.splitlines()[-1].strip() and ALL[name].outcome.word in text


def test_colours_only_where_they_are_asked_for() -> None:
    plain, painted = writers.to_text(MIXED, 80), writers.to_text(MIXED, 80, colour=True)
    assert "\x1b[1;31m" in painted and "\x1b" not in plain
    assert re.sub("\x1b\\[[0-9;]*m", "", painted) == plain


def test_the_terminal_says_every_cause_and_how_to_see_it_again() -> None:
    text = " ".join(writers.to_text(MIXED, 100).split())
    for cause in (*MIXED.causes, *MIXED.troubles):
        assert text.count(" ".join(writers.clean(cause.sentence).split())) == 1
        assert f"again: {writers.again_of(MIXED.board, cause.example)}" in text
    assert "script: repro/one.py" in text and f"known: {examples.KNOWN.link}" in text
    assert text.endswith(f"{MIXED.outcome.word} {MIXED.outcome.sentence}")
    assert all(f"{one.box.of('held'):,}" in text for one in MIXED.engines)


def test_again_is_a_line_to_paste_with_what_the_cell_depends_on() -> None:
    board = examples.mixed()
    cell = next(one for one in board.cells if one.engine == "ddp")
    command = "equigrad judge ddp 'python my adapter.py' --config ds.json --seed=7 --quick --model m:f --only zero2 -q --report r"
    given = replace(board, run=replace(board.run, command=command, device="cuda"))
    assert writers.again_of(given, cell) == (
        f"equigrad judge ddp --config ds.json --seed=7 --model m:f --device cuda --only {cell.case}"
    )
    of_own = writers.again_of(given, replace(cell, engine="python my adapter.py"))
    assert of_own.startswith("equigrad judge 'python my adapter.py' --config")
    assert writers.again_of(replace(board, run=replace(board.run, command="")), cell) == f"equigrad judge ddp --only {cell.case}"


def test_an_element_is_said_to_be_the_worst_where_there_are_others() -> None:
    one = next(cause.finding for cause in MIXED.causes if cause.finding)
    board = examples.mixed()

    def said(wrong: int) -> str:
        finding = replace(one, wrong=wrong, of=8)
        return writers.to_text(summarise(replace(board, cells=tuple(replace(c, findings=c.findings and (finding,)) for c in board.cells))), 200)

    assert "the worst of 5 wrong elements there\n" in said(5) and "the worst of" not in said(1)


def test_scripts_are_named_in_the_folder_of_the_report() -> None:
    assert "  script: /r/judge-report/repro/one.py\n" in writers.to_text(MIXED, 100, report="/r/judge-report")


# ---- JUnit


@pytest.mark.parametrize("name", ALL)
def test_junit_is_as_jenkins_asks_for_it(name: str) -> None:
    text = writers.to_junit(ALL[name])
    assert junit_rules.problems(text) == []
    root = ElementTree.fromstring(text)
    cases = root.findall("testsuite/testcase")
    names = [case.get("name") for case in cases]
    assert len(names) == len(set(names)) and int(root.get("tests", "")) == len(cases)
    for suite in root:
        for attribute, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{element}"))
        assert int(suite.get("tests", "")) == len(suite)
    board = ALL[name].board
    whole = ALL[name].outcome.word in ("PARTIAL", "INCONCLUSIVE")
    assert len(root.findall(".//failure")) == sum(cell.verdict == "red" for cell in board.cells)
    assert len(root.findall(".//error")) == whole + sum(cell.verdict in ("crashed", "hung", "void") for cell in board.cells)
    assert len(root.findall(".//skipped")) == sum(cell.verdict in ("refused", "absent") for cell in board.cells)
    assert len(cases) == len(board.cells) + whole


def test_junit_says_the_cause_first() -> None:
    root = ElementTree.fromstring(writers.to_junit(MIXED))
    by_name = {case.get("name"): case for case in root.iter("testcase")}
    for cell in MIXED.board.cells:
        case = by_name[f"{cell.case} ({cell.engine})"]
        if cell.verdict == "red":
            failure = case.find("failure")
            assert failure is not None and failure.get("message") == writers.clean(cell.cause)
            assert "want 0.5" in (failure.text or "") and "12, 40" in (failure.text or "")
        elif cell.verdict == "hung":
            assert "did not answer in 60 s" in case.find("error").get("message")  # type: ignore[union-attr]
    scripts = [one.text for one in root.iter("system-out")]
    assert scripts and set(scripts) == {examples.SCRIPT}


def test_a_run_of_seconds_without_exponents() -> None:
    for seconds in (0.0, 1e-9, 1e9, 123456.789012):
        cell = replace(examples.held("ddp", "a"), seconds=seconds)
        board = Board((examples.engine("ddp"),), {"a": {}}, (cell,), run=replace(MIXED.board.run, seconds=seconds))
        assert junit_rules.problems(writers.to_junit(summarise(board))) == []


_VALID = writers.to_junit(MIXED)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('<testsuites name="equigrad judge"', '<testsuites name="equigrad judge" skipped="1"'),
        ('<testsuite name="ddp"', "<testsuite"),
        (' failures="0"', ""),
        (' errors="0"', ""),
        (' tests="', ' test="'),
        ("<skipped ", '<skipped reason="x" '),
        ("<failure ", "<problem "),
        ("</failure>", "<b/></failure>"),
        ('<testcase name="', '<testcase id="'),
        ('time="93.062"', 'time="9e1"'),
        ('time="93.062"', 'time="-1"'),
        ("</testsuites>", "<testcase name='x'/></testsuites>"),
        ("<system-out>", "<system-out x='1'>"),
        ("<testsuites ", "<suites "),
        ("</testcase>", "<testcase name='x'/></testcase>"),
    ],
)
def test_the_rules_of_junit_see_what_is_wrong(old: str, new: str) -> None:
    assert old in _VALID
    text = _VALID.replace(old, new, 1)
    if "problem" in new:
        text = text.replace("</failure>", "</problem>", 1)
    if "suites " in new and "<suites" in new:
        text = text.replace("</testsuites>", "</suites>")
    assert junit_rules.problems(text)


# ---- GitHub


def test_annotations_are_a_cause_each() -> None:
    lines = writers.to_annotations(MIXED, "judge.yml").splitlines()
    assert len(lines) == len(MIXED.causes) + len(MIXED.troubles)
    for line in lines:
        assert re.fullmatch(r"::error file=judge\.yml,title=[^:,]*::.*", line), line
    assert "100%25" in "".join(lines)
    assert writers.to_annotations(GREEN) == ""


def test_only_ten_annotations_are_shown_by_github() -> None:
    def many(count: int) -> list[str]:
        cells = {
            one.id: examples.red("ddp", one.id, f"Cause {i}.", f"kind-{i}") for i, one in enumerate(examples.CELLS[:count])
        }
        return writers.to_annotations(summarise(examples.board({"ddp": cells}, examples.CELLS))).splitlines()

    assert len(many(10)) == 10 and "more" not in "".join(many(10))
    assert len(many(15)) == 10 and "and 6 more causes" in many(15)[-1]
    assert all(line.startswith("::error title=") for line in many(3))


def test_annotations_with_a_baseline_are_of_what_is_new() -> None:
    old = replace(examples.mixed(), cells=tuple(cell for cell in examples.mixed().cells if cell.kind != "clip-by-last-norm"))
    (line,) = writers.to_annotations(summary_of(examples.mixed(), old)).splitlines()
    assert "Clipped by the norm of one rank" in line
    assert writers.to_annotations(summary_of(examples.mixed(), examples.mixed())) == ""


def test_a_run_that_judged_nothing_is_annotated() -> None:
    assert "INCONCLUSIVE" in writers.to_annotations(EMPTY)


# ---- words


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (writers.number, 1 / 3, "0.333333333"),
        (writers.number, 16777217.0, "16777217"),
        (writers.number, float("inf"), "inf"),
        (writers.duration, 59.94, "59.9 s"),
        (writers.duration, 61.0, "1 min 1 s"),
        (writers.place, replace(examples.FINDING, name="", element=(), rank=-1), "step 1, gradient"),
        (writers.place, examples.FINDING, "step 1, gradient of blocks.1.mlp.fc2.weight [12, 40], rank 1"),
    ],
)
def test_words(function: Callable[[object], str], value: object, text: str) -> None:
    assert function(value) == text


def test_every_verdict_has_a_glyph_of_its_own_and_a_meaning() -> None:
    assert len(set(GLYPHS.values())) == len(GLYPHS)
    assert set(MEANINGS) | {""} == set(GLYPHS)
    assert isinstance(MIXED.board.cells[0], Cell)
