"""Boards: written and read, put together, put beside each other, matched with known faults."""

from __future__ import annotations

import copy
import itertools
import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import example_boards as examples
import jsonschema
import pytest

from equigrad.judge import board as boards
from equigrad.judge import cases, compare, known, writers
from equigrad.judge.board import VERDICTS, WRONG, Board, BoardError, Cell, Finding, Repro
from equigrad.judge.cases import Axes
from equigrad.judge.summary import Cause, summarise

JUDGE = Path(boards.__file__).parent
SCHEMA = json.loads((JUDGE / "board.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
KINDS = ["not-reduced", "rank-missing", "not-zeroed"]


def valid(value: Any) -> bool:
    return bool(VALIDATOR.is_valid(value))


CONTRADICTIONS = ("cells of the engines and cases", "0 <= exact <= compared", "Such a cell is void")


def refusal(value: Any) -> str:
    """What reading says; "" where it takes it."""
    try:
        boards.loads(json.dumps(value))
    except BoardError as error:
        assert str(error).startswith("[judge] ") and ", got" in str(error)
        return str(error)
    return ""


def one_cell(verdict: str = "held", kind: str = "", case: str = "a", engine: str = "ddp", **more: Any) -> Cell:
    return Cell(engine, case, verdict, compared=7, exact=7, kind=kind, cause=kind and f"It is {kind}.", **more)


def of_cells(*cells: Cell, **more: Any) -> Board:
    engines = tuple(examples.engine(key) for key in dict.fromkeys(cell.engine for cell in cells))
    return Board(engines, {cell.case: {"feature": cell.case} for cell in cells}, cells, **more)


# ---- the file


@pytest.mark.parametrize("board", [examples.green(), examples.mixed(), of_cells()])
def test_a_board_comes_back_from_its_file(board: Board, tmp_path: Path) -> None:
    boards.write(board, tmp_path / "board.json")
    boards.write(board, tmp_path / "board.json")
    assert boards.read(tmp_path / "board.json") == board
    assert [path.name for path in tmp_path.iterdir()] == ["board.json"]
    assert valid(json.loads(boards.dumps(board)))


def test_numbers_come_back_bit_for_bit() -> None:
    odd = [math.inf, -math.inf, 5e-324, -0.0, 0.1, 1e308, 2.0**-149]
    cells = [one_cell("red", findings=(Finding(0, "gradient", got, 1.0, 0.0),), case=str(got)) for got in odd]
    cells.append(one_cell("red", findings=(Finding(0, "norm", math.nan, math.nan, math.inf),), case="nan"))
    text = boards.dumps(of_cells(*cells))
    assert "NaN" not in text and "Infinity" not in text and valid(json.loads(text))
    back = [cell.findings[0].got for cell in boards.loads(text).cells]
    assert [one.hex() for one in back[:-1]] == [one.hex() for one in odd] and math.isnan(back[-1])


def _paths(value: Any) -> list[list[Any]]:
    """Ways to every value within, but for the contents of `cases` and `not_run`, whose keys are free."""
    found: list[list[Any]] = [[]]
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += [[key, *path] for path in _paths(inner)]
    return found


def _mutants(value: Any) -> list[tuple[str, Any]]:
    made = []
    for path in _paths(value):
        for what in ("wrong", "gone", "more"):
            mutant = copy.deepcopy(value)
            holder: Any = {"root": mutant}
            for key in ["root", *path][:-1]:
                holder = holder[key]
            last = ["root", *path][-1]
            if what == "wrong":
                holder[last] = [True] if not isinstance(holder[last], list) else {"x": [1]}
            elif what == "gone" and path and isinstance(holder, dict):
                del holder[last]
            elif what == "more" and isinstance(holder[last], dict):
                holder[last]["another"] = [1]
            else:
                continue
            made.append((f"{what} {path}", mutant if path else holder["root"]))
    return made


def test_reading_and_the_schema_agree_about_what_is_a_board() -> None:
    full = one_cell(
        "red", "not-reduced", findings=(examples.FINDING,), repro=Repro("x", True), known=(examples.KNOWN,), text="t"
    )
    value = json.loads(
        boards.dumps(replace(of_cells(full, one_cell("held", case="b")), run=examples.mixed().run, notes=("n",)))
    )
    assert valid(value) and not refusal(value)
    refused = 0
    for about, mutant in _mutants(value):
        said = refusal(mutant)
        assert bool(said) == (not valid(mutant)) or any(one in said for one in CONTRADICTIONS), (about, said)
        refused += not valid(mutant)
    assert refused > 100


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda value: value["cells"].append(value["cells"][0]), "every cell once"),
        (lambda value: value["engines"].append(value["engines"][0]), "every engine once"),
        (lambda value: value["cells"][0].update(case="b"), "cells of the engines and cases"),
        (lambda value: value["cells"][0].update(engine="b"), "cells of the engines and cases"),
        (lambda value: value["cells"][0].update(verdict="green"), "a verdict of"),
        (lambda value: value["cells"][0].update(exact=8), "0 <= exact <= compared"),
        (lambda value: value["cells"][0].update(compared=0, exact=0), "Such a cell is void"),
        (lambda value: value.update(format=2), "format 1, got format 2"),
    ],
)
def test_a_board_that_contradicts_itself_is_refused(change: Any, said: str) -> None:
    value = json.loads(boards.dumps(of_cells(one_cell())))
    change(value)
    with pytest.raises(BoardError, match=said):
        boards.loads(json.dumps(value))


