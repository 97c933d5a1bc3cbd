"""conformance/faults/source_mutants on a small tree of its own: every rule makes its slip, one program has all of them, and a
campaign tells who saw which.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "conformance" / "faults" / "source_mutants"
sys.path.insert(0, str(TOOL))

import campaign
import judging
import planting
import report
import sites
import slips as made_slips

SOURCE = """\
#include "engine/room/a.hpp"

#include <algorithm>
#include <string>
#include <vector>

constexpr int kRows = 1 + 2;
static_assert(kRows < 4);

int sum(const std::vector<int>& values, int from, int to) {
  if (from < 0 || to > kRows) throw std::string("from " + std::to_string(from + 1));
  int total = 0;
  for (int i = from; i < to; ++i) {
    if (values[static_cast<unsigned>(i)] == 9) continue;
    total += values[static_cast<unsigned>(i)] * 2;
  }
  return total;
}

bool is_small(int value) { return !(value >= 10); }

#define GUARDED(numel) std::vector<int> guard(numel); guard.clear()
std::vector<int> sorted(std::vector<int> values) {
  GUARDED(values.size());
  std::sort(values.begin(), values.end());
  return values;
}

template <int kSize>
int of_array() {
  std::array<int, 2> numbers{kSize, 5};
  const bool first = true;
  switch (kSize) {
    case 1:
      return first ? std::max(numbers[0], numbers[1]) : -numbers[1];
    default:
      return static_cast<int>(sizeof(int[3]));
  }
}

std::string name(int a) { return "a" + std::to_string(a + 2); }

int all(int a, int b) {
  auto less = [](int x, int y) { return x - y; };
  a = less(a, b);
  return a % 7 + of_array<1>() + (is_small(b) && a != b ? sum(sorted({3, 4, 1}), 0, 2) : scaled(b));
}
"""
HEADER = """\
#pragma once
#include <array>
inline int scaled(int value) { return value << 1; }
constexpr int never(int value) { return value + 1; }
"""
MAIN = """\
#include <cstdio>
int all(int, int);
int main() { std::printf("%d\\n", all(5, 3)); return all(5, 3) != 15; }
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "engine/room/tests").mkdir(parents=True)
    (root / "engine/room/a.cpp").write_text(SOURCE)
    (root / "engine/room/a.hpp").write_text(HEADER)
    (root / "engine/room/tests/a_test.cpp").write_text("int ours(int a) { return a + 1; }\n")
    (root / "main.cpp").write_text(MAIN)
    (root / ".gitignore").write_text("build/\n")
    (root / "build").mkdir()
    rows = [
        {
            "directory": str(root / "build"),
            "file": str(root / one),
            "command": f"clang++ -std=c++20 -Wall -Werror -I{root} -o x.o -c {root / one}",
        }
        for one in ("engine/room/a.cpp", "engine/room/tests/a_test.cpp", "main.cpp")
    ]
    (root / "build/compile_commands.json").write_text(json.dumps(rows))
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "a"]):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    return root


def read(tree: Path) -> tuple[sites.Commands, list[sites.Site], dict[str, str]]:
    commands = sites.Commands(tree, tree / "build")
    return commands, *sites.Reader(commands, tree / "build/cache").read(lambda _: None, 1)


def planted(tree: Path, count: int | None, seed: int = 1) -> tuple[dict[int, sites.Site], list[sites.Site]]:
    """A sample of the tree in the tree; with no count every slip that compiles."""
    commands, every, by = read(tree)
    planter = planting.Planter(commands, by, lambda _: None, 1)
    planter.check_clean()
    if count is None:
        numbered = dict(enumerate(every, 1))
        wrong = planter.wrong_of({one.file for one in every}, numbered)
        chosen = {number: one for number, one in numbered.items() if number not in wrong}
        dropped = [numbered[one] for one in wrong]
    else:
        chosen, dropped, _ = planter.choose(every, count, seed)
    planter.write(chosen)
    return chosen, dropped


def program(tree: Path) -> Path:
    out = tree / "build/program"
    files = [str(tree / "main.cpp"), str(tree / "engine/room/a.cpp")]
    subprocess.run(["clang++", "-std=c++20", "-Wall", "-Werror", f"-I{tree}", "-o", str(out), *files], check=True)
    return out


def slips(found: list[sites.Site]) -> set[str]:
    return {f"{one.slip.operator}: {one.before} -> {one.after}" for one in found}


