"""The commands of the pages are run as they stand there, a page in a folder of its own, in the page's order.

A command stands in a block of sh, or behind "$ " in a block of text, which then has parts of what it prints. Blocks of
Python are run as well. NOT_RUN and PYTHON_NOT_RUN name every other one, with the reason: a command that is in no list
and cannot be run here is an error, and so is a line of a list that no page has. What pages name in their sentences is
looked up by conformance/testing/tests/readme_test.cpp.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("conformance/contract", "conformance/faults", "property_tests/relations")
PAGES = ("README.md", "CONTRIBUTING.md", *(f"{room}/README.md" for room in ROOMS)) + tuple(
    sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
)
RED = "Required.grad.zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine_backward"
RUNNABLE = ("equigrad", "build/dev/equigrad", "python")

# Reason: commands. A test that a reason names runs the same, or a part of it.
NOT_RUN = {
    "conformance/testing/tests/readme_test.cpp runs it, and looks for what the page shows": (
        "equigrad run zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine --fault averaged_twice",
    ),
    "sets up and builds the project: CI itself": (
        "cmake --workflow --preset run",
        "cmake --workflow --preset check",
        "cmake --workflow --preset dev",
        "cmake --workflow --preset nightly",
        "cmake --build --preset dev --target equigrad equigrad_perf perf_worker",
    ),
    "needs the programs of the preset fuzz": (
        "mkdir -p /tmp/found && build/fuzz/fuzz_manifest -runs=10000000 -max_len=4096 -print_funcs=0 /tmp/found "
        "property_tests/parsers/corpus/manifest",
    ),
    "needs a browser": (
        "python3 -m venv /tmp/axe && /tmp/axe/bin/pip install axe-playwright-python",
        "/tmp/axe/bin/python reports/tests/axe_pages.py equigrad-report",
    ),
    "installs; engine/package/tests/package_test.cmake does": (
        "cmake -S equigrad -B build -D EQUIGRAD_HARNESS=OFF -D EQUIGRAD_PYTHON=env/bin/python3",
        "cmake --build build -j 8",
        "cmake --install build --prefix ~/equigrad",
        "cmake -S . -B build -D CMAKE_PREFIX_PATH=~/equigrad -D EQUIGRAD_PYTHON=env/bin/python3",
    ),
    "installs; python/package_tests/test_pip.py does": (
        "python3 -m venv env && . env/bin/activate",
        "pip install torch==2.11.0",
        "pip install .",
        "pip install transformers",
        "pip install . && equigrad judge adapters",
    ),
    "needs transformers, and runs the lines of the README; python/package_tests/test_pip.py": (
        "python train.py",
        "torchrun --standalone --nproc-per-node 2 train.py",
    ),
    "minutes; the tests matrix.covering and matrix.generated are parts of it": (
        "equigrad run",
        "equigrad run --generate 10m",
        "equigrad run Generated --generate 2000",
        "equigrad run Generated.meshes --generate 2000",
    ),
    "720 cases or more; conformance/cli/tests/run_model_test.cpp runs some": (
        "equigrad run --model libmine.so",
        "equigrad run --model libmine.so --full",
    ),
    "minutes; python/judge_tests/test_command.py runs a cell of it, its baseline and its shards": (
        "equigrad judge ddp fsdp2 --quick",
        "equigrad judge ddp fsdp2 --write-baseline judge-baseline.json",
        "equigrad judge ddp fsdp2 --baseline judge-baseline.json",
        "equigrad judge merge shard-1 shard-2 shard-3 shard-4 --baseline judge-baseline.json --report judge-report",
    ),
    "minutes; python/judge_tests/test_users_models.py runs some cells": (
        "equigrad judge ddp fsdp2 --model my_module:factory --quick",
    ),
    "a minute and a half; python/judge_tests/test_ranks_of_torch.py runs the same program": (
        'equigrad judge "python examples/judge/hand_written_ddp.py" --precisions fp32 --stages 0',
    ),
    "needs DeepSpeed; python/judge_tests/test_adapters.py and python/judge_tests/test_configured.py": (
        "equigrad judge deepspeed",
        "equigrad judge deepspeed --stages 2,3 --precisions bf16,fp32 --only '!gpt'",
        "equigrad judge deepspeed --config ds_config.json",
        "equigrad judge deepspeed --shard 1/4 --report shard-1",
    ),
    "installs DeepSpeed; the test peers.environment does": ("cmake --build --preset peers",),
    "installs two versions of DeepSpeed; python/judge_tests/test_board.py has boards of both": (
        "equigrad judge deepspeed==0.18.2 deepspeed==0.19.8 --quick",
    ),
    "needs a GPU; python/judge_tests/test_device.py plays one": ("equigrad judge ddp fsdp2 --device cuda --quick",),
    "needs a GPU": ("perf/gpu/prepare", "perf/gpu/run --minutes 10"),
    "measures for minutes; perf/race/tests/commands_test.cpp and python/package_tests/test_pip.py run parts": (
        "build/dev/equigrad bench race --suite smoke --report race",
        "build/dev/equigrad bench memory --report race",
        "equigrad bench race --suite python --report race",
        "equigrad bench race --suite targets --report race",
        "equigrad bench memory",
        "equigrad bench gate --old OTHER/equigrad/perf_worker",
    ),
}
ENDS_WITH = {
    f"equigrad run {RED} --fault averaged_twice": 1,
    f"equigrad run {RED} --seed 1234 --fault averaged_twice --report equigrad-report-replay": 1,
    f"equigrad repro {RED} --fault averaged_twice": 1,
    "equigrad run --fault averaged_twice --failed": 1,
    "equigrad run Generated.7.12.3 --fault averaged_twice": 1,
    "equigrad run --case equigrad-report/fail/Generated.7.12.3/smaller.json --fault averaged_twice --report other": 1,
    "equigrad run --model libmine.so --dtypes fp32 --world 2 --fault averaged_twice": 1,
    "equigrad checkpoint diff checkpoints/a checkpoints/b": 1,
}

# What is in a block of Python: why it is not run.
PYTHON_NOT_RUN = {
    "import equigrad.deepspeed as deepspeed ": "python/tests/test_deepspeed.py begins with it",
    "from transformers import LlamaConfig": "needs transformers; python/package_tests/test_pip.py runs it",
    "return GPT2LMHeadModel(": "needs transformers; python/package_tests/test_pip.py runs examples/python/test_gradients.py",
    "# my_module.py, as for equigrad.check": "docs/check.md has a command that takes it, which is run",
    "def test_my_engine(equigrad_judge):": "python/judge_tests/test_pytest_plugin.py has such",
    "equigrad.import_deepspeed(": "needs DeepSpeed; python/peer_tests/test_import_deepspeed.py",
    '"tensor_parallel": {"autotp_size": 4},': "needs transformers and 8 ranks; python/tests/test_tensor_parallel.py",
    "base_model_tp_plan": "a part of a class; python/tests/test_model_plans.py",
    '"sequence_parallel_size": 4, ': "needs transformers and 8 ranks; python/tests/test_sequence_parallel.py",
    "equigrad.Sides(": "needs an encoder and a decoder on three ranks; python/tests/test_sides.py runs the example",
}
SMALL = """
import equigrad, torch
from types import SimpleNamespace

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return SimpleNamespace(loss=self.linear(x.to(self.linear.weight.dtype)).float().square().mean())

