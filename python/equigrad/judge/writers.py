"""A board as an HTML page, as markdown, for a terminal, as JUnit's XML, and as annotations of GitHub."""

from __future__ import annotations

import functools
import re
import shlex
import textwrap
from pathlib import Path
from xml.etree import ElementTree

import jinja2
import markupsafe

from .board import VERDICTS, WRONG, Board, Cell, Finding
from .compare import Change, Comparison
from .environments import own_version
from .pivot import pivots
from .summary import GLYPHS, MEANINGS, Box, Cause, EngineSummary, Summary, counted, label_of, listed

ANNOTATIONS = 10
"""GitHub shows so many of a step, and drops the others without a word."""
TONES = {"HELD": "held", "RED": "red", "BROKEN": "crashed", "INCONCLUSIVE": "void", "PARTIAL": "void"}
"""The verdict whose glyph and colour a run's outcome has."""
CLASSES = {
    "held": "m0",
    "red": "bad",
    "crashed": "crash",
    "hung": "late",
    "void": "m4",
    "refused": "skip-c",
    "absent": "skip-c",
    "": "skip-c",
}
"""Of a verdict, in page.css of all reports; "" is a place without cells."""
_OF_A_CELL = ("--model", "--config", "--python", "--timeout", "--seed")
"""Options of a run that what a cell gives depends on; --device is the board's."""
_HEADERS = {"held": "held", "red": "failed", "crashed": "broken", "void": "inconclusive"}
_ORDER = ("red", "crashed", "hung", "void", "held", "refused", "absent")
"""Of counts in a line: what went wrong, what did not, what was not judged."""
_NUMBERS = ("Got", "Want", "Radius", "Wrong", "Cells", "Elements compared", "Bit for bit")
"""Heads of columns of numbers."""
_PACKAGE = Path(__file__).parents[1]
_TEMPLATES = (
    _PACKAGE / "reports" / "templates",
    _PACKAGE.parents[1] / "reports" / "templates",  # where the judge runs from the tree
    Path(__file__).with_name("templates"),
)
"""The first two have what the pages of all reports are made of: page.html, page.css, page.js."""


RUNS = "../equigrad-report/index.html"
"""From the folder of a report: the page of the runs of `equigrad` beside it, by their default."""
_REPORTS = '<nav class="reports" aria-label="Reports"{}>{}</nav>\n'


def to_html(summary: Summary, index: str = "") -> str:
    """One page that needs nothing else, neither a network nor a script. index: what it leads back to, if anything."""
    board, tone = summary.board, TONES[summary.outcome.word]
    given = {
        "summary": summary,
        "board": board,
        "pivots": [(one, pivots(board, one.engine.key)) for one in summary.engines],
        "verdicts": VERDICTS,
        "lists": comparison_lists,
    }
    parts = {
        place: markupsafe.Markup(_template(f"{name}.html").render(given))
        for place, name in (("summary", "banner"), ("navigation", "navigation"), ("main", "main"))
    }
    mark = markupsafe.Markup('<span aria-hidden="true">{}</span> {}')
    return _template("page.html").render(
        parts,
        title=f"{summary.outcome.word}: {listed([label_of(one.engine) for one in summary.engines])}",
        style=markupsafe.Markup(_text("page.css") + _text("judge.css")),
        reports=markupsafe.Markup(_REPORTS).format(
            markupsafe.Markup("" if index else " hidden"),
            markupsafe.Markup('<a href="{}">All reports</a>').format(index) if index else "",
        ),
        tone=_HEADERS[tone],
        brand="Equigrad judge",
        time=board.run.started or "at a time that was not recorded",
        heading=mark.format(GLYPHS[tone], summary.outcome.word),
        version=own_version() or "from its tree",
        data_file="board.json",
        script=markupsafe.Markup(_text("page.js") + _text("judge.js")),
    )


def with_judge(index: str, summary: Summary) -> str:
    """The page of the runs with its link to this board, as later runs write it (reports/folder_index.hpp)."""
    link = markupsafe.Markup('<a href="../judge-report/index.html">Judge <span>{} {}</span></a>')
    found = re.search(_REPORTS.format("(?: hidden)?", "(.*?)"), index, re.DOTALL)
    if not found:
        return index
    others = re.sub(r'<a href="\.\./judge-report/index\.html">.*?</a>', "", found[1])
    links = others + str(link.format(GLYPHS[TONES[summary.outcome.word]], summary.outcome.word))
    return index[: found.start()] + _REPORTS.format("", links) + index[found.end() :]