def test_every_rule_makes_its_slips(tree: Path) -> None:
    _, every, _ = read(tree)
    expected = {
        "relational: from < 0 -> from <= 0",
        "relational: to > kRows -> to <= kRows",
        "relational: a != b -> a == b",
        "arithmetic: values[static_cast<unsigned>(i)] * 2 -> values[static_cast<unsigned>(i)] / 2",
        "arithmetic: a % 7 -> a * 7",
        "arithmetic: ++i -> --i",
        "arithmetic: -numbers[1] -> numbers[1]",
        "bits: value << 1 -> value >> 1",
        "logical: from < 0 || to > kRows -> (from < 0) && (to > kRows)",
        "logical: from < 0 || to > kRows -> static_cast<bool>(to > kRows)",
        "logical: !(value >= 10) -> static_cast<bool>((value >= 10))",
        "constant: 0 -> (0 + 1)",
        "constant: 7 -> (7 - 1)",
        "constant: true -> false",
        "constant: kRows -> kRows - 1",
        "condition negated: first -> !(first)",
        'throw deleted: throw std::string("from " + std::to_string(from + 1)); -> (deleted)',
        "jump deleted: continue; -> (deleted)",
        "assignment deleted: a = less(a, b); -> (deleted)",
        "call deleted: std::sort(values.begin(), values.end()); -> (deleted)",
        "returned value: total -> static_cast<int>((total) + 1)",
        "returned value: return values; -> return {};",
        "assigned value: less(a, b) -> static_cast<int>((less(a, b)) + 1)",
        "twin call: std::max(numbers[0], numbers[1]) -> std::min(numbers[0], numbers[1])",
        "arguments swapped: a, b -> b, a",
    }
    found = {one.replace("(kRows - 1)", "kRows - 1") for one in slips(every)}
    assert expected - found == set()
    assert "arguments swapped: 0, 2 -> 2, 0" in found
    assert len({one.key for one in every}) == len(every)


def test_what_is_no_site(tree: Path) -> None:
    _, every, _ = read(tree)
    lines = {(one.file, SOURCE.splitlines()[one.line - 1]) for one in every if one.file.endswith(".cpp")}
    assert not any("constexpr" in text or "static_assert" in text or "case" in text for _, text in lines)
    assert not any("sizeof" in one.line_text and one.before == "3" for one in every)
    assert not any("GUARDED" in text for _, text in lines), "what a macro declares would end with the mutant's block"
    assert not any("std::array<int" in one.line_text and one.before == "2" for one in every)
    assert not any("from + 1" in one.before and one.slip.operator != "throw deleted" for one in every), "words of an error"
    assert not any("a + 2" in one.before for one in every), "words"
    assert not any(one.before.startswith("value + 1") for one in every), "a constexpr function"
    assert {one.file for one in every} == {"engine/room/a.cpp", "engine/room/a.hpp"}, "tests are not mutated"


def test_one_program_has_every_mutant(tree: Path) -> None:
    chosen, _ = planted(tree, None)
    run = program(tree)
    outcomes = {}
    for number in [0, *chosen]:
        limited = ["timeout", "5", str(run)]
        done = subprocess.run(limited, env={"EQUIGRAD_MUTANT": str(number)}, check=False, capture_output=True, text=True)
        outcomes[number] = (done.returncode, done.stdout)
    assert outcomes[0] == (0, "15\n")
    same = {one: site for one, site in chosen.items() if outcomes[one] == outcomes[0]}
    changed = {site.slip.operator for one, site in chosen.items() if one not in same}
    assert changed >= {
        "relational",
        "arithmetic",
        "logical",
        "constant",
        "assignment deleted",
        "returned value",
        "twin call",
    }
    assert changed >= {"call deleted", "arguments swapped", "assigned value", "condition negated"}
    assert not any(site.before == "total += values[static_cast<unsigned>(i)] * 2;" for site in same.values())
    assert any(site.before == "to > kRows" for site in same.values()), "a boundary that main does not try"


def test_a_place_is_reached_or_not(tree: Path) -> None:
    chosen, _ = planted(tree, None)
    reached = tree / "build/reached"
    reached.write_bytes(bytes(max(chosen) + 1))
    environment = {"EQUIGRAD_MUTANT_REACHED": str(reached)}
    subprocess.run([str(program(tree))], env=environment, check=True, capture_output=True)
    marks = reached.read_bytes()
    by_text = {site.before: marks[number] for number, site in chosen.items()}
    assert by_text["a % 7"] == 1
    assert by_text["value << 1"] == 0
    assert by_text['throw std::string("from " + std::to_string(from + 1));'] == 0


