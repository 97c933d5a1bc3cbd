"""The judge's protocol as two functions of bytes, `lines` and `tensors`: what an engine's process may write, whatever it is.

test_protocol_corpus.py plays property_tests/parsers/corpus/judge_lines and judge_tensors. Under atheris (PyPI), libFuzzer for Python:

    python python/judge_tests/fuzz_protocol.py lines -runs=10000000 -max_len=4096 /tmp/found property_tests/parsers/corpus/judge_lines

What comes out is the documented error, or a value that is the same when it is written and read again; anything else is a finding.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBER = 7
WORLD = 2


def takes_lines(data: bytes) -> bool:
    """As a rank's first line, and as its answer to case NUMBER with one step of one micro-batch."""
    from equigrad.judge import lines
    from equigrad.judge.on_rank.protocol import Answer, from_json, to_json
    from equigrad.judge.processes import Fault

    taken = False
    try:
        hello = lines.read_hello(data, WORLD)
        assert lines.read_hello(json.dumps({"hello": hello}).encode(), WORLD) == hello
        taken = True
    except Fault as fault:
        _check(fault.text)
        assert fault.kind == "protocol"
    try:
        line = lines.read_line(data, 0)
        answer = lines.read_answer(line, 0, NUMBER)
        assert repr(from_json(Answer, json.loads(json.dumps(to_json(answer), allow_nan=False)))) == repr(answer)
        _check("".join((answer.engine, answer.version, answer.torch, *answer.notes)), most=len(data))
        _check(str(answer.absent or answer.refused or answer.failed), most=len(data) + 4)
        if answer.steps:
            folder = Path(__file__).parent
            assert lines.read_tensors_path(line, 0, folder).resolve().is_relative_to(folder.resolve())
        taken = True
    except Fault as fault:
        _check(fault.text)
        assert fault.kind == "protocol" and fault.rank == 0
    return taken


def takes_tensors(data: bytes) -> bool:
    """As a file. Bytes that begin with `{` are a header up to the first newline, whose length is put before them."""
    from equigrad.judge.on_rank import tensors

    if data.startswith(b"{"):
        header, _, rest = data.partition(b"\n")
        data = len(header).to_bytes(8, "little") + header + rest
    path = _scratch()
    path.write_bytes(data)
    try:
        read = tensors.read(path)
    except tensors.TensorFileError as error:
        _check(str(error))
        return False
    assert sum(one.numel() * one.element_size() for one in read.values()) <= len(data)
    assert sorted(tensors.names(path)) == sorted(read)
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {"lines": takes_lines, "tensors": takes_tensors}


def _check(text: str, most: int = 2000) -> None:
    text.encode()  # a surrogate would end whoever writes the report
    assert len(text) <= most, f"a text of {len(text)} characters"


def _scratch() -> Path:
    made = globals().setdefault("_folder", tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    return Path(made.name, "file")


def main(arguments: list[str]) -> None:
    """TARGET, and what libFuzzer takes."""
    atheris: Any = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["equigrad.judge", "json"]):
        for name in ("json", "json.decoder", "json.scanner", "equigrad.judge.lines"):
            importlib.import_module(name)
        if arguments[1] == "tensors":
            importlib.import_module("equigrad.judge.on_rank.tensors")
    target = TARGETS[arguments[1]]

    def play(data: bytes) -> None:
        target(data)

    atheris.Setup([arguments[0], *arguments[2:]], play)
    atheris.Fuzz()


if __name__ == "__main__":
    importlib.import_module("conftest")  # finds the judge of the tree where none is installed
    main(sys.argv)