@pytest.mark.parametrize("text", ["", "[]", "{}", "{", "null", '{"format": 1}', "\x00"])
def test_what_is_no_board_is_refused_by_its_name(text: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text(text)
    with pytest.raises(BoardError, match=r"\[judge\] .*some.json"):
        boards.read(path)
    with pytest.raises(BoardError, match=r"\[judge\] expected a board in .*none.json"):
        boards.read(tmp_path / "none.json")


# ---- shards, a re-run


def _sharded(count: int) -> tuple[Board, list[Board]]:
    whole = examples.mixed()
    parts = []
    for index in range(1, count + 1):
        own = whole.cells[index - 1 :: count]
        ids = {cell.case for cell in own}
        parts.append(
            replace(
                whole,
                cells=own,
                cases={name: axes for name, axes in whole.cases.items() if name in ids},
                engines=tuple(one for one in whole.engines if any(cell.engine == one.key for cell in own)),
                run=replace(whole.run, shard=f"{index}/{count}", seconds=1.5),
                not_run={"no device": index},
            )
        )
    return whole, parts


def test_shards_make_the_whole() -> None:
    whole, parts = _sharded(4)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        merged = compare.merged([parts[index] for index in order])
        assert set(merged.cells) == set(whole.cells) and len(merged.cells) == len(whole.cells)
        assert merged.cases == whole.cases and set(merged.engines) == set(whole.engines)
        assert merged.run.shard == merged.run.partial == "" and merged.run.seconds == 6.0
        assert merged.not_run == {"no device": 10}
        assert boards.loads(boards.dumps(merged)) == merged
        assert summarise(merged).outcome == summarise(whole).outcome
    assert compare.merged([whole]) == replace(whole, run=replace(whole.run, partial=""))


def test_an_engine_that_never_answered_in_one_shard_is_that_of_the_others() -> None:
    _, (one, two) = _sharded(2)
    mute = replace(one, engines=tuple(replace(engine, version="", torch="") for engine in one.engines))
    assert set(compare.merged([mute, two]).engines) == set(two.engines) == set(compare.merged([two, mute]).engines)


def test_a_shard_that_is_missing_is_named_and_is_no_pass() -> None:
    green = examples.green()
    part = replace(green, run=replace(green.run, shard="2/3"))
    merged = compare.merged([part])
    assert merged.run.partial == "shard 1/3 is missing; shard 3/3 is missing"
    assert summarise(merged).outcome.word == "PARTIAL" and summarise(merged).outcome.exit_code == 4
    assert summarise(green).outcome.exit_code == 0


def test_boards_that_do_not_belong_together_are_refused() -> None:
    _, (one, two) = _sharded(2)
    seed = replace(two, run=replace(two.run, seed=8))
    other = replace(two, engines=tuple(replace(engine, torch="2.12.0") for engine in two.engines))
    again = replace(two, cells=(*two.cells, one.cells[0]), cases={**one.cases, **two.cases}, engines=one.engines)
    third = replace(two, run=replace(two.run, shard="2/3"))
    for second, said in (
        (one, "every shard once"),
        (seed, "of one seed"),
        (other, "in one version"),
        (again, "in one shard"),
        (third, "of one number"),
    ):
        with pytest.raises(BoardError, match=said):
            compare.merged([one, second])
    with pytest.raises(BoardError, match="got none"):
        compare.merged([])


def test_a_rerun_takes_the_place_of_what_it_ran_again() -> None:
    board = of_cells(one_cell("red", "not-reduced"), one_cell("held", case="b"), one_cell("hung", case="c"))
    again = of_cells(one_cell("held", case="c"), one_cell("red", "not-zeroed", case="d"))
    newer = compare.renewed(board, again)
    assert [(cell.case, cell.verdict) for cell in newer.cells] == [("a", "red"), ("b", "held"), ("c", "held"), ("d", "red")]
    with pytest.raises(BoardError, match="in one version"):
        compare.renewed(board, replace(again, engines=(replace(again.engines[0], version="9"),)))


# ---- a baseline, two versions


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        (one_cell("held"), one_cell("red", "not-reduced"), "broke"),
        (None, one_cell("red", "not-reduced"), "broke"),
        (one_cell("refused"), one_cell("hung"), "broke"),
        (one_cell("absent"), one_cell("void"), "broke"),
        (one_cell("red", "not-reduced"), one_cell("red", "not-zeroed"), "other_cause"),
        (one_cell("red", "not-reduced"), one_cell("crashed"), "other_cause"),
        (one_cell("red", "not-reduced or rank-missing"), one_cell("red", "rank-missing"), "still"),
        (one_cell("red", "not-reduced"), one_cell("red", "not-reduced"), "still"),
        (one_cell("hung", text="rank 1"), one_cell("hung", text="rank 1"), "still"),
        (one_cell("red", "not-reduced"), one_cell("held"), "mended"),
        (one_cell("red", "not-reduced"), one_cell("refused"), "gone"),
        (one_cell("red", "not-reduced"), None, "gone"),
        (one_cell("held"), None, "lost"),
        (one_cell("held"), one_cell("absent"), "lost"),
        (one_cell("held"), one_cell("held"), "same"),
        (None, one_cell("held"), "same"),
        (one_cell("absent"), one_cell("refused"), "same"),
    ],
)
def test_a_change_is_what_it_is(before: Cell | None, after: Cell | None, where: str) -> None:
    other = one_cell("held", case="z")
    found = compare.against_baseline(of_cells(*filter(None, (before, other))), of_cells(*filter(None, (after, other))))
    lists = {name: getattr(found, name) for name in ("broke", "other_cause", "still", "mended", "gone", "lost")}
    assert {name: len(changes) for name, changes in lists.items()} == {name: int(name == where) for name in lists}
    assert found.same == 1 + (where == "same")
    assert len(found.new) == int(where in ("broke", "other_cause"))


