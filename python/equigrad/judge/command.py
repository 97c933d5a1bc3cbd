"""The command `equigrad judge`: what a person gives is checked whole before anything is started."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

from . import cases, compare, configured, environments
from .board import WRONG, Board, BoardError
from .cases import Axes, Planned
from .configured import Fixed
from .environments import ADAPTERS, DeviceError, Target, UsageError
from .on_rank.protocol import STYLES, Model
from .outputs import Outputs, read_board, say
from .processes import DEVICES

HELD, USAGE, BROKEN = 0, 2, 3
_TAKE_CONFIG = ("deepspeed", "accelerate-deepspeed", "equigrad", "")

_ABOUT = """\
Says whether an engine trains right, without any tolerance: its gradients, norms, clips, updates and loss scales, step by step.

  equigrad judge ddp fsdp2 --quick            the boards of two engines, by a selection of the cells
  equigrad judge deepspeed==0.18.2 deepspeed  two versions beside each other
  equigrad judge "python my_adapter.py"       your own engine (docs/judge-protocol.md)
  equigrad judge merge A B --report DIR       one board of several shards
  equigrad judge rerun DIR                    what went wrong in a report, once more
  equigrad judge adapters                     the engines, and whether each is here
"""
_CODES = (
    "exit codes: 0 held, 1 red (with --baseline: newly), 2 usage, 3 crashed, hung, void or no such device, 4 nothing compared, "
    "130/143 interrupted"
)


class _Parser(argparse.ArgumentParser):
    """Says what was expected, and what may have been meant. Options are written out: a record's command is read by others."""

    def __init__(self, **given: Any) -> None:
        super().__init__(allow_abbrev=False, **given)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"[judge] expected valid arguments, got: {message}. `equigrad judge --help` has all.")

    def parsed(self, arguments: Sequence[str]) -> argparse.Namespace:
        """As parse_args; with a suggestion for what is not known."""
        given, unknown = self.parse_known_args(arguments)
        for word in unknown:
            known = [option for action in self._actions for option in action.option_strings]
            close = get_close_matches(word.partition("=")[0], known, 1)
            meant = f"Did you mean {close[0]}?" if close else "`equigrad judge --help` has all."
            raise UsageError(f"[judge] expected a known option, got {word}. {meant}")
        return given


def main(arguments: Sequence[str]) -> int:
    """The exit code of `equigrad judge ARGUMENTS`."""
    commands = {"merge": _merge, "adapters": _adapters, "rerun": _rerun}
    try:
        if arguments and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:])
        return _judge(arguments)
    except (UsageError, BoardError, DeviceError) as error:
        print(error, file=sys.stderr)
        if os.environ.get("GITHUB_ACTIONS") == "true":  # which shows no other line of a job that ends here
            text = str(error).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
            print(f"::error title=equigrad judge::{text}", file=sys.stderr)
        return BROKEN if isinstance(error, DeviceError) else USAGE


def _judge(arguments: Sequence[str]) -> int:
    given = _judge_parser().parsed(arguments)
    axes = _axes(given)
    plans = _plans(given, axes)
    if given.list:
        say(sys.stdout, "".join(f"{name}\n" for name in dict.fromkeys(cell.id for _, cells in plans for cell in cells)))
        return HELD
    _expect_one_process()
    outputs = Outputs.of(given)
    baseline = read_board(given.baseline) if given.baseline else None
    command = shlex.join(["equigrad", "judge", *arguments])
    return _run(plans, given, command, _concluding(outputs, baseline), _of_quick(plans, axes))


def _of_quick(plans: Sequence[tuple[Target, Sequence[Planned]]], axes: Axes) -> list[str]:
    """How much of an engine's cells --quick selects."""
    if not axes.quick:
        return []
    whole = dataclasses.replace(axes, quick=False)
    counts = {target.text: (len(cells), len(cases.plan(target.adapter, whole))) for target, cells in plans}
    return [f"--quick: {some} of {every} cells of {name}" for name, (some, every) in counts.items()]


def _expect_one_process() -> None:
    """A launcher would start a judge a rank. Raises UsageError."""
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        count = os.environ.get(size, "")
        if os.environ.get(rank) is not None and count.isdecimal() and int(count) > 1:
            raise UsageError(
                f"[judge] expected one process of equigrad judge, which starts its own ranks, got {size}={count}. Start it without "
                "a launcher, or unset the variable if none runs it; --world says how many ranks there are."
            )