def to_markdown(summary: Summary, max_bytes: int = 900_000) -> str:
    """For a README or the summary of a job. What does not fit in `max_bytes` is left out, causes last of all."""
    text = _template("board.md.jinja").render(summary=summary, board=summary.board, lists=comparison_lists)
    raw = text.encode()
    if len(raw) <= max_bytes:
        return text
    note = "\n\n(cut off here; the whole is in the report)\n"
    kept = raw[: max(0, max_bytes - len(note.encode()))].decode(errors="ignore").rpartition("\n")[0]
    if kept.count("\n```") % 2:
        kept = kept.rpartition("\n```")[0]
    return kept + note


def to_text(summary: Summary, width: int = 80, colour: bool = False, report: str = "") -> str:
    """For a terminal of that many columns: engines, causes, verdict. report: the folder that scripts lie in."""
    paint = functools.partial(_painted, colour=colour)
    lines = _engine_lines(summary, width, paint)
    for cause in (*summary.causes, *summary.troubles):
        lines += ["", *_cause_lines(summary.board, cause, width, paint, report)]
    for one in summary.comparisons:
        lines += ["", *_wrapped(f"{one.after} against {one.before}", width, "", "  ")]
        for words, changes in comparison_lists(one):
            lines += _wrapped(f"{counted(len(changes), 'cell')} {words}", width, "  ", "    ") if changes else []
    for note in summary.board.notes:
        lines += ["", *_wrapped(f"note: {note}", width, "", " " * 2)]
    lines += ["", *_wrapped(f"{summary.outcome.word}  {summary.outcome.sentence}", width, "", " " * 2)]
    lines[-1:] = [paint(lines[-1], TONES[summary.outcome.word])] if len(lines[-1]) else []
    return "\n".join(lines) + "\n"


