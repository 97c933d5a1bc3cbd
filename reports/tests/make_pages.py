"""Pages of every kind for a browser to look at (axe_pages.py): examples, a run of a case with a planted fault, and a
board of the judge beside it.

    python3 reports/tests/make_pages.py FOLDER --examples build/dev/tests/reports_pages_test --equigrad build/dev/equigrad

The Python is one that can `import equigrad` of the build.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from equigrad.judge.compare import beside, versions
from equigrad.judge.summary import summarise
from equigrad.judge.writers import RUNS, to_html

CASE = "zero2.bf16.w2.accumulation3.clip-below.adamw.irregular.engine"


def run(folder: Path, equigrad: str) -> None:
    words = [equigrad, "run", CASE, "--fault", "averaged_twice", "-q", "--report", str(folder)]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 1:
        sys.exit(f"expected a run that ends with 1, got {done.returncode}: {' '.join(words)}\n{done.stdout}")


def judge(folder: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "judge_tests"))
    import example_boards

    board = example_boards.mixed()
    page = to_html(summarise(board, None, [beside(board, *pair) for pair in versions(board)]), RUNS)
    (folder / "judge-report").mkdir()
    (folder / "judge-report" / "index.html").write_text(page, encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", required=True)
    parser.add_argument("--equigrad", required=True)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    given.folder.mkdir(parents=True)
    subprocess.run([given.examples], env={**os.environ, "EQUIGRAD_PAGES": str(given.folder / "examples")}, check=True)
    judge(given.folder)
    run(given.folder / "equigrad-report", given.equigrad)


if __name__ == "__main__":
    main()