def test_every_case_of_either_side_is_in_one_list() -> None:
    generator = random.Random(3)

    def drawn() -> Board:
        names = generator.sample("abcdefghij", generator.randint(1, 9))
        cells = [(name, generator.choice(VERDICTS), generator.choice(KINDS)) for name in names]
        return of_cells(*(one_cell(verdict, kind if verdict == "red" else "", name) for name, verdict, kind in cells))

    for _ in range(200):
        before, after = drawn(), drawn()
        found = compare.against_baseline(before, after)
        lists = [found.broke, found.other_cause, found.still, found.mended, found.gone, found.lost]
        listed = [change.case for changes in lists for change in changes]
        assert len(listed) == len(set(listed)) and len(listed) + found.same == len({*before.cases, *after.cases})
        wrong = {cell.case for cell in after.cells if cell.verdict in WRONG}
        assert wrong == {change.case for change in found.new + found.still}
        assert not compare.against_baseline(after, after).new


def test_an_engine_is_the_same_one_in_another_version() -> None:
    def of_versions(*keys: str) -> Board:
        return of_cells(*(one_cell("red", "not-reduced", engine=key) for key in keys))

    old, new = of_versions("deepspeed==0.18.2", "ddp"), of_versions("deepspeed==0.19.8", "ddp")
    assert len(compare.against_baseline(old, new).still) == 2
    two = of_versions("deepspeed==0.18.2", "deepspeed==0.19.8")
    assert [change.engine for change in compare.against_baseline(old, two).still] == ["deepspeed==0.18.2"]
    assert [change.engine for change in compare.against_baseline(old, two).broke] == ["deepspeed==0.19.8"]
    assert [change.engine for change in compare.against_baseline(old, two).gone] == ["ddp"]


