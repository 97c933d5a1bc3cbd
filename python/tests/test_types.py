"""Types: the package and a user's program under `mypy --strict`; the stubs of the binding name all that it has, and nothing else."""

from __future__ import annotations

import ast
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(importlib.util.find_spec("equigrad").origin).parent
PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "python" / "typed.py"
WRONG = """import equigrad
import torch

engine, optimizer, _, _ = equigrad.initialize(model=torch.nn.Linear(2, 2), config={"train_batch_size": 2})
engine.backward("no loss")
number: int = engine.get_lr()
equigrad.utils.safe_get_full_grad(3)
equigrad.check(torch.nn.Linear, ranks="two")
"""


def mypy(*files: Path | str) -> tuple[int, str]:
    """Beside torch's own types. What it knows of torch is kept in the build's folder: the first run takes longer."""
    found = importlib.util.find_spec("mypy")
    assert found is not None, "expected mypy in the environment of the tests, got none. Set-up installs it: setup.cmake"
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", PACKAGE.parents[1] / "mypy"]
    command += ["--python-executable", sys.executable, *files]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={"MYPYPATH": str(PACKAGE.parent)}, cwd=PACKAGE.parent
    )
    return done.returncode, done.stdout + done.stderr


def test_the_package_and_a_program_of_a_users_are_typed(tmp_path: Path) -> None:
    program = tmp_path / "typed_program.py"
    program.write_text(PROGRAM.read_text())
    code, said = mypy(PACKAGE, program)
    assert code == 0 and said == "", said


def test_wrong_calls_are_seen(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(WRONG)
    code, said = mypy(wrong)
    lines = [line.split(":")[1] for line in said.splitlines() if "wrong.py:" in line and ": error:" in line]
    assert (code, sorted(set(lines))) == (1, ["5", "6", "7", "8"]), said


# ---- The stubs of the binding ----------------------------------------------------------------------------------------


def parts(text: str) -> list[str]:
    """Split at the commas that stand in no bracket."""
    found, depth = [""], 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}")
        depth -= character == ">" and not found[-1].endswith("-")
        if character == "," and depth == 0:
            found.append("")
        else:
            found[-1] += character
    return [one.strip() for one in found if one.strip()]


def of_signature(text: str, is_method: bool) -> list[Any]:
    """[[parameter, whether it has a default] ..., whether it gives None], of what pybind11 says in the first line of a text."""
    head = text.splitlines()[0]
    given, _, returned = head.rpartition(" -> ")
    taken = parts(given[given.index("(") + 1 : given.rindex(")")])[int(is_method) :]
    names = [[one.split(":")[0].split("=")[0].strip().lstrip("*"), "=" in one] for one in taken]
    return [*names, returned == "None"]


def members_of_binding(kind: type) -> dict[str, Any]:
    if issubclass(kind, BaseException):
        return {}
    seen: dict[str, Any] = {}
    for name, member in vars(kind).items():
        if name.startswith("_") and name not in ("__init__", "__enter__", "__exit__"):
            continue
        if isinstance(member, type(object.__init__)):  # of a class that Python cannot make
            continue
        if isinstance(member, property):
            seen[name] = "value" if member.fset is not None else "property"
        elif isinstance(member, kind):  # of an enumeration
            seen[name] = "value"
        else:
            seen[name] = of_signature(member.__doc__, is_method=True)
    return seen


def names_of_binding(module: Any) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for name in dir(module):
        value = getattr(module, name)
        if name.startswith("_"):
            continue
        if isinstance(value, type):
            seen[name] = members_of_binding(value)
        else:
            seen[name] = of_signature(value.__doc__, is_method=False) if callable(value) else "value"
    return seen


def of_stub(node: ast.FunctionDef, is_method: bool) -> Any:
    if any(ast.unparse(one) == "property" for one in node.decorator_list):
        return "property"
    taken = [*node.args.posonlyargs, *node.args.args]
    without = len(taken) - len(node.args.defaults)
    names = [[one.arg, at >= without] for at, one in enumerate(taken)][int(is_method) :]
    names += [[node.args.vararg.arg, False]] if node.args.vararg else []
    return [*names, ast.unparse(node.returns) == "None"]


def names_of_stub(file: Path) -> dict[str, Any]:
    seen: dict[str, Any] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.ImportFrom) and [one.name for one in node.names] == ["*"]:
            seen |= names_of_stub(file.with_name(f"{node.module.rpartition('.')[2]}.pyi"))
        elif isinstance(node, ast.FunctionDef):
            seen[node.name] = of_stub(node, is_method=False)
        elif isinstance(node, ast.AnnAssign):
            seen[node.target.id] = "value"
        elif isinstance(node, ast.ClassDef):
            is_error = any(ast.unparse(base).endswith("Error") for base in node.bases)
            seen[node.name] = {
                one.name if isinstance(one, ast.FunctionDef) else one.target.id: of_stub(one, is_method=True)
                if isinstance(one, ast.FunctionDef)
                else "value"
                for one in node.body
                if isinstance(one, (ast.FunctionDef, ast.AnnAssign)) and not is_error
            }
    return seen


def binding(name: str) -> Any:
    """The compiled module, without the package around it."""
    import torch  # noqa: F401  before the module, which needs its libraries

    spec = importlib.util.spec_from_file_location(f"equigrad.{name}", next(PACKAGE.glob(f"{name}.*.so")))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# A process has one of the two.
LOOK = "import json, test_types; print(json.dumps(test_types.names_of_binding(test_types.binding({name!r}))))"


@pytest.mark.parametrize("name", ["_core", "_harness"])
def test_the_stub_has_what_the_binding_has(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK.format(name=name)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    assert done.returncode == 0, done.stderr
    bound, stub = json.loads(done.stdout), names_of_stub(PACKAGE / f"{name}.pyi")
    assert sorted(set(bound) ^ set(stub)) == []
    for one in sorted(bound):
        assert bound[one] == stub[one], f"{name}.{one}"
    assert len(bound) > 20 and len(bound["Engine"]) > 30


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").read_text() == ""