def _rerun(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="equigrad judge rerun", description="What went wrong in a report, once more.")
    parser.add_argument("board", metavar="REPORT", help="its folder, or its board.json")
    Outputs.add_to(parser, "")
    again = parser.parsed(arguments)
    board = read_board(again.board)
    given = _judge_parser().parsed(shlex.split(board.run.command)[2:])
    given.shard = ""  # a merged board has the command of its first shard
    wrong = {(cell.engine, cell.case) for cell in board.cells if cell.verdict in WRONG}
    plans = [(target, [cell for cell in cells if (target.text, cell.id) in wrong]) for target, cells in _plans(given, _axes(given))]
    again.report = again.report or (again.board if not again.board.endswith(".json") else "")
    outputs = Outputs.of(again)
    baseline = read_board(again.baseline) if again.baseline else None
    unknown = sorted(wrong - {(target.text, cell.id) for target, cells in plans for cell in cells})
    if unknown:
        engine, case = unknown[0]
        raise UsageError(
            f"[judge] expected a board whose cells `{board.run.command}` has, got {len(unknown)} that it does not have, such as "
            f"{case} of {engine}. Judge them anew with the command that they were judged with."
        )
    if not wrong:
        print("judge: nothing went wrong in that report", file=sys.stderr)
        return outputs.write(board, baseline)
    given.quiet = again.quiet
    _expect_one_process()
    return _run(plans, given, board.run.command, _concluding(outputs, baseline, lambda newer: compare.renewed(board, newer)))


def _merge(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="equigrad judge merge", description="One board of several shards.")
    parser.add_argument("boards", metavar="BOARD", nargs="+", help="board.json, or the folder of a report")
    Outputs.add_to(parser, "")
    given = parser.parsed(arguments)
    merged = compare.merged([read_board(path) for path in given.boards])
    outputs = Outputs.of(given)
    return outputs.write(merged, read_board(given.baseline) if given.baseline else None)


def _adapters(arguments: Sequence[str]) -> int:
    parser = _Parser(prog="equigrad judge adapters", description="The engines, and whether each is here.")
    parser.add_argument("--python", default=sys.executable, metavar="PATH")
    given = parser.parsed(arguments)
    _, torch = environments.torch_of(given.python)
    for name, about in ADAPTERS.items():
        versions = {package: environments.version_of(given.python, package) for package in environments.NEEDED.get(name, ())}
        missing = [package for package, version in versions.items() if not version]
        here = ", ".join(versions.values()) or f"torch {torch}"
        if missing:
            remedy = "ENGINE==VERSION makes an environment" if name in environments.PACKAGES else "--python PATH of one with both"
            here = f"not installed; {remedy}"
        say(sys.stdout, f"{name:20} {about} ({here})\n")
    say(sys.stdout, '"COMMAND"            any program that speaks docs/judge-protocol.md\n')
    return HELD


def _judge_parser() -> _Parser:
    parser = _Parser(
        prog="equigrad judge", description=_ABOUT, epilog=_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engines", metavar="ENGINE", nargs="*", help=f"{', '.join(ADAPTERS)}, ENGINE==VERSION, or a command")
    what = parser.add_argument_group("what is tried")
    what.add_argument("--model", default="", metavar="MODULE:FACTORY", help="gives (make_model, loss_fn, batches), as for equigrad.check")
    what.add_argument("--config", default="", metavar="FILE", help="a DeepSpeed configuration: what it sets is not varied")
    what.add_argument("--stages", type=_numbers, metavar="N,...", help="of ZeRO (all of the engine)")
    what.add_argument("--precisions", type=_words, metavar="NAME,...", help=", ".join(cases.PRECISIONS))
    what.add_argument("--styles", type=_words, metavar="NAME,...", help=", ".join(STYLES))
    what.add_argument("--accumulation", type=_numbers, metavar="N,...", help="micro-batches per step")
    what.add_argument("--world", type=_numbers, metavar="N,...", help="numbers of ranks")
    what.add_argument("--quick", action="store_true", help="every pair of values of two axes, and every feature once")
    what.add_argument("--only", action="append", default=[], metavar="PATTERN", help="parts of ids, as zero2/clip; !PATTERN leaves out")
    what.add_argument("--shard", default="", metavar="I/N", help="the I-th of N parts; `equigrad judge merge` puts them together")
    what.add_argument("--list", action="store_true", help="print the ids of the cells only")
    how = parser.add_argument_group("how")
    how.add_argument("--python", default=sys.executable, metavar="PATH", help="whose torch and engines are judged (this one)")
    how.add_argument("--device", choices=tuple(DEVICES), default="cpu", help="that models and engines are on (%(default)s)")
    how.add_argument("--timeout", type=_seconds, default=60.0, metavar="S", help="for one cell (%(default)s)")
    how.add_argument("--seed", type=_seed, default=1, help="of weights and batches (%(default)s)")
    how.add_argument("--fail-fast", action="store_true", help="end at the first cell that goes wrong")
    Outputs.add_to(parser, "judge-report")
    return parser


def _plans(given: argparse.Namespace, axes: Axes) -> list[tuple[Target, list[Planned]]]:
    """The cells of each engine. Raises UsageError for whatever is not as it should be."""
    if not given.engines:
        raise UsageError(f"[judge] expected one engine or more, got none. Name some of {', '.join(ADAPTERS)}, or a command.")
    targets = [environments.parse_target(text) for text in given.engines]
    if len({target.text for target in targets}) < len(targets):
        raise UsageError(f"[judge] expected every engine once, got {', '.join(given.engines)}. Take the second away.")
    if given.config and any(target.adapter not in _TAKE_CONFIG for target in targets):
        raise UsageError(
            f"[judge] expected engines that take a DeepSpeed configuration ({', '.join(filter(None, _TAKE_CONFIG))}, a command), got "
            f"{', '.join(given.engines)}. Judge the others without --config."
        )
    index, count = _shard(given.shard)
    whole = [cases.plan(target.adapter, Axes(fixed=axes.fixed, model=axes.model)) for target in targets]
    cases.check_patterns(given.only, list(dict.fromkeys(cell.id for plan in whole for cell in plan)))
    plans = [(target, cases.shard(cases.plan(target.adapter, axes), index, count)) for target in targets]
    for target, cells in plans:
        if not cells and not given.shard:
            raise UsageError(
                f"[judge] expected cells of {target.text}, got none: it has no cell with all that was asked for. "
                f"It has the stages {', '.join(map(str, cases.STAGES[target.adapter]))}; `equigrad judge {target.text} --list` prints "
                "all cells."
            )
    return plans


def _axes(given: argparse.Namespace) -> Axes:
    _check_values("--stages", given.stages, (0, 1, 2, 3))
    _check_values("--precisions", given.precisions, tuple(cases.PRECISIONS))
    _check_values("--styles", given.styles, STYLES)
    _check_values("--accumulation", given.accumulation, range(1, 65))
    _check_values("--world", given.world, cases.worlds())
    return Axes(
        stages=given.stages,
        precisions=given.precisions,
        styles=given.styles,
        accumulations=given.accumulation,
        worlds=given.world,
        only=tuple(given.only),
        quick=given.quick,
        fixed=configured.read(given.config) if given.config else Fixed(),
        model=_users_model(given.model, given.seed) if given.model else None,
    )


def _users_model(target: str, seed: int) -> Model:
    module, _, factory = target.partition(":")
    if not (module and factory):
        raise UsageError(f"[judge] expected --model MODULE:FACTORY, got {target}. Write it like my_package.my_module:factory.")
    from . import users  # here: it imports torch

    return users.model_of(target, seed)


def _check_values(option: str, values: Sequence[object] | None, known: Sequence[object]) -> None:
    for value in values or ():
        if value not in known:
            close = [] if isinstance(known, range) else get_close_matches(str(value), [str(one) for one in known], 1)
            meant = f"Did you mean {close[0]}?" if close else "Choose of these."
            these = f"{known[0]} to {known[-1]}" if isinstance(known, range) else ", ".join(map(str, known))
            raise UsageError(f"[judge] expected {option} of {these}, got {value}. {meant}")


def _shard(text: str) -> tuple[int, int]:
    if not text:
        return 1, 1
    index, _, count = text.partition("/")
    if not (index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count)):
        raise UsageError(f"[judge] expected --shard I/N with 1 <= I <= N, got {text}. Write it like 1/4.")
    return int(index), int(count)