def test_two_versions_beside_each_other() -> None:
    board = examples.mixed()
    assert compare.versions(board) == (("deepspeed==0.18.2", "deepspeed==0.19.8"),)
    found = compare.beside(board, "deepspeed==0.18.2", "deepspeed==0.19.8")
    assert (found.before, found.after) == ("deepspeed==0.18.2", "deepspeed==0.19.8")
    assert {change.after.kind for change in found.broke if change.after} == {"clip-by-last-norm"}
    assert {change.before.kind for change in found.mended if change.before} == {"micro-batch-missing"}
    assert len(found.still) > 2 and not found.other_cause
    with pytest.raises(BoardError, match="expected an engine of"):
        compare.beside(board, "deepspeed", "ddp")


# ---- known faults


@pytest.mark.parametrize(
    ("version", "versions", "expected"),
    [
        ("0.18.2", ">=0.17.6,<0.18.3", True),
        ("0.18.2+cpu", ">=0.17.6,<0.18.3", True),
        ("0.18.3", ">=0.17.6,<0.18.3", False),
        ("0.18.10", "<0.18.3", False),
        ("0.9.0", ">=0.17.6", False),
        ("1.0", "==1.0.0", True),
        ("1", ">=1.0,<=1.0", True),
        ("2.11.0.dev1", ">2.10", True),
        ("", ">=0", False),
        ("", "", True),
        ("unknown", "<99", False),
    ],
)
def test_versions(version: str, versions: str, expected: bool) -> None:
    assert known.meets(version, versions) is expected


def test_a_known_fault_is_named_where_all_of_it_fits() -> None:
    fault = known.Fault("deepspeed", "<0.19", ("zero2/offload*",), ("not-reduced",), "https://example.org/1", "it")
    key, case = "deepspeed==0.18.2", "zero2/fp32/engine_backward/accumulation3/offload-adamw"
    cell = one_cell("red", "rank-missing or not-reduced", case, key)

    def named(one: Cell) -> bool:
        (found,) = known.with_known(of_cells(one), [fault]).cells
        return bool(found.known)

    assert named(cell)
    again = known.with_known(known.with_known(of_cells(cell), [fault]), [fault])
    assert len(again.cells[0].known) == 1
    others = (
        replace(cell, engine="ddp"),
        replace(cell, engine="deepspeed==0.19.0"),
        replace(cell, kind="rank-missing"),
        replace(cell, case=case.replace("zero2", "zero1")),
        replace(cell, verdict="crashed"),
    )
    for other in others:
        assert not named(other), other


def test_the_known_faults_are_of_cells_and_causes_that_there_are() -> None:
    sources = "".join(path.read_text() for path in JUDGE.glob("*.py"))
    assert known.faults()
    for one in known.faults():
        ids = [cell.id for cell in cases.plan(one.engine, Axes())]
        assert all(any(cases.matches(name, pattern) for name in ids) for pattern in one.cells), one
        assert all(f'"{kind}"' in sources for kind in one.kinds), one
        assert one.link.startswith("https://github.com/") and one.words


@pytest.mark.parametrize("text", ["{", '{"faults": [{}]}', '{"faults": 1}', "{}", '{"faults": [{"versions": ">=x"}]}'])
def test_a_list_of_known_faults_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(BoardError, match="known faults in mine.json"):
        known.faults(path)


def test_wrong_versions_are_refused() -> None:
    for versions in ("0.18", "~=0.18", ">=a", ">= 0.1 <0.2"):
        with pytest.raises(BoardError, match="expected versions like"):
            known.meets("0.18", versions)


# ---- grouped


def test_every_wrong_cell_is_in_one_cause() -> None:
    summary = summarise(examples.mixed())
    wrong = [(cell.engine, cell.case) for cell in summary.board.cells if cell.verdict in WRONG]
    listed = [(cell.engine, cell.case) for cause in (*summary.causes, *summary.troubles) for cell in cause.cells]
    assert sorted(wrong) == sorted(listed) == sorted(summary.numbers)
    assert all(cell.verdict == "red" for cause in summary.causes for cell in cause.cells)
    assert len({cause.sentence for cause in summary.causes}) == len(summary.causes) == 3
    assert [cause.number for cause in (*summary.causes, *summary.troubles)] == list(
        range(1, len(summary.causes) + len(summary.troubles) + 1)
    )


