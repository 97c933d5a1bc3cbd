"""`pip install .` into an environment of its own, and the examples from there: alone, under torchrun, with Hugging Face.

Torch is the one of the Python that runs this test, by a path: it is not installed a second time.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"


def own_environment() -> dict[str, str]:
    """Nothing of this build may be found by what is installed."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


def run(*command: str | Path, **more) -> str:
    clean = own_environment()
    clean["CXX"] = shutil.which("clang++") or "c++"  # a third of the time that g++ takes
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, env=clean, timeout=3000, **more
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """Of an environment that has torch and the installed package."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    interpreter = folder / "bin" / "python"
    site = Path(run(interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "torch.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")
    pip = (interpreter, "-m", "pip", "install", "-q", "--disable-pip-version-check")
    # Optimised, it would take three times as long; `cmake --preset dev` compiles the same files with it.
    options = (f"build-dir={folder}/build", "cmake.build-type=None", "cmake.define.EQUIGRAD_GROUP=0")
    run(*pip, *(f"--config-settings={option}" for option in options), ROOT)
    run(*pip, "--no-compile", "transformers", "numpy", "pytest")
    return interpreter


def test_it_says_what_it_is(python: Path, tmp_path: Path) -> None:
    text = run(python, "-c", "import equigrad; print(equigrad.__version__, equigrad.__file__)", cwd=tmp_path)
    version, file = text.split()
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert Path(file).is_relative_to(python.parents[1])
    assert "DeepSpeed" in run(python, "-c", "import equigrad; help(equigrad.initialize)", cwd=tmp_path)


def test_its_types_are_found_where_it_is_installed(python: Path, tmp_path: Path) -> None:
    # By mypy of the Python that runs this test, for the environment of the package.
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", tmp_path / "mypy", "--python-executable", python]
    assert "Success" in run(*command, EXAMPLES / "typed.py", cwd=tmp_path)
    assert "every bit equal" in run(python, EXAMPLES / "typed.py", cwd=tmp_path)


def test_the_lines_of_the_readme_run_alone_and_under_torchrun(python: Path, tmp_path: Path) -> None:
    lines = (ROOT / "README.md").read_text().split("```python\n")[1].split("```")[0]
    (tmp_path / "train.py").write_text(lines)
    launch = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    for command, ranks in (((python,), ["0 of 1"]), (launch, ["0 of 2", "1 of 2"])):
        text = run(*command, "train.py", cwd=tmp_path)
        shown = re.findall(r"rank (\d of \d): loss ([\d.]+)", text)
        assert sorted(rank for rank, _ in shown) == ranks, text
        assert all(0 < float(loss) < 4 for _, loss in shown), text  # it has learnt: ln 256 = 5.5 for who knows nothing


def losses(text: str) -> list[float]:
    return [float(value) for value in re.findall(r"loss ([\d.]+)$", text, re.MULTILINE)]


def test_a_training_script_runs_alone_and_under_torchrun(python: Path, tmp_path: Path) -> None:
    alone = losses(run(python, EXAMPLES / "train.py", cwd=tmp_path))
    launch = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    together = losses(run(*launch, EXAMPLES / "train.py", cwd=tmp_path))
    for seen in (alone, together):
        assert len(seen) == 2, seen
        assert max(seen) < 1.0, seen  # it begins at 8, the variance of a sum of eight numbers


def test_a_hugging_face_model_is_fine_tuned(python: Path, tmp_path: Path) -> None:
    launch = (python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    text = run(*launch, EXAMPLES / "fine_tune.py", cwd=tmp_path)
    first, last = (float(value) for value in re.search(r"loss ([\d.]+) -> ([\d.]+)", text).groups())
    assert last < first / 1.5, text


def test_the_check_runs_as_a_fixture_of_pytest(python: Path, tmp_path: Path) -> None:
    text = run(python, "-m", "pytest", "-q", EXAMPLES / "test_gradients.py", cwd=tmp_path)
    assert "2 passed" in text, text
    (tmp_path / "task.py").write_text(
        "import equigrad, torch\n"
        "def batches(step, rank, micro_batch):\n"
        "    return torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + 10 * rank + micro_batch))\n"
        "loss = lambda model, batch: model(batch).square().mean()\n"
        "report = equigrad.check(lambda: torch.nn.Linear(3, 2), loss, batches, stages=[2], fault='averaged_twice')\n"
        "assert not report and 'averaged twice' in report.text\n"
        # Of the second, who calls and who is called are in one room.
        "report = equigrad.check(lambda: torch.nn.Linear(3, 2), loss, batches, stages=[2], fault='optimizer.step_restarts')\n"
        "assert not report, report.text\n"
    )
    run(python, "task.py", cwd=tmp_path)


def test_the_programs_race(python: Path, tmp_path: Path) -> None:
    race = (python.parent / "equigrad_perf", "race", "--no-peers", "--rounds", "1", "--report", tmp_path / "report")
    text = run(*race, "--suite", "smoke", "--filter", "100 tensors", cwd=tmp_path)
    for stage in range(4):
        assert re.search(rf"\| Equigrad stage {stage} \| [\d.]+ ", text), text
    text = run(*race, "--suite", "python", "--filter", "1,000 tensors, stage 2", cwd=tmp_path)
    assert re.search(r"\| Equigrad stage 2, from Python \| [\d.]+ .*\| every bit \|", text), text
    rows = json.loads((tmp_path / "report" / "race.json").read_text())["groups"][0]["rows"]
    assert len(rows) == 2, rows
    for words in (["equigrad_perf"], ["equigrad", "bench"]):
        wrong = subprocess.run(
            [python.parent / words[0], *words[1:], "rase"], capture_output=True, text=True, check=False, env=own_environment()
        )
        assert wrong.returncode == 2 and f"{' '.join(words)}: Did you mean \"race\"?" in wrong.stderr, wrong.stderr


def test_the_judge_writes_a_page_of_the_templates_of_all_reports(python: Path, tmp_path: Path) -> None:
    program = (
        "from equigrad.judge import board, summary, writers\n"
        "print(writers.to_html(summary.summarise(board.Board((), {}, ()))))"
    )
    text = run(python, "-c", program, cwd=tmp_path)
    for name in ("page.css", "page.js"):
        assert (ROOT / "reports" / "templates" / name).read_text() in text, name


def test_nothing_of_the_tree_is_needed_once_it_is_installed(python: Path, tmp_path: Path) -> None:
    package = Path(run(python, "-c", "import equigrad; print(equigrad.__file__)", cwd=tmp_path).strip()).parent
    tree = f"{ROOT}/".encode()  # with what ends a folder's name: a header of torch's is called cloneable.h
    named = [file.name for file in package.rglob("*") if file.is_file() and tree in file.read_bytes()]
    assert not named, f"{ROOT} is named in {named}"
    assert "HELD" in run(python.parent / "equigrad", "run", "--covering", "w2 and zero3", "--quiet", cwd=tmp_path)