def _concluding(
    outputs: Outputs, baseline: Board | None, whole: Callable[[Board], Board] = lambda board: board
) -> Callable[[Board], int]:
    return lambda board: outputs.write(whole(board), baseline)


def _run(
    plans: Sequence[tuple[Target, Sequence[Planned]]],
    given: argparse.Namespace,
    command: str,
    conclude: Callable[[Board], int],
    about: Sequence[str] = (),
) -> int:
    from .progress import Progress  # here: what follows imports torch
    from .run import Job, Settings, run

    devices = _of_devices(given, max((cell.case.world for _, cells in plans for cell in cells), default=1))
    planned = {target.text: len(cells) for target, cells in plans if cells}
    progress = Progress(planned, given.quiet)
    jobs = []
    for target, cells in plans:
        if cells:
            python = environments.python_of(target, given.python, progress.say)
            environments.check_engine(target, python)
            jobs.append(Job(target, python, cells))
    fixed = configured.read(given.config) if given.config else Fixed()
    notes = [*about, *devices, *(f"not in the cells, though {given.config} sets it: {name}" for name in fixed.left_out)]
    for note in notes:
        progress.say(f"judge: {note}")
    settings = Settings(
        seed=given.seed,
        timeout_s=given.timeout,
        fail_fast=given.fail_fast,
        command=command,
        shard=given.shard,
        made_by=environments.own_version(),
        device=given.device,
        notes=tuple(notes),
    )
    outcome = run(jobs, settings, progress)
    code = conclude(outcome.board)
    return 128 + outcome.signal if outcome.signal else code


def _of_devices(given: argparse.Namespace, ranks: int) -> list[str]:
    """Which devices at most so many ranks are on, where they are not on the CPU. Raises DeviceError where there is none."""
    if given.device == "cpu":
        return []
    names = environments.devices_of(given.python)
    shared = "; where there are more ranks, they share these, over Gloo" if ranks > len(names) else ""
    return [f"--device {given.device}: {', '.join(names)}{shared}"]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _seconds(text: str) -> float:
    value = float(text)
    if not 1 <= value <= 86_400:
        raise argparse.ArgumentTypeError(f"expected 1 to 86400 seconds, got {text}")
    return value


def _seed(text: str) -> int:
    value = int(text)
    if not 0 <= value < 2**31:
        raise argparse.ArgumentTypeError(f"expected 0 to {2**31 - 1}, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