def to_junit(summary: Summary) -> str:
    """A suite for each engine, a test for each cell; as Jenkins' junit-10.xsd asks for it."""
    suites = [_suite(summary, one) for one in summary.engines]
    if summary.outcome.word in ("INCONCLUSIVE", "PARTIAL"):
        whole = ElementTree.Element("testsuite", name="run")
        case = ElementTree.SubElement(whole, "testcase", name="run", classname="judge", time="0.000")
        _put(case, "error", summary.outcome.sentence, summary.outcome.word.lower(), summary.outcome.sentence)
        suites.append(_tallied(whole))
    root = ElementTree.Element("testsuites", name="equigrad judge", time=_time(summary.board.run.seconds))
    for name in ("tests", "failures", "errors"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def to_annotations(summary: Summary, file: str = "") -> str:
    """`::error` lines of a GitHub workflow: a cause each, not a cell each. `file`: where they are shown, if anywhere."""
    wrong = [one for one in (*summary.causes, *summary.troubles) if summary.gate is None or _is_new(one, summary.gate)]
    lines = []
    for one in wrong[: ANNOTATIONS if len(wrong) <= ANNOTATIONS else ANNOTATIONS - 1]:
        title = f"{listed([_label(summary.board, key) for key in one.keys])}: {one.verdict}"
        lines.append(_annotation(title, f"{one.sentence}\n{where_of(one)}\nFor example {one.example.case}", file))
    if len(wrong) > ANNOTATIONS:
        lines.append(
            _annotation("equigrad judge", f"and {len(wrong) - ANNOTATIONS + 1} more causes; the report has all", file)
        )
    if not wrong and summary.outcome.exit_code:
        lines.append(_annotation(f"equigrad judge: {summary.outcome.word}", summary.outcome.sentence, file))
    return "".join(lines)


def where_of(cause: Cause) -> str:
    """Its cells in words: "12 cells: stage 2, feature offload; all such cells are red."."""
    text = counted(len(cause.cells), "cell")
    if cause.conditions:
        text += ", only with " + "; ".join(one.words for one in cause.conditions)
        text += f". {counted(cause.alike, 'such cell')} held" if cause.alike else ". No such cell held"
    return text + "."


def again_of(board: Board, cell: Cell) -> str:
    """The line that judges a cell again alone, with whatever of the run's command its numbers depend on."""
    kept = ["equigrad", "judge", cell.engine]
    words = shlex.split(board.run.command)
    for i, word in enumerate(words):
        option, equals, _ = word.partition("=")
        if option in _OF_A_CELL:
            kept += [word] if equals else words[i : i + 2]
    if board.run.device != "cpu":
        kept += ["--device", board.run.device]
    return shlex.join([*kept, "--only", cell.case])


def comparison_lists(one: Comparison) -> tuple[tuple[str, tuple[Change, ...]], ...]:
    """Its lists with their words, what matters most first."""
    return (
        ("went wrong that did not before", one.broke),
        ("wrong as before, for another cause", one.other_cause),
        ("mended", one.mended),
        ("still wrong, for the same cause", one.still),
        ("wrong before, and not judged now", one.gone),
        ("held before, and not judged now", one.lost),
    )


def number(value: float) -> str:
    """Nine digits: any fp32 in full."""
    return f"{value:.9g}"


def duration(seconds: float) -> str:
    """ "4 min 12 s"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def place(finding: Finding) -> str:
    """Where a finding is: "step 1, gradient of mlp.weight [3, 4], rank 1". People count steps from 1, as causes do."""
    text = f"step {finding.step + 1}, {finding.what}" + (f" of {finding.name}" if finding.name else "")
    text += f" [{', '.join(map(str, finding.element))}]" if finding.element else ""
    return text + (f", rank {finding.rank}" if finding.rank >= 0 else "")


def proportions(box: Box) -> list[tuple[str, float, float]]:
    """Verdict, left edge and width of the parts of a bar that is 100 wide. What went wrong is seen, however little it is."""
    parts, left = [], 0.0
    for verdict in filter(box.of, _ORDER):
        width = min(100 - left, max(100 * box.of(verdict) / box.total, 0.5 if verdict in WRONG else 0))
        parts.append((verdict, left, width))
        left += width
    return parts


def _text(name: str) -> str:
    """A file that goes into a page as it is."""
    return next(folder / name for folder in _TEMPLATES if (folder / name).exists()).read_text(encoding="utf-8")


@functools.cache
def _template(name: str) -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=jinja2.select_autoescape(("html",)),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    functions = (counted, listed, where_of, number, duration, place, proportions)
    environment.filters.update({one.__name__: one for one in functions})
    environment.filters.update(label=label_of, cell=table_text, fence=_fence, breakable=_breakable)
    environment.globals.update(
        GLYPHS=GLYPHS, MEANINGS=MEANINGS, CLASSES=CLASSES, ORDER=_ORDER, NUMBERS=_NUMBERS, is_new=_is_new, again_of=again_of
    )
    return environment.get_template(name)


def _is_new(cause: Cause, gate: Comparison | None) -> bool:
    new = {(change.engine, change.case) for change in gate.new} if gate else set()
    return any((cell.engine, cell.case) in new for cell in cause.cells)


def _label(board: Board, key: str) -> str:
    return label_of(board.engine(key))


def _breakable(text: str) -> markupsafe.Markup:
    """A name that a narrow column may break after an underscore, a hyphen or a slash."""
    return markupsafe.Markup(re.sub("([_/-])", r"\1<wbr>", str(markupsafe.escape(text))))


# ---- markdown


def table_text(text: str) -> str:
    """Text for a place in a table of markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", " ".join(text.split()))


def _fence(text: str) -> str:
    """Three backticks, or more than any run of them in the text."""
    return "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))


# ---- terminal

_COLOURS = {"held": "32", "red": "1;31", "crashed": "1;35", "hung": "35", "void": "33"}


def _painted(text: str, tone: str, colour: bool) -> str:
    return f"\x1b[{_COLOURS[tone]}m{text}\x1b[0m" if colour and tone in _COLOURS else text


def _wrapped(text: str, width: int, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        clean(text), max(20, width), initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    ) or [first]


def _engine_lines(summary: Summary, width: int, paint: functools.partial[str]) -> list[str]:
    """A table where it fits, else a line of words for each engine."""
    shown = [one for one in VERDICTS[::-1] if summary.box.of(one)]
    names = [label_of(one.engine) for one in summary.engines]
    first = max(map(len, ["engine", *names]), default=6)
    columns = [max(len(one), *(len(f"{each.box.of(one):,}") for each in summary.engines)) for one in shown] if names else []
    if first + sum(one + 2 for one in columns) + 4 > width:
        return [line for one in summary.engines for line in _wrapped(_in_words(one), width, "", "    ")]
    lines = [f"  {'engine':<{first}}" + "".join(f"  {name:>{wide}}" for name, wide in zip(shown, columns, strict=True))]
    for name, one in zip(names, summary.engines, strict=True):
        counts = [f"{one.box.of(verdict):,}" if one.box.of(verdict) else "-" for verdict in shown]
        row = "".join(f"  {count:>{wide}}" for count, wide in zip(counts, columns, strict=True))
        verdict = one.box.verdict
        lines.append(paint(f"{GLYPHS[verdict]} ", verdict) + f"{name:<{first}}{row}")
    return lines


def _in_words(one: EngineSummary) -> str:
    return f"{GLYPHS[one.box.verdict]} {label_of(one.engine)}: {one.box.words}"


def _cause_lines(board: Board, cause: Cause, width: int, paint: functools.partial[str], report: str) -> list[str]:
    lines = _wrapped(
        f"{GLYPHS[cause.verdict]} {listed([_label(board, key) for key in cause.keys])}: {cause.sentence}", width, "", "  "
    )
    lines[0] = paint(lines[0][0], cause.verdict) + lines[0][1:]
    lines += _wrapped(where_of(cause), width, "  ", "  ")
    if cause.finding:
        one = cause.finding
        worst = f", the worst of {counted(one.wrong, 'wrong element')} there" if one.wrong > 1 else ""
        lines += _wrapped(place(one) + worst, width, "  ", "    ")
        lines += _wrapped(
            f"got {number(one.got)}  want {number(one.want)}  radius {number(one.radius)}", width, "    ", "    "
        )
    lines += [f"  known: {one.link}" for one in cause.known]
    if cause.repro and cause.repro.path:
        lines.append(f"  script: {Path(report, cause.repro.path)}")
    if cause.verdict == "red" and cause.example.text:
        lines += _wrapped(cause.example.text, width, "  ", "    ")
    return [*lines, f"  again: {again_of(board, cause.example)}"]


# ---- JUnit


def _suite(summary: Summary, one: EngineSummary) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=one.engine.key)
    cells = summary.board.of_engine(one.engine.key)
    for cell in cells:
        name = f"{cell.case} ({cell.engine})"  # GitLab takes one of those that have the same name
        case = ElementTree.SubElement(suite, "testcase", name=clean(name), classname=clean(f"judge.{cell.engine}"))
        case.set("time", _time(cell.seconds))
        _add_result(case, cell, again_of(summary.board, cell))
    suite.set("time", _time(sum(cell.seconds for cell in cells)))
    return _tallied(suite)


