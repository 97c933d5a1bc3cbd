"""Commands that the pages and the examples for CI name are commands that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from equigrad.judge import command, writers
from equigrad.judge.summary import GLYPHS, MEANINGS

DOCS = Path(__file__).parents[2] / "docs"
VARIABLES = {
    "$ENGINES": "ddp fsdp2",
    "${{ matrix.shard }}": "1",
    "$CI_NODE_INDEX": "1",
    "$CI_NODE_TOTAL": "4",
    "shard-*": "shard-1 shard-2",
}


def commands() -> list[str]:
    found = []
    for path in (DOCS / "judge.md", *sorted((DOCS / "ci").glob("*.yml"))):
        text = path.read_text()
        if path.suffix == ".md":
            text = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        for line in text.splitlines():
            if "equigrad judge " in line and not line.lstrip().startswith("#"):
                words = "equigrad judge " + line.partition("equigrad judge ")[2].partition(" ||")[0]
                for name, value in VARIABLES.items():
                    words = words.replace(name, value)
                found.append(words)
    return found


def test_there_are_commands_to_try() -> None:
    assert len(commands()) > 12 and not any("$" in one for one in commands())
    assert {path.name for path in (DOCS / "ci").glob("*.yml")} == {"gitlab.yml", "judge.yml", "run.yml"}  # the last has none


@pytest.mark.parametrize("line", commands())
def test_a_command_of_the_documents_is_one(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(line, comments=True)[2:]
    files = words[0] in ("merge", "rerun") or "--model" in words or "--config" in words
    monkeypatch.chdir(tmp_path if files else DOCS.parent)  # where no boards are; where the adapter is
    (module,) = re.findall(r"```python\n(# my_module.py.*?)```", (DOCS / "judge.md").read_text(), re.DOTALL)
    Path(tmp_path, "my_module.py").write_text(module)
    Path(tmp_path, "ds_config.json").write_text('{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}')
    monkeypatch.syspath_prepend(tmp_path)
    known = words[0] in ("merge", "rerun", "adapters")
    code = command.main(words if known else [*words, "--list"])
    said = capsys.readouterr()
    if words[0] in ("merge", "rerun"):
        assert code == 2 and "expected a board in" in said.err, said.err
    else:
        assert code == 0 and said.out.strip(), said.err


def test_a_wrong_command_would_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ["ddp", "--qick", "--list"],
        ["dpd", "--list"],
        ["ddp", "--only", "zero7", "--list"],
        ["merge", "x", "--baslein", "y"],
    ):
        assert command.main(words) == 2
        assert "expected a board in" not in capsys.readouterr().err


def test_the_page_has_every_verdict_and_exit_code() -> None:
    text = (DOCS / "judge.md").read_text()
    for verdict in MEANINGS:
        assert f"| {GLYPHS[verdict]} | {verdict} |" in text
    assert all(f"\n| {code} | " in text for code in (0, 1, 2, 3, 4))
    assert writers.ANNOTATIONS == 10