model = Small()
batches = [{"x": torch.randn(4, 4)} for _ in range(100)]
config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 2}}
adam = {"optimizer": {"type": "Adam", "params": {"lr": 1e-3}}}
"""
# What is in a block of Python: what its reader has before it.
PYTHON_GIVEN = {
    'config="ds_config.json")': SMALL,
    "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR": SMALL,
    "for step in range(first, steps):": SMALL + "config.update(adam)\nsteps = 100\n",
}
SAVES = """
config.update(adam)
engine, *_ = equigrad.initialize(model=model, config=config)
for tag in ("a", "b", "global_step100"):
    engine.backward(engine(**batches[0]).loss)
    engine.step()
    engine.save_checkpoint("checkpoints", tag=tag)
"""


class Block(NamedTuple):
    language: str
    lines: list[str]


class Command(NamedTuple):
    words: str
    shown: tuple[str, ...] = ()
    """Lines that it prints; `...` stands for anything."""


def blocks(page: str) -> list[Block]:
    """What stands between fences, which may be in an item of a list."""
    found: list[Block] = []
    is_within = False
    for line in page.splitlines():
        fence = re.match(r" *(?:\d+\. )?```(\w*)", line)
        if fence and not is_within:
            found.append(Block(fence[1], []))
        elif not fence and is_within:
            found[-1].lines.append(line)
        is_within ^= fence is not None
    return found


def commands(page: str) -> list[Command]:
    found: list[Command] = []
    for language, lines in blocks(page):
        if language == "sh":
            whole = "\n".join(lines).replace("\\\n", " ").splitlines()
            words = (re.sub(r"(^|\s+)# .*", "", line).strip() for line in whole)
            found += [Command(one) for one in words if one]
        elif language == "text":
            starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
            for start, end in zip(starts, [*starts[1:], len(lines)]):
                found.append(Command(lines[start][2:], tuple(lines[start + 1 : end])))
    return found


def programs(page: str) -> list[str]:
    return ["\n".join(lines) + "\n" for language, lines in blocks(page) if language == "python"]


def listed(table: dict[str, tuple[str, ...]]) -> set[str]:
    return {command for several in table.values() for command in several}


def reason_not_to_run(program: str) -> str | None:
    return next((reason for part, reason in PYTHON_NOT_RUN.items() if part in program), None)


def in_no_list(words: str) -> bool:
    """It is not run, and no list says why."""
    return words not in listed(NOT_RUN) and words.split()[0] not in RUNNABLE


def without_digits(text: str) -> str:
    """Numbers with all their digits, which another machine's kernels may end otherwise."""
    return re.sub(r"\d\.\d{8}e", "N", text)


