"""Judging on another device than the CPU: what is asked of the machine, told to ranks and recorded, and what a rank does.

EQUIGRAD_HOST_DEVICE is the path of the library of conformance/testing/tests/host_device.cpp, which makes torch's device "host":
its memory is the host's, and torch does not mix its tensors with those of the CPU.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from unittest import mock

import example_boards as examples
import pytest
import test_red
import torch
from small_cases import small_case

from equigrad.judge import board as boards
from equigrad.judge import command, compare, environments, processes, writers
from equigrad.judge.board import Board, BoardError, Cell
from equigrad.judge.on_rank import device, loop, models, tensors
from equigrad.judge.on_rank.adapters import plain
from equigrad.judge.processes import Fault, Place, Program, Room
from equigrad.judge.ranks import Pool, Reference
from equigrad.judge.run import NO_SCRIPT
from equigrad.judge.summary import summarise

HERE = Path(__file__).parent
ON_RANK = Path(loop.__file__).parent
NONE = f"[judge] expected a CUDA device, got none that torch of {sys.executable} sees. Look at nvidia-smi and "


# ---- a machine without one


def test_without_a_device_nothing_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.chdir(tmp_path)
    assert command.main(["ddp", "--device", "cuda", "--only", test_red.CELL]) == 3
    said = capsys.readouterr()
    assert said.err == f"{NONE}CUDA_VISIBLE_DEVICES, or leave --device cuda out.\n" and said.out == ""
    assert list(tmp_path.iterdir()) == []
    assert command.main(["ddp", "--device", "cuda", "--only", "zero0/clip", "--list"]) == 0


def test_a_rerun_is_on_the_device_of_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = boards.Run(command="equigrad judge ddp --device cuda", device="cuda")
    crashed = Cell("ddp", test_red.CELL, "crashed", text="x")
    boards.write(Board((examples.engine("ddp"),), {test_red.CELL: {}}, (crashed,), run), tmp_path / "board.json")
    assert command.main(["rerun", str(tmp_path), "-q"]) == 3
    assert NONE in capsys.readouterr().err


@pytest.mark.parametrize("arguments", ["plain", "--reference"])
def test_a_rank_without_its_device_ends(arguments: str, tmp_path: Path) -> None:
    room, said = Room(), ""
    program = Program("e", (sys.executable, str(ON_RANK), arguments), {"CUDA_VISIBLE_DEVICES": ""}, "cuda")
    try:
        if arguments == "plain":
            Pool(room, program, 1).ask(tmp_path / "case.json", "", 60)
        else:
            Reference(room, program).local(tmp_path / "case.json", 0, tmp_path / "none", 1.0)
    except Fault as fault:
        said = fault.text
    finally:
        room.close()
    assert "[judge] expected a CUDA device, got none that torch sees" in said


# ---- what ranks are told


def test_ranks_see_no_other_device_than_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CUDA_VISIBLE_DEVICES": "3", "EQUIGRAD_JUDGE_DEVICE": "host", "DS_ACCELERATOR": "hpu"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    names = ("EQUIGRAD_JUDGE_DEVICE", "CUDA_VISIBLE_DEVICES", "DS_ACCELERATOR", "CUBLAS_WORKSPACE_CONFIG")
    targets = [environments.parse_target(text) for text in ("ddp", "equigrad", f"{sys.executable} -m x")]
    for where, want in (("cpu", ["cpu", "", "cpu", None]), ("cuda", ["cuda", "3", "cuda", ":4096:8"])):
        programs = [environments.program_of(target, sys.executable, where) for target in targets]
        for program in (*programs, environments.reference_of(sys.executable, where)):
            told = processes.environment_of(program, Place(0, 1, 1, Path("channel")))
            assert [told.get(name) for name in names] == want, program.engine


# ---- what is recorded, and how it is judged again


@pytest.fixture(scope="module")
def red(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A red cell of the adapter `plain` on a machine that says it has a CUDA device, and whose ranks are told to take the CPU.
    The report's folder, what the terminal said, and the devices that programs were asked for."""
    folder, devices = tmp_path_factory.mktemp("red"), []

    def program_of(target: environments.Target, python: str, where: str = "cpu") -> Program:
        devices.append(where)
        return Program(target.text, tuple(shlex.split(test_red.engine(folder, "True"))), device=where)

    def reference_of(python: str, where: str = "cpu") -> Program:
        devices.append(where)
        return Program("reference", (python, str(ON_RANK), "--reference"), device=where)

    said = io.StringIO()
    with (
        mock.patch.multiple(environments, program_of=program_of, reference_of=reference_of, check_engine=lambda *_: None),
        mock.patch.object(environments, "devices_of", lambda python: ["NVIDIA X"]),
        mock.patch.dict(processes.DEVICES, {"cuda": processes.DEVICES["cpu"]}),
        contextlib.redirect_stdout(said),
    ):
        words = ["plain", "--device", "cuda", "--only", test_red.CELL, "-q", "--report", str(folder / "r")]
        assert command.main(words) == 1
    return folder / "r", " ".join(said.getvalue().split()), devices


