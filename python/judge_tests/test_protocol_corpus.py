"""What an engine's process writes, whatever it is: every file of the corpus, its fronts, and each with bytes replaced (fuzz_protocol.py)."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import fuzz_protocol
import pytest

from equigrad.judge import judging
from equigrad.judge.on_rank import protocol
from equigrad.judge.processes import Fault
from equigrad.judge.ranks import Connection, RankAnswer

CORPUS = Path(__file__).parents[2] / "property_tests/parsers/corpus"
LIKELY = b'"{}[],:0123456789-.eE\\/\n\x00\xff truefalsn'


def seeds(target: str) -> list[Path]:
    return sorted((CORPUS / f"judge_{target}").iterdir())


@pytest.mark.parametrize("target", fuzz_protocol.TARGETS)
def test_the_corpus_is_taken_or_refused(target: str) -> None:
    """A file whose name begins with "no_" is refused, another one taken."""
    taken = {path.name: fuzz_protocol.TARGETS[target](path.read_bytes()) for path in seeds(target)}
    assert taken == {name: not name.startswith("no_") for name in taken}
    assert sum(taken.values()) >= 2 and len(taken) - sum(taken.values()) >= 5


@pytest.mark.parametrize("target", fuzz_protocol.TARGETS)
def test_fronts_and_replaced_bytes_of_the_corpus_are_survived(target: str) -> None:
    drawn = random.Random(1)
    for path in seeds(target):
        data = path.read_bytes()
        for end in range(0, len(data), 1 + len(data) // 100):
            fuzz_protocol.TARGETS[target](data[:end])
        for count in range(100 if data else 0):
            changed = bytearray(data)
            for _ in range(1 + count % 3):
                at = drawn.randrange(len(changed))
                if drawn.randrange(4):
                    changed[at] = drawn.choice(LIKELY)
                else:
                    begin = drawn.randrange(len(changed))
                    changed[at:at] = changed[begin : begin + drawn.randrange(40)]
            fuzz_protocol.TARGETS[target](bytes(changed))


def test_levels_are_counted() -> None:
    deepest = "[" * protocol.LEVELS + "]" * protocol.LEVELS
    assert protocol.parse(deepest) and protocol.parse(f'{{"a": 1, "b": {deepest[1:-1]}}}')
    for text in (f"[{deepest}]", f'{{"a": {deepest}}}', "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ValueError, match="at most 32 levels"):
            protocol.parse(text)


def test_a_damaged_file_of_tensors_is_its_ranks(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(Fault, match="^rank 3: .* expected a whole safetensors file") as caught:
        judging._tensors_of(RankAnswer(3, protocol.Answer(), tmp_path / "file"))
    assert (caught.value.kind, caught.value.rank) == ("protocol", 3)


def test_a_line_comes_in_parts_and_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(ours)
        for part, whole in ((b"{", None), (b"}", None), (b"\n", b"{}"), (b"[]\n", b"[]"), (b"\n", b"")):
            theirs.sendall(part)
            assert connection.receive() == whole
        theirs.sendall(b"{}\n{}")
        with pytest.raises(ValueError, match="more than one line: {}"):
            connection.receive()
