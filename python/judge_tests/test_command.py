"""The command as a person meets it: wrong input, exit codes, interruption, shards, a rerun; with real engines and real ranks."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equigrad.judge import board as boards
from equigrad.judge import cases, command, environments, orphans
from equigrad.judge.board import Board
from equigrad.judge.environments import UsageError
from equigrad.judge.on_rank.protocol import STYLES
from equigrad.judge.outputs import Outputs
from equigrad.judge.processes import DEVICES

HERE = Path(__file__).parent
PROGRAM = f"""
exec(open({str(HERE / "conftest.py")!r}).read(), {{"__file__": {str(HERE / "conftest.py")!r}}})
import sys
from equigrad.judge import command
sys.exit(command.main(sys.argv[1:]))
"""
SMALL = ("--only", "zero0/fp32/loss_backward/accumulation2", "--quiet")
BROKEN = """
import json, os, socket, sys
rank = int(os.environ["RANK"])
connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["EQUIGRAD_JUDGE_CHANNEL"])
lines = connection.makefile("rb")
def send(line):
    connection.sendall(json.dumps(line).encode() + b"\\n")
send({"hello": {"protocol": 1, "rank": rank, "engine": "mine", "version": "0.1", "torch": ""}})
while (line := json.loads(lines.readline() or b'{"do": "stop"}'))["do"] != "stop":
    BODY
"""


def judge(*arguments: str, timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """`equigrad judge ARGUMENTS`, in a process."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False
    )


def broken(tmp_path: Path, body: str) -> str:
    """A COMMAND whose ranks answer every case with that line of Python."""
    path = tmp_path / "mine.py"
    path.write_text(BROKEN.replace("BODY", body))
    return shlex.join([sys.executable, str(path)])