def test_the_device_is_in_the_record(red: tuple[Path, str, list[str]]) -> None:
    board = boards.read(red[0] / "board.json")
    assert red[2] == ["cuda", "cuda"]
    assert board.run.device == "cuda" and "--device cuda" in board.run.command
    assert board.notes == ("--device cuda: NVIDIA X; where there are more ranks, they share these, over Gloo",)
    assert f"note: {board.notes[0]}" in red[1]
    assert "<dt>Device</dt><dd>cuda</dd>" in (red[0] / "index.html").read_text()
    assert ", device cuda, seed 1" in (red[0] / "board.md").read_text()


def test_a_red_cell_says_why_it_has_no_script_and_is_judged_again_on_its_device(red: tuple[Path, str, list[str]]) -> None:
    (cell,) = boards.read(red[0] / "board.json").cells
    again = f"equigrad judge plain --device cuda --only {test_red.CELL}"
    assert (cell.verdict, cell.repro, cell.text) == ("red", None, NO_SCRIPT)
    assert f"{NO_SCRIPT} again: {again}" in red[1]
    assert f"{NO_SCRIPT} Again: <code>{again}</code>" in (red[0] / "index.html").read_text()
    assert f"{NO_SCRIPT} Again: `{again}`" in (red[0] / "board.md").read_text()
    assert f"{NO_SCRIPT}\nagain: {again}" in (red[0] / "junit.xml").read_text()


def test_no_device_is_said_of_the_cpu() -> None:
    board = examples.mixed()
    assert board.run.device == "cpu"
    text = writers.to_text(summarise(board))
    assert re.search(r"again: equigrad judge \S+ --only zero", text) and "--device" not in text


def _on(board: Board, where: str, **run: str) -> Board:
    return replace(board, run=replace(board.run, device=where, **run))


def test_boards_of_two_devices_are_no_one_board() -> None:
    board = examples.green()
    parts = [_on(board, where, shard=shard) for where, shard in (("cuda", "1/2"), ("cpu", "2/2"))]
    for mixed in (lambda: compare.merged(parts), lambda: compare.renewed(*parts)):
        with pytest.raises(BoardError, match="expected boards of one device, got cuda and cpu"):
            mixed()
    halves = [replace(_on(board, "cuda", shard=f"{at + 1}/2"), cells=board.cells[at::2]) for at in range(2)]
    assert compare.merged(halves).run.device == "cuda"
    assert compare.renewed(_on(board, "cuda"), _on(board, "cuda")).run.device == "cuda"


def test_a_baseline_of_another_device_is_called_so() -> None:
    """As one of another version of torch it gates all the same."""
    before, after = examples.green(), examples.mixed()
    for where, name in (("cpu", "the baseline"), ("cuda", "the baseline, on cpu")):
        found = compare.against_baseline(before, _on(after, where))
        assert found.before == name and found.new
        assert f"this run against {name}" in writers.to_text(summarise(_on(after, where), found))
        page = writers.to_html(summarise(_on(after, where), found))
        compared = page.partition(f"This run against {name}</h2>")[2].partition("</section>")[0]
        assert f'{found.new[0].case} <span class="engine">' in compared.replace("<wbr>", "")


def test_a_board_from_before_devices_is_of_the_cpu() -> None:
    value = json.loads(boards.dumps(_on(examples.green(), "cuda")))
    assert value["run"].pop("device") == "cuda"
    assert boards.loads(json.dumps(value)).run.device == "cpu"


# ---- on a rank


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """To name devices; that of this process is the CPU again afterwards."""
    device.here.cache_clear()
    flags = (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark)
    yield monkeypatch
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = flags
    monkeypatch.undo()
    device.here.cache_clear()