def test_a_sample_is_the_seeds_and_compiles(tree: Path) -> None:
    first, dropped = planted(tree, 12)
    text = (tree / "engine/room/a.cpp").read_text()
    assert planting.restore(tree)
    assert (tree / "engine/room/a.cpp").read_text() == SOURCE
    again, _ = planted(tree, 12)
    assert [one.key for one in again.values()] == [one.key for one in first.values()]
    assert (tree / "engine/room/a.cpp").read_text() == text
    assert len({(one.file, one.line) for one in first.values()}) == 12, "one of a line"
    assert not {one.key for one in dropped} & {one.key for one in first.values()}
    with pytest.raises(SystemExit, match="expected a clean git checkout"):
        planted(tree, 12)
    planting.restore(tree)
    other, _ = planted(tree, 12, seed=2)
    assert [one.key for one in other.values()] != [one.key for one in first.values()]


def test_a_slip_that_does_not_compile_gives_way(tree: Path) -> None:
    commands, every, by = read(tree)
    wrong = [sites.Site.of_json({**one.to_json(), "key": f"wrong {one.key}"}) for one in every[:2]]
    for one in wrong:
        one.slip.edits[0].mutated = ["nothing_of_this_name"]
    wrong[1].line = 10_000  # the only one of its line
    some = [*[one for one in every if one.line == wrong[0].line][:1], every[-1], *wrong]
    chosen, dropped, lines = planting.Planter(commands, by, lambda _: None, 1).choose(some, 2, 3)
    assert {one.key for one in chosen.values()} == {some[0].key, some[1].key}
    assert wrong[1].key in {one.key for one in dropped}
    assert lines == 3


def campaign_of(tree: Path, chosen: dict[int, sites.Site], names: list[str]) -> campaign.Records:
    table = tree / "build/judges.json"
    command = "{build}/program > {scratch}/number && grep -qx 15 {scratch}/number"
    slow = "{build}/program > {scratch}/number; test $EQUIGRAD_MUTANT != 3 || sleep 1000"
    rows = [
        {"name": "by number", "command": command, "targets": []},
        {"name": "never", "command": "true", "targets": [], "skip not reached": False},
        {"name": "late", "command": slow, "targets": [], "skip not reached": False},
    ]
    table.write_text(json.dumps(rows))
    plan = planting.Plan(tree / "build/plan.json")
    plan.sites = chosen
    plan.save()
    records = campaign.Records(tree / "build/records.jsonl")
    control = campaign.Control(tree / "build/control.json", len(chosen), "plan")
    campaign.Campaign(plan.load(), judging.Judge.table(tree / "build", names, table), records, control).run(1)
    return campaign.Records(tree / "build/records.jsonl")


def test_a_campaign_tells_who_saw_which(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "SLACK_S", 2.0)
    _, every, _ = read(tree)
    every = {
        one.before: one for one in reversed(every) if one.slip.operator in ("arithmetic", "relational", "throw deleted")
    }
    chosen = {1: every["a % 7"], 2: every["from < 0"], 3: every["to > kRows"]}
    planter = planting.Planter(sites.Commands(tree, tree / "build"), {}, lambda _: None, 1)
    planter.write(chosen)
    program(tree)
    records = campaign_of(tree, chosen, ["by number", "never"]).by_key
    assert records[chosen[1].key]["killed_by"] == "by number"
    assert records[chosen[3].key]["killed_by"] is None
    assert records[chosen[3].key]["judged"]["never"]["outcome"] == "held"
    before = (tree / "build/records.jsonl").read_text()
    assert len(before.splitlines()) == 3
    campaign_of(tree, chosen, ["by number", "never"])
    assert (tree / "build/records.jsonl").read_text() == before, "nothing is judged twice"
    records = campaign_of(tree, chosen, ["by number", "never", "late"]).by_key
    assert records[chosen[1].key]["judged"].keys() == {"by number"}, "it was seen already"
    late = records[chosen[3].key]
    assert (late["killed_by"], late["how"]) == ("late", "timed out")
    assert re.fullmatch(r"not ended after \d+ s", late["first_line"])  # 2, and some for a slow machine


def slip_patch(tree: Path, row: str) -> Path:
    """Of somebody who made one slip, in a tree of its own."""
    made = tree.parent / "made"
    subprocess.run(["git", "clone", "-q", str(tree), str(made)], check=True)
    source = made / "engine/room/a.cpp"
    text = source.read_text().replace("a % 7", "(equigrad::slip(1) ? a % 2 : a % 7)")
    source.write_text('#include "engine/slip.hpp"\n' + text)
    (made / "engine/slip.hpp").write_text("namespace equigrad { inline bool slip(int) { return false; } }\n")
    (made / "SLIPS.tsv").write_text(f"number\tfile\twhat is wrong\twhen it shows\tseverity\n{row}\n")
    subprocess.run(["git", "-C", str(made), "add", "-A"], check=True)
    patch = tree.parent / "batch.patch"
    with open(patch, "w") as file:
        subprocess.run(["git", "-C", str(made), "diff", "--cached"], check=True, stdout=file)
    return patch