def problem_with(command: Command, code: int, output: str) -> str:
    """Empty where it ended and printed as the page says."""
    expected = ENDS_WITH.get(command.words, 0)
    problems = [f"expected exit code {expected}, got {code}"] if code != expected else []
    printed = without_digits(output)
    parts = (part for line in command.shown for part in without_digits(line).split("..."))
    problems += [f"expected it to print what the page shows, got no {part!r}" for part in parts if part not in printed]
    return f"$ {command.words}\n" + "\n".join(problems) + f"\n{output}" if problems else ""


def text_of(page: str) -> str:
    return (ROOT / page).read_text()


class Folder:
    """Empty but for what the page's reader has; its PATH has this build's programs."""

    def __init__(self, path: Path):
        self.path = path
        away = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")  # a red run would be annotated
        self.environment = {name: value for name, value in os.environ.items() if name not in away}
        self.environment["PATH"] = f"{path}/bin:{self.environment['PATH']}"
        # The command of the package serves models of Python; for all else the program of the build does, and starts sooner.
        python, equigrad = shlex.quote(sys.executable), shlex.quote(os.environ["EQUIGRAD_BINARY"])
        model = f'case "$*" in *"--model "*:*) exec {python} -m equigrad "$@" ;; esac'
        self.program("bin/equigrad", f'{model}\nexec {equigrad} "$@"')
        self.program("build/dev/equigrad", 'exec equigrad "$@"')
        self.program("bin/python", f'exec {python} "$@"')

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def program(self, name: str, text: str) -> None:
        self.write(name, f"#!/bin/sh\n{text}\n").chmod(0o755)

    def run(self, words: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", words],
            cwd=self.path,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )
        return done.returncode, done.stdout

    def give(self, page: str) -> None:
        """What the page supposes."""
        if page in ("docs/getting-started.md", "docs/python.md"):
            self.write("ds_config.json", text_of("docs/first-use.md").split("```json ds_config.json\n")[1].split("```")[0])
        elif page == "docs/check.md":
            (self.path / "libmine.so").symlink_to(os.environ["EQUIGRAD_TEST_MODEL"])
            self.write("my_package/my_module.py", programs(text_of("docs/judge.md"))[0])
        elif page == "docs/checkpoints.md":
            self.write("saves.py", SMALL + SAVES)
            code, output = self.run("python saves.py")
            assert code == 0, output


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