WRONG = {
    "no engine": ((), "expected one engine or more, got none"),
    "a misspelt engine": (("deepsped",), "Did you mean deepspeed?"),
    "an engine twice": (("ddp", "ddp"), "every engine once"),
    "an unknown option": (("ddp", "--stges", "1"), "Did you mean --stages?"),
    "half an option": (("ddp", "--conf", "x"), "Did you mean --config?"),
    "a stage that is none": (("ddp", "--stages", "7"), "expected --stages of 0, 1, 2, 3, got 7"),
    "a stage that it has not": (("ddp", "--stages", "3"), "expected cells of ddp, got none"),
    "a misspelt precision": (("ddp", "--precisions", "fp23"), "Did you mean fp32?"),
    "a misspelt style": (("ddp", "--styles", "loss_backwards"), "Did you mean loss_backward?"),
    "a pattern of nothing": (("ddp", "--only", "zero0/clipp"), "Did you mean clip?"),
    "micro-batches of no step": (("ddp", "--accumulation", "65"), "expected --accumulation of 1 to 64, got 65"),
    "ranks that no cell has": (("ddp", "--world", "17"), "expected --world of 1, 2, 3, 4, got 17"),
    "a shard too many": (("ddp", "--shard", "3/2"), "expected --shard I/N with 1 <= I <= N, got 3/2"),
    "no shard": (("ddp", "--shard", "x"), "Write it like 1/4."),
    "a negative seed": (("ddp", "--seed", "-1"), "expected 0 to 2147483647, got -1"),
    "no time": (("ddp", "--timeout", "0"), "expected 1 to 86400 seconds, got 0"),
    "a device that is none": (("ddp", "--device", "tpu"), "--device: invalid choice: 'tpu'"),
    "a version of torch's": (("ddp==2.11",), "ddp's version is that of torch"),
    "no version": (("deepspeed==",), "expected a version after deepspeed=="),
    "a command that is none": (("./no_such_adapter",), "expected an engine or a command"),
    "a program that is none": (("python no_such.py",), "expected a program at no_such.py"),
    "open quotation marks": (("python 'x.py",), "Close its quotation marks."),
    "a file in no folder": (("ddp", "--junit", "/no/such/folder/a.xml"), "that can be written after --junit"),
    "a report below a file": (("ddp", "--report", "/dev/null/x"), "a folder that can be made after --report"),
    "both on stdout": (("ddp", "--json", "-", "--junit", "-"), "expected one of --json and --junit"),
    "no baseline, a report in folders that are not there": (
        ("ddp", "--baseline", "/no/such.json", "--report", "a/../b/c"),
        "/no/such.json",
    ),
    "no baseline": (("ddp", "--baseline", "/no/such.json"), "/no/such.json"),
    "no board to merge": (("merge", "/no/such.json"), "/no/such.json"),
    "no board to run again": (("rerun", "/no/such.json"), "/no/such.json"),
    "no Python": (("ddp", "--python", "/no/such/python"), "expected a Python at /no/such/python"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_ends_with_2_and_says_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, text = WRONG[name]
    assert command.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("[judge] ") and text in said.err
    assert list(tmp_path.iterdir()) == []


def test_on_github_wrong_input_is_an_annotation(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for on_github in ("true", None):
        monkeypatch.setenv("GITHUB_ACTIONS", "true") if on_github else monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
        assert command.main(["ddp", "--stages", "7"]) == 2
        lines = capsys.readouterr().err.splitlines()
        annotations = [line for line in lines if line.startswith("::error title=equigrad judge::[judge] expected --stages of 0, 1")]
        assert len(annotations) == (1 if on_github else 0), lines
        assert len(lines) == len(annotations) + 1


def test_a_quick_board_says_of_how_many_cells_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    counts = []
    for words in (("--quick",), ()):
        assert command.main(["ddp", "--only", "zero0", *words, "--list"]) == 0
        counts.append(len(capsys.readouterr().out.splitlines()))
    assert 0 < counts[0] < counts[1]
    axes = cases.Axes(only=("zero0",), quick=True)
    said = command._of_quick([(environments.parse_target("ddp"), cases.plan("ddp", axes))], axes)
    assert said == [f"--quick: {counts[0]} of {counts[1]} cells of ddp"]


def test_each_engine_has_its_own_count_of_a_quick_selection() -> None:
    axes = cases.Axes(quick=True)
    targets = [environments.parse_target(text) for text in ("deepspeed==0.18.2", "deepspeed")]
    said = command._of_quick([(target, cases.plan(target.adapter, axes)) for target in targets], axes)
    assert [line.partition(" cells of ")[2] for line in said] == ["deepspeed==0.18.2", "deepspeed"]
    assert command._of_quick([], cases.Axes()) == []


def test_a_misspelt_baseline_is_found_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "base.json").write_text('{"format": 99}')
    assert command.main(["ddp", "--baseline", str(tmp_path / "base.json"), "--report", str(tmp_path / "r")]) == 2
    assert "format 99" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_list_prints_ids(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["ddp", "fsdp2", "--list", "--only", "bf16/clip"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "zero0/bf16/engine_backward/accumulation3/clip",
        "zero2/bf16/engine_backward/accumulation3/clip",
        "zero3/bf16/engine_backward/accumulation3/clip",
    ]


def test_accumulation_chooses_the_micro_batches_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    cell = "zero0/fp32/loss_backward/accumulation"
    assert command.main(["ddp", "--list", "--only", "zero0/fp32/loss_backward", "--accumulation", "1,5"]) == 0
    assert capsys.readouterr().out.splitlines() == [cell + "1", cell + "5"]


def test_python_is_the_one_at_hand_where_path_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bare Debian has python3 alone."""
    which = environments.shutil.which
    monkeypatch.setattr(environments.shutil, "which", lambda name: None if name == "python" else which(name))
    assert environments.parse_target("python -m x").command == (sys.executable, "-m", "x")


def test_targets() -> None:
    assert environments.parse_target("deepspeed==0.18.1").version == "0.18.1"
    assert environments.parse_target("python3 -m x").command == ("python3", "-m", "x")
    with pytest.raises(UsageError):
        environments.parse_target("fsdp3")


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A report of plain PyTorch and DDP, and what the command said."""
    folder = tmp_path_factory.mktemp("held")
    report = folder / "report"
    arguments = (
        "--report",
        str(report),
        "--json",
        "-",
        "--junit",
        str(folder / "a.xml"),
        "--write-baseline",
        str(folder / "base.json"),
    )
    return folder, judge("plain", "ddp", *SMALL, *arguments)


def test_what_holds_ends_with_0(held: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = held
    assert done.returncode == 0, done.stderr
    board = boards.loads(done.stdout)
    assert [(cell.engine, cell.verdict) for cell in board.cells] == [("plain", "held"), ("ddp", "held")]
    assert all(cell.compared > 1000 and cell.exact > 1000 for cell in board.cells)
    assert boards.read(folder / "base.json").cells == boards.read(folder / "report" / "board.json").cells == board.cells
    assert {one.name for one in (folder / "report").iterdir()} == {"index.html", "board.json", "board.md", "junit.xml"}
    assert (folder / "a.xml").read_text() == (folder / "report" / "junit.xml").read_text()


def test_a_baseline_that_held_still_holds(held: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    done = judge("plain", *SMALL, "--baseline", str(held[0] / "base.json"), "--report", str(tmp_path / "r"))
    assert done.returncode == 0, done.stderr
    assert "Nothing went wrong that was right before" in done.stdout


def test_shards_are_merged(held: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    whole = boards.read(held[0] / "base.json")
    parts = []
    for number, cell in enumerate(whole.cells, 1):
        part = boards.loads(boards.dumps(whole))
        parts.append(tmp_path / f"{number}.json")
        run = {**json.loads(boards.dumps(part))["run"], "shard": f"{number}/2"}
        value = {**json.loads(boards.dumps(part)), "run": run}
        value["cells"] = [one for one in value["cells"] if one["engine"] == cell.engine]
        parts[-1].write_text(json.dumps(value))
    assert command.main(["merge", *map(str, parts), "--report", str(tmp_path / "r")]) == 0
    assert boards.read(tmp_path / "r" / "board.json").cells == whole.cells
    assert command.main(["merge", str(parts[0]), "--json", str(tmp_path / "half.json")]) == 4  # a part of it


def test_adapters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["adapters"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:-1]] == list(environments.ADAPTERS)
    assert any(line.startswith("ddp") and "torch 2." in line for line in lines)


def test_an_engine_of_two_packages_needs_both(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for here in ({}, {"deepspeed": "0.19.8"}, {"accelerate": "1.0"}):
        monkeypatch.setattr(environments, "version_of", lambda python, package, here=here: here.get(package, ""))
        with pytest.raises(environments.UsageError, match="expected (accelerate|deepspeed|accelerate and deepspeed) in"):
            environments.check_engine(environments.parse_target("accelerate-deepspeed"), "python3")
        command.main(["adapters"])
        assert "as its plugin (not installed; --python PATH" in capsys.readouterr().out
    monkeypatch.setattr(environments, "version_of", lambda python, package: f"1.{len(package)}")
    command.main(["adapters"])
    assert "as its plugin (1.10, 1.9)" in capsys.readouterr().out


ONE_STEP = (
    "open(line['folder'] + f'/{rank}', 'wb').write(b'\\\\2' + b'\\\\0' * 7 + b'{}'); "
    "send({'number': line['number'], 'answer': {'steps': [{'losses': [1.0, 2.0]}]}, 'tensors': line['folder'] + f'/{rank}'})"
)
NOTHING = {
    "crashed": ("sys.exit('an engine that is not there')", 3, "crashed", "an engine that is not there"),
    "failed": ("send({'number': line['number'], 'answer': {'failed': 'Traceback: it broke'}})", 3, "crashed", "it broke"),
    "hung": ("__import__('time').sleep(100)", 3, "hung", "gave no answer within 2 s"),
    "another number": ("send({'number': 77, 'answer': {'absent': 'x'}})", 3, "crashed", '"number": 77'),
    "absent": ("send({'number': line['number'], 'answer': {'absent': 'no such feature'}})", 4, "absent", "no such feature"),
    "refused": ("send({'number': line['number'], 'answer': {'refused': 'I cannot'}})", 4, "refused", "I cannot"),
    "steps missing": (
        ONE_STEP,
        3,
        "crashed",
        "step",
    ),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_cannot_be_judged_is_no_pass(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body, code, verdict, text = NOTHING[name]
    arguments = [broken(tmp_path, body), *SMALL, "--timeout", "2", "--report", str(tmp_path / "r")]
    assert command.main(arguments) == code
    board = boards.read(tmp_path / "r" / "board.json")
    assert [cell.verdict for cell in board.cells] == [verdict]
    assert text in board.cells[0].text
    assert capsys.readouterr().out


def test_fail_fast_ends_the_run(tmp_path: Path) -> None:
    arguments = [broken(tmp_path, "sys.exit(1)"), "--only", "zero0/fp32/loss_backward", "--fail-fast", "--quiet"]
    assert command.main([*arguments, "--report", str(tmp_path / "r")]) == 3
    board = boards.read(tmp_path / "r" / "board.json")
    assert len(board.cells) == 1 and board.not_run and "first failure" in board.run.partial


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_a_partial_board_and_no_processes(number: int, code: int, tmp_path: Path) -> None:
    body = (
        "open('asked', 'a').write('x'); "
        "send({'number': line['number'], 'answer': {'absent': 'x'}}) if line['number'] == 1 else __import__('time').sleep(100)"
    )
    arguments = [broken(tmp_path, body), "--only", "zero0/fp32/loss_backward", "--report", "r"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    asked = tmp_path / "asked"
    end = time.monotonic() + 60
    while not (asked.exists() and asked.stat().st_size >= 4) and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(30) == code
    board = boards.read(tmp_path / "r" / "board.json")
    assert [cell.verdict for cell in board.cells] == ["absent"]
    assert board.run.partial == f"interrupted by {signal.Signals(number).name}" and sum(board.not_run.values()) == 2
    mine = str(tmp_path / "mine.py").encode()
    assert not [one for one in Path("/proc").glob("[0-9]*/cmdline") if os.path.exists(one) and mine in _bytes(one)]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_what_went_wrong_is_run_again_alone(tmp_path: Path) -> None:
    body = (
        "send({'number': line['number'], 'answer': {'absent': 'x'}}) "
        "if os.path.exists('mended') else sys.exit('not yet')"
    )
    arguments = [
        sys.executable,
        "-c",
        PROGRAM,
        broken(tmp_path, body),
        "--only",
        "zero0/fp32/loss_backward",
        "-q",
        "--report",
        "r",
    ]
    assert subprocess.run(arguments, cwd=tmp_path, capture_output=True, timeout=200, check=False).returncode == 3
    before = boards.read(tmp_path / "r" / "board.json")
    (tmp_path / "mended").touch()
    again = [sys.executable, "-c", PROGRAM, "rerun", "r", "-q"]
    done = subprocess.run(again, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 4, done.stderr  # nothing was compared
    after = boards.read(tmp_path / "r" / "board.json")
    assert _verdicts(before) == {cell.case: "crashed" for cell in before.cells}
    assert _verdicts(after) == {cell.case: "absent" for cell in before.cells}


def _verdicts(board: Board) -> dict[str, str]:
    return {cell.case: cell.verdict for cell in board.cells}


def test_a_watcher_knows_its_own_processes_only() -> None:
    assert orphans.processes_of("/no/such/folder") == []


def test_a_launcher_would_start_one_for_each_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused = judge("ddp", *SMALL)
    assert refused.returncode == command.USAGE
    assert "expected one process of equigrad judge" in refused.stderr and "got WORLD_SIZE=2" in refused.stderr
    assert judge("ddp", "--list", *SMALL).returncode == command.HELD  # nothing is started
    monkeypatch.delenv("RANK")
    monkeypatch.setenv("WORLD_SIZE", "1")
    command._expect_one_process()


def test_a_report_where_no_folder_can_be_made_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in ("/proc/report", str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        refused = judge("ddp", *SMALL, "--report", path, timeout_s=60)
        assert refused.returncode == command.USAGE, refused.stderr
        assert "after --report" in refused.stderr and "Traceback" not in refused.stderr


def test_a_reader_that_leaves_misses_the_rest() -> None:
    listed = subprocess.Popen([sys.executable, "-c", PROGRAM, "ddp", "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert listed.stdout is not None and listed.stderr is not None
    listed.stdout.close()
    complaint = listed.stderr.read().decode()
    assert listed.wait(60) == command.HELD and complaint == ""


def test_a_shell_completes_the_words_that_are_taken() -> None:
    """The harness has them as a list of its own (conformance/cli/completed_words.cpp)."""
    asked = [sys.executable, "-m", "equigrad", "completion", "bash"]
    script = subprocess.run(asked, capture_output=True, text=True, timeout=120, check=True).stdout

    def offered(path: str) -> list[str]:
        found = re.search(rf"^    ' {re.escape(path)}'\) COMPREPLY=\(\$\(compgen -W '([^']*)'", script, re.MULTILINE)
        assert found is not None, path
        return found[1].split()

    def options(parser: argparse.ArgumentParser) -> set[str]:
        return {name for action in parser._actions for name in action.option_strings}

    with_outputs = argparse.ArgumentParser()
    Outputs.add_to(with_outputs, "")
    commands = {"merge", "rerun", "adapters"}
    assert set(offered("judge")) == options(command._judge_parser()) | commands | set(environments.ADAPTERS)
    assert set(offered("judge merge")) == set(offered("judge rerun")) == options(with_outputs)
    assert set(offered("judge adapters")) == {"-h", "--help", "--python"}
    assert offered("judge --precisions") == list(cases.PRECISIONS)
    assert offered("judge --styles") == list(STYLES)
    assert offered("judge --device") == list(DEVICES)
    assert offered("judge --stages") == ["0", "1", "2", "3"]