@pytest.mark.parametrize("name", [None, "cpu", "meta"])
def test_the_variable_names_the_device(name: str | None, named: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if name is not None:
        named.setenv("EQUIGRAD_JUDGE_DEVICE", name)
    else:
        named.delenv("EQUIGRAD_JUDGE_DEVICE", raising=False)
    assert device.here() == torch.device(name or "cpu")
    case = small_case(tmp_path)
    built = loop.plain_module(case)
    assert {one.device for one in built.module.parameters()} == {device.here()}
    assert plain.adapter().make(case, built.module).device == device.here()
    assert (device.backend(), device.notes(), device.is_shared()) == ("gloo", (), False)
    assert not torch.are_deterministic_algorithms_enabled()


def _cuda(named: pytest.MonkeyPatch, count: int, rank: int, world: int) -> mock.Mock:
    """As if torch saw so many CUDA devices. What sets the process's own."""
    taken = mock.Mock()
    named.setattr(torch.cuda, "device_count", lambda: count)
    named.setattr(torch.cuda, "set_device", taken)
    named.setenv("EQUIGRAD_JUDGE_DEVICE", "cuda")
    for name, value in {"LOCAL_RANK": rank, "WORLD_SIZE": world}.items():
        named.setenv(name, str(value))
    return taken


def test_a_rank_takes_a_device_of_its_own(named: pytest.MonkeyPatch) -> None:
    taken = _cuda(named, count=4, rank=3, world=4)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.benchmark = True
    assert device.here() == device.here() == torch.device("cuda:3")
    taken.assert_called_once_with(3)
    assert (device.backend(), device.notes()) == ("cpu:gloo,cuda:nccl", ())
    assert torch.are_deterministic_algorithms_enabled() and not torch.utils.deterministic.fill_uninitialized_memory
    assert not (torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32 or torch.backends.cudnn.benchmark)


def test_ranks_share_devices_where_they_are_more(named: pytest.MonkeyPatch, tmp_path: Path) -> None:
    taken = _cuda(named, count=2, rank=2, world=3)
    assert device.here() == torch.device("cuda:0") and os.environ["LOCAL_RANK"] == "0"
    taken.assert_called_once_with(0)
    assert device.backend() == "gloo" and device.is_shared()
    assert device.notes() == ("3 ranks share 2 CUDA device(s), and speak over Gloo",)
    answer, _ = loop.run_case(plain.adapter(), replace(small_case(tmp_path), stage=1), 2, str(tmp_path))
    assert (answer.absent, answer.notes) == ("nothing is sharded", device.notes())
    own = importlib.import_module("equigrad.judge.on_rank.adapters.equigrad").adapter()
    assert "NCCL" in str(loop.run_case(_Silent(own), small_case(tmp_path), 0, str(tmp_path))[0].absent)


class _Silent:
    """An adapter whose engine need not be here to say its version."""

    def __init__(self, adapter: loop.Adapter) -> None:
        self.adapter = adapter

    def __getattr__(self, name: str) -> object:
        return (lambda: "1") if name == "version" else getattr(self.adapter, name)


@contextlib.contextmanager
def _imported(name: str, **packages: mock.MagicMock) -> Iterator[ModuleType]:
    """The adapter of an engine that need not be here: mocks are what it imports."""
    module = f"equigrad.judge.on_rank.adapters.{name}"
    fakes = {one.replace("_", "."): fake for one, fake in packages.items()}
    before = {one: sys.modules.pop(one, None) for one in (module, *fakes)}
    sys.modules.update(fakes)
    try:
        yield importlib.import_module(module)
    finally:
        for one, real in before.items():
            sys.modules.pop(one, None)
            sys.modules.update({one: real} if real is not None else {})


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_deepspeed_is_told_the_device(where: str, named: pytest.MonkeyPatch) -> None:
    """What is done for it on the CPU is done there alone."""
    _cuda(named, count=1, rank=0, world=1)
    named.setenv("EQUIGRAD_JUDGE_DEVICE", where)
    named.delenv("DS_ACCELERATOR", raising=False)
    fake = mock.MagicMock(__version__="0.18.8", ops=mock.MagicMock(__compatible_ops__={}))
    fake.accelerator.get_accelerator().is_fp16_supported.return_value = False
    with _imported("deepspeed", deepspeed=fake) as adapter, mock.patch.object(torch.distributed, "init_process_group") as begun:
        assert os.environ["DS_ACCELERATOR"] == where
        assert adapter.open_gate() == adapter.step_needs_no_grad() == (where == "cpu")
        adapter.adapter().start()
    begun.assert_called_once_with(device.backend())
    assert fake.init_distributed.call_args.args == (device.backend(),)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_accelerate_is_told_the_device(where: str, named: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _cuda(named, count=1, rank=0, world=1)
    named.setenv("EQUIGRAD_JUDGE_DEVICE", where)
    fake = mock.MagicMock(Accelerator=mock.Mock(side_effect=RuntimeError("made")))
    with _imported("accelerate", accelerate=fake, accelerate_utils=mock.MagicMock()) as adapter:
        with pytest.raises(RuntimeError, match="made"):
            adapter.adapter().make(small_case(tmp_path), models.make("lattice-mlp", {}))
    assert fake.Accelerator.call_args.kwargs["cpu"] is (where == "cpu")


def test_no_other_module_of_a_rank_chooses_a_device() -> None:
    words = (r"torch\.device\(", r'(init_process_group|init_distributed|autocast)\("', 'backend="', "cpu=(True|False)", r"\.cuda\(")
    chosen = re.compile("|".join(words))
    found = {path.name for path in ON_RANK.rglob("*.py") if chosen.search(path.read_text())}
    assert found == {"device.py"}


# ---- on a device that is not the CPU

ON_HOST = """
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch

if sys.argv[1] != "cpu":
    torch.ops.load_library(os.environ["EQUIGRAD_HOST_DEVICE"])
    host = ModuleType("torch.host")  # what torch asks of a device in Python
    vars(host).update(_lazy_init=lambda: None, _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None)
    vars(host).update(is_available=lambda: True, device_count=lambda: 1, current_device=lambda: 0)
    host.get_amp_supported_dtype = list
    torch._register_device_module("host", host)

from equigrad.judge.on_rank import loop, reference, tensors
from equigrad.judge.on_rank.adapters import plain
from equigrad.judge.on_rank.protocol import Clip, Group, Model, Optimizer, Precision
from small_cases import small_case

MOMENTUM, ADAMW = Optimizer("sgd", 0.25, 0.5, 0.125), Optimizer("adamw", 0.25, weight_decay=0.125)
CASES = {
    "fp32": {"optimizer": MOMENTUM, "clip": Clip(1.0, "2"), "schedule": (1.0, 0.5)},
    "bf16": {"precision": Precision("bf16"), "style": "tensor_backward"},
    "fp64": {"precision": Precision("fp64"), "optimizer": ADAMW},
    "branch": {"model": Model("lattice-mlp", {"branch": True}), "options": {"backwards": 2}},
    "embedding": {"model": Model("lattice-embedding"), "options": {"module_id": True}},
    "pair": {"model": Model("lattice-pair"), "options": {"engines": 2}},
    "recomputed": {"options": {"activation_checkpointing": True, "record": True}},
}
reduced = set()
plain.distributed = SimpleNamespace(get_world_size=lambda: 2, all_reduce=lambda one: reduced.add(one.device.type))
folder, written = Path(sys.argv[2]), {}
for name, change in CASES.items():
    case = small_case(folder / name, steps=2, **change)
    losses, named = reference.local(case, 0, tensors.read(case.weights))
    answer, got = loop.run_case(plain.adapter(), case, 0, str(folder))
    assert answer.steps, answer
    steps = [(one.losses, one.norm, one.lrs) for one in answer.steps]
    assert {one.device.type for one in named.values()} == reduced == {sys.argv[1]}, (name, reduced)
    assert {one.device.type for one in got.values()} == {"cpu"}
    written |= {f"{name}/local/{key}": one for key, one in named.items()} | {f"{name}/{key}": one for key, one in got.items()}
    written[f"{name}/said"] = torch.tensor(list(repr((losses, steps)).encode()))
tensors.write(folder / "written", written)
"""


def _trained_on(where: str, folder: Path) -> dict[str, torch.Tensor]:
    """What the reference and plain PyTorch compute there, in a process of its own."""
    folder.mkdir()
    start = f"import os\nexec(open({str(HERE / 'conftest.py')!r}).read(), {{'__file__': {str(HERE / 'conftest.py')!r}}})\n"
    variables = {**os.environ, "EQUIGRAD_JUDGE_DEVICE": "cpu" if where == "cpu" else f"{where}:0"}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(HERE)]))
    done = subprocess.run(
        [sys.executable, "-c", start + ON_HOST, where, str(folder)], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return tensors.read(folder / "written")


def test_another_device_gives_the_bits_of_the_cpu(tmp_path: Path) -> None:
    assert os.path.exists(os.environ.get("EQUIGRAD_HOST_DEVICE", "")), (
        f"expected EQUIGRAD_HOST_DEVICE to be a library, got {os.environ.get('EQUIGRAD_HOST_DEVICE')!r}. ctest sets it."
    )
    cpu, host = (_trained_on(where, tmp_path / where) for where in ("cpu", "host"))
    assert len(cpu) > 300 and set(cpu) == set(host)
    assert [name for name, one in cpu.items() if not torch.equal(one, host[name])] == []