def test_cells_that_leave_it_open_stand_with_those_that_do_not() -> None:
    def causes(*kinds: str, verdict: str = "red") -> list[int]:
        cells = [one_cell(verdict, kind, str(index)) for index, kind in enumerate(kinds)]
        return sorted(len(one.cells) for one in summarise(of_cells(*cells)).causes)

    assert causes("not-reduced", "rank-missing or not-reduced", "not-reduced") == [3]
    assert causes("not-reduced", "rank-missing", "rank-missing or not-reduced") == [1, 2]
    assert causes("rank-missing or not-reduced", "not-zeroed or not-reduced", "rank-missing or not-zeroed") == [1, 2]
    assert causes("a or b", "a or b or c", "b or a", "c") == [1, 3]
    assert causes("rank-missing or not-reduced", "rank-missing or not-reduced") == [2]
    assert causes("not-reduced", "not-zeroed") == [1, 1]
    unknown = [
        one_cell("red", "unknown", what, findings=(Finding(0, what, 1.0, 2.0, 0.0),)) for what in ("norm", "gradient")
    ]
    assert len(summarise(of_cells(*unknown)).causes) == 2


def test_a_cause_says_what_its_plainest_cell_says() -> None:
    def cell(case: str, cause: str, *steps: int, confirmed: bool | None = None) -> Cell:
        findings = tuple(replace(examples.FINDING, step=step) for step in steps)
        repro = None if confirmed is None else Repro("x", confirmed)
        return replace(one_cell("red", "not-reduced", case, findings=findings, repro=repro), cause=cause)

    def cause(*cells: Cell) -> Cause:
        (found,) = summarise(of_cells(*cells)).causes
        return found

    found = cause(
        cell("a/b/clip", "The norm is 3.", 0),
        cell("a/b", "All are 2.5.", 1),
        cell("a/c", "All are 3.5.", 0),
        cell("a/d", "All are 4.", 0),
    )
    assert (found.example.case, found.sentence, found.others) == ("a/c", "All are 3.5.", ("The norm is 3.",))
    assert cause(cell("a", "One.", 0), cell("a/b", "Two.", 1, confirmed=True)).sentence == "Two."
    assert cause(cell("a", "One.", 0, confirmed=False), cell("a/b", "Two.", 1, confirmed=True)).sentence == "Two."
    assert cause(cell("a", "One.", 0), cell("a/b", "Two.", 1, confirmed=False)).sentence == "Two."


@pytest.mark.parametrize(
    ("text", "headline"),
    [
        ("", "crashed"),
        ("rank 1 ended: signal 11\nlast it said: x", "rank 1 ended: signal 11"),
        ("rank 0: Traceback (most recent call last):\n  File x\nRuntimeError: boom\nmore of it\n", "RuntimeError: boom"),
        (
            "Traceback:\nValueError: first\n\nDuring ...\n  torch.distributed.DistBackendError: last",
            "torch.distributed.DistBackendError: last",
        ),
    ],
)
def test_the_headline_of_what_an_engine_said(text: str, headline: str) -> None:
    assert one_cell("crashed", text=text).headline == headline


def test_crashes_of_another_rank_are_one_cause_and_a_void_cell_says_why() -> None:
    texts = ("rank 0 ended: signal SIGABRT", "rank 1 ended: signal SIGABRT", "rank 1 ended: exit code 3")
    crashes = summarise(of_cells(*(one_cell("crashed", case=str(i), text=text) for i, text in enumerate(texts)))).troubles
    assert sorted(len(one.cells) for one in crashes) == [1, 2]
    void = one_cell("void", "not-reduced", text="[judge] expected it twice, got it once.")
    (trouble,) = summarise(of_cells(void, one_cell("void", "not-zeroed", "b", text=void.text))).troubles
    assert trouble.sentence == void.text and len(trouble.cells) == 2


def test_versions_of_an_engine_share_a_cause_and_engines_do_not() -> None:
    keys = ("deepspeed==0.18.2", "deepspeed==0.19.8", "ddp")
    causes = summarise(of_cells(*(one_cell("red", "not-reduced", engine=key) for key in keys))).causes
    assert [one.keys for one in causes] == [keys[:2], keys[2:]]


def test_conditions_tell_red_cells_from_others_and_are_few() -> None:
    axes = [
        {"stage": s, "precision": p, "feature": f} for s, p, f in itertools.product("123", ("fp32", "bf16"), ("", "clip"))
    ]
    names = {"/".join(one.values()): one for one in axes}

    def board(red: set[str], judged: set[str] | None = None) -> Board:
        cells = [
            one_cell("red" if name in red else "held", "not-reduced" if name in red else "", name)
            for name in names
            if judged is None or name in judged
        ]
        return Board((examples.engine("ddp"),), names, tuple(cells))

    def said(red: set[str], judged: set[str] | None = None) -> tuple[list[str], int]:
        (cause,) = summarise(board(red, judged)).causes
        return [one.words for one in cause.conditions], cause.alike

    assert said({name for name, one in names.items() if one["stage"] == "2"}) == (["stage 2"], 0)
    both = {name for name, one in names.items() if one["stage"] in "23" and one["feature"] == "clip"}
    assert said(both) == (["stage 2 or 3", "feature clip"], 0)
    assert said(both - {"2/bf16/clip"}) == (["stage 2 or 3", "feature clip"], 1)
    assert said(set(names)) == ([], 0)
    assert said({"1/fp32/"}, {"1/fp32/", "1/fp32/clip"}) == (["feature none"], 0)