def _tallied(suite: ElementTree.Element) -> ElementTree.Element:
    suite.set("tests", str(len(suite)))
    for name, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(len(suite.findall(f"testcase/{element}"))))
    return suite


def _add_result(case: ElementTree.Element, cell: Cell, again: str) -> None:
    if cell.verdict == "red":
        _put(case, "failure", cell.cause, "red", report_of(cell, again))
    elif cell.verdict in WRONG:
        _put(case, "error", cell.headline, cell.verdict, cell.text)
    elif cell.verdict != "held":
        _put(case, "skipped", f"{cell.verdict}: {cell.text}", "", "")
    if cell.verdict == "red" and cell.repro:
        ElementTree.SubElement(case, "system-out").text = clean(cell.repro.script)


def report_of(cell: Cell, again: str) -> str:
    """A red cell as plain text: cause, findings, links, what else is known of it, and how it is judged again."""
    lines = [cell.cause]
    for one in cell.findings:
        lines += [f"{place(one)}: {one.wrong:,} of {counted(one.of, 'element')} wrong"]
        lines += [f"  got {number(one.got)}  want {number(one.want)}  radius {number(one.radius)}"]
    lines += [f"known: {one.link} {one.words}" for one in cell.known]
    return "\n".join([*lines, *filter(None, [cell.text]), f"again: {again}"])


def _put(case: ElementTree.Element, element: str, message: str, kind: str, text: str) -> None:
    made = ElementTree.SubElement(case, element, message=clean(message))
    if kind:
        made.set("type", kind)
    made.text = clean(text) or None


def _time(seconds: float) -> str:
    """The schema knows no exponents."""
    return f"{seconds:.3f}"


def clean(text: str) -> str:
    """Without what XML 1.0 has no way to write."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "�", text)


# ---- GitHub


def _annotation(title: str, message: str, file: str) -> str:
    properties = f"file={_escaped(file)}," if file else ""
    text = message.replace("%", "%25").replace("\r", "").replace("\n", "%0A")
    return f"::error {properties}title={_escaped(title)}::{text}\n"


def _escaped(text: str) -> str:
    for plain, written in (("%", "%25"), ("\r", ""), ("\n", "%0A"), (":", "%3A"), (",", "%2C")):
        text = text.replace(plain, written)
    return text