def test_slips_of_a_patch_are_judged_as_mutants_are(tree: Path) -> None:
    patch = slip_patch(tree, "1\tengine/room/a.cpp\tanother rest | here\tany number\tnumbers")
    plan = planting.Plan(tree / "build/plan.json")
    made_slips.plant(tree, patch, plan)
    site = plan.load().sites[1]
    assert (site.key, site.room) == ("batch-1", "room")
    assert (tree / "engine/room/a.cpp").read_text().splitlines()[site.line - 1].count("slip(1)") == 1
    program(tree)
    records = campaign_of(tree, plan.sites, ["by number", "never"]).by_key
    assert records["batch-1"]["killed_by"] == "by number"
    shown = made_slips.page(list(records.values()), {})
    assert "**1 of 1 (100 %)** were seen: 1 by by number." in shown
    assert "| 1 | room/a.cpp | another rest \\| here | by number |  |" in shown
    with pytest.raises(SystemExit, match="expected a clean git checkout"):
        made_slips.plant(tree, patch, plan)


def test_a_patch_whose_list_names_another_place_is_refused(tree: Path) -> None:
    patch = slip_patch(tree, "5\tengine/room/a.cpp\tx\ty\tnumbers")
    with pytest.raises(SystemExit, match=r"expected slip\(5\) in engine/room/a.cpp"):
        made_slips.plant(tree, patch, planting.Plan(tree / "build/plan.json"))


def ended_within(seconds: float) -> bool:
    """What was killed is there until the system has taken it away."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        left = subprocess.run(["pgrep", "-fx", "sleep 1000"], check=False, capture_output=True, text=True).stdout.split()
        with contextlib.suppress(OSError):  # one is gone meanwhile
            if not any(b"EQUIGRAD_MUTANT_RUN" in Path(f"/proc/{one}/environ").read_bytes() for one in left):
                return True
        time.sleep(0.05)
    return False


def test_a_judge_that_a_mutant_keeps_is_ended(tree: Path) -> None:
    command = judging.Command("slow", "sleep 1000 & setsid sleep 1000 & wait")
    outcome = judging.run(command, 1, 0.5)
    assert (outcome.kind, outcome.seconds < 20) == ("timed out", True)
    assert ended_within(5)
    assert judging.run(judging.Command("crash", "kill -SEGV $$"), 1, 5).kind == "crashed"
    assert judging.run(judging.Command("code", "exit 3", codes={"3": "crashed"}), 1, 5).kind == "crashed"
    assert judging.run(judging.Command("fails", "echo first; echo FAILED one; exit 1"), 1, 5).line == "FAILED one"


def test_without_a_mutant_every_judge_must_hold(tree: Path) -> None:
    planted(tree, 3)
    control = campaign.Control(tree / "build/control.json", 3, "plan")
    with pytest.raises(SystemExit, match="expected wrong to hold without a mutant, got: failed"):
        control.of(judging.Command("wrong", "exit 1"))


def test_the_page_counts(tree: Path) -> None:
    row = {
        "mutant": 1,
        "line": 3,
        "function": "f",
        "operator": "relational",
        "before": "a | b",
        "after": "a",
        "seconds": 1.0,
    }
    rows = [
        {
            **row,
            "site": "a",
            "file": "engine/x/a.cpp",
            "killed_by": "covering",
            "how": "timed out",
            "judged": {"covering": {"outcome": "timed out"}},
        },
        {
            **row,
            "site": "b",
            "file": "engine/x/a.cpp",
            "killed_by": None,
            "how": "",
            "judged": {"covering": {"outcome": "held"}},
        },
        {
            **row,
            "site": "c",
            "file": "engine/y/a.cpp",
            "killed_by": None,
            "how": "",
            "judged": {"covering": {"outcome": "not reached"}},
        },
    ]
    about = {"do not compile behind a switch": [], "commit": "abc", "seed": 1, "lines drawn": 3, "lines": 9, "sites": 20}
    examined = {"b": {"equivalent": "because"}, "c": {"blind": "1 keys", "why": "no case"}}
    text = report.write(rows, examined, about)
    assert (
        "3 mutants, 1 of them equivalent (below, with reasons); of the other 2, **1 of 2 (50 %) are seen**: 1 timed out."
        in text
    )
    assert "| 1 keys | y/a.cpp:3 f | `a \\| b` -> `a` | no judge comes there | no case |" in text
    assert "| x/a.cpp:3 f | `a \\| b` -> `a` | because | b |" in text
    with pytest.raises(SystemExit, match="a is called equivalent"):
        report.write(rows, {"a": {"equivalent": "no"}}, about)