@pytest.mark.parametrize(
    ("cells", "partial", "word", "code"),
    [
        ([one_cell("held")], "", "HELD", 0),
        ([one_cell("held"), one_cell("refused", case="b"), one_cell("absent", case="c")], "", "HELD", 0),
        ([one_cell("held"), one_cell("red", "not-reduced", "b"), one_cell("hung", case="c")], "", "RED", 1),
        ([one_cell("held"), one_cell("red", "not-reduced", "b")], "interrupted", "RED", 1),
        ([one_cell("held"), one_cell("hung", case="b")], "", "BROKEN", 3),
        ([one_cell("held"), one_cell("crashed", case="b")], "", "BROKEN", 3),
        ([one_cell("held"), one_cell("void", case="b")], "", "BROKEN", 3),
        ([Cell("ddp", "a", "refused")], "", "INCONCLUSIVE", 4),
        ([], "", "INCONCLUSIVE", 4),
        ([one_cell("held")], "interrupted", "PARTIAL", 4),
    ],
)
def test_the_verdict_and_its_exit_code(cells: list[Cell], partial: str, word: str, code: int) -> None:
    board = of_cells(*cells)
    outcome = summarise(replace(board, run=replace(board.run, partial=partial))).outcome
    assert (outcome.word, outcome.exit_code) == (word, code)
    assert partial in outcome.sentence or word == "PARTIAL"
    assert ("crashed, hung" in outcome.sentence) == any(one.verdict in ("crashed", "hung", "void") for one in cells)


def test_notes_stand_in_the_text() -> None:
    board = examples.green()
    noted = replace(board, notes=("what is not in it",))
    assert "\nnote: what is not in it\n" in writers.to_text(summarise(noted))
    assert "note:" not in writers.to_text(summarise(board))


@pytest.mark.parametrize(
    ("before", "after", "word", "code"),
    [
        ("held", "red", "RED", 1),
        ("red", "red", "HELD", 0),
        ("red", "held", "HELD", 0),
        ("held", "hung", "BROKEN", 3),
        ("hung", "hung", "HELD", 0),
        ("hung", "red", "RED", 1),
    ],
)
def test_with_a_baseline_only_what_is_new_counts(before: str, after: str, word: str, code: int) -> None:
    old, new = (of_cells(one_cell(verdict), one_cell("held", case="b")) for verdict in (before, after))
    outcome = summarise(new, compare.against_baseline(old, new)).outcome
    assert (outcome.word, outcome.exit_code) == (word, code)


def test_axes_count_every_cell_once_for_each_axis() -> None:
    board = examples.mixed()
    summary = summarise(board)
    assert [one.name for one in summary.axes] == ["stage", "precision", "style", "accumulation", "world", "feature"]
    for axis in summary.axes:
        for index, engine in enumerate(board.engines):
            total: dict[str, int] = {}
            for row in axis.rows:
                for verdict, count in row.boxes[index].counts.items():
                    total[verdict] = total.get(verdict, 0) + count
            assert (
                total
                == summary.engines[index].box.counts
                == {verdict: sum(cell.verdict == verdict for cell in board.of_engine(engine.key)) for verdict in total}
            )
    assert [row.value for row in summary.axes[0].rows] == ["0", "1", "2", "3"]
    assert summary.axes[-1].rows[0].value == ""


def test_a_box_shows_the_worst_that_was_judged() -> None:
    def box(*verdicts: str) -> tuple[str, str]:
        one = summarise(of_cells(*(one_cell(verdict, case=str(i)) for i, verdict in enumerate(verdicts)))).box
        return one.verdict, one.text

    assert box("held", "absent", "refused") == ("held", "1")
    assert box("held", "red", "absent") == ("red", "1/2")
    assert box("absent", "refused") == ("refused", "2")
    assert box("absent") == ("absent", "1")
    assert box("hung", "held", "void") == ("hung", "2/3")
    assert box() == ("", "")