COMMANDS = {page: commands(text_of(page)) for page in PAGES}
PROGRAMS = {page: programs(text_of(page)) for page in PAGES}
TO_RUN = {page: [one for one in several if one.words not in listed(NOT_RUN)] for page, several in COMMANDS.items()}
PYTHON_TO_RUN = {page: [one for one in several if reason_not_to_run(one) is None] for page, several in PROGRAMS.items()}


@pytest.mark.parametrize("page", [page for page in PAGES if TO_RUN[page]])
def test_commands_end_and_say_what_the_page_says(page: str, folder: Folder) -> None:
    folder.give(page)
    for command in TO_RUN[page]:
        assert not in_no_list(command.words), f"expected one of {RUNNABLE}, or a reason in NOT_RUN, got {command.words}"
        assert problem_with(command, *folder.run(command.words)) == ""


@pytest.mark.parametrize("page", [page for page in PAGES if PYTHON_TO_RUN[page]])
def test_blocks_of_python_run(page: str, folder: Folder) -> None:
    folder.give(page)
    given = ("\n".join(before for part, before in PYTHON_GIVEN.items() if part in one) for one in PYTHON_TO_RUN[page])
    folder.write("page.py", "\n".join(before + one for before, one in zip(given, PYTHON_TO_RUN[page])))
    code, output = folder.run("python page.py")
    assert code == 0, output


def test_no_list_has_what_no_page_has() -> None:
    every = {one.words for several in COMMANDS.values() for one in several}
    assert (listed(NOT_RUN) | set(ENDS_WITH)) - every == set()
    programs_of_all = [one for several in PROGRAMS.values() for one in several]
    parts = [*PYTHON_NOT_RUN, *PYTHON_GIVEN]
    assert [part for part in parts if not any(part in one for one in programs_of_all)] == []
    assert listed(NOT_RUN) & set(ENDS_WITH) == set()


def test_the_tests_that_reasons_name_are_there() -> None:
    named = re.findall(r"[\w/]+/[\w.]+\.(?:py|cpp|cmake)\b", " ".join([*NOT_RUN, *PYTHON_NOT_RUN.values()]))
    assert len(named) >= 10
    assert [name for name in named if not (ROOT / name).exists()] == []
    tests = ("matrix.covering", "matrix.generated", "peers.environment")
    assert [name for name in tests if f"add_test(NAME {name} " not in text_of("CMakeLists.txt")] == []


def test_commands_are_seen() -> None:
    page = """`equigrad list`
```sh
equigrad run 'a and b'    # in quotes
# nothing
equigrad run \\
  --shard 1/2
```
3. ```sh
   cmake --build build
   ```
```text
$ equigrad explain A
  what ... is it
$ equigrad list
no command
```
```text
$HOME is none
```
"""
    seen = commands(page)
    words = [one.words for one in seen]
    assert words[:3] == ["equigrad run 'a and b'", "equigrad run    --shard 1/2", "cmake --build build"]
    assert seen[3:] == [Command("equigrad explain A", ("  what ... is it",)), Command("equigrad list", ("no command",))]
    assert in_no_list("curl somewhere") and not in_no_list("pip install .") and not in_no_list("equigrad new")


def test_what_is_not_as_the_page_says_is_seen() -> None:
    one = Command("equigrad explain A", ("first... last 1.23456789e-02",))
    assert problem_with(one, 0, "first\nand last 1.23456780e-02\n") == ""
    assert "got no ' last N-02'" in problem_with(one, 0, "first")
    assert problem_with(one, 3, "first last 1.23456789e-02").splitlines()[1] == "expected exit code 0, got 3"
    red = Command(next(iter(ENDS_WITH)))
    assert problem_with(red, 1, "") == "" and "expected exit code 1, got 0" in problem_with(red, 0, "")
