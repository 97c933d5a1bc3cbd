"""What a rank writes, read: its lines, and where its tensors lie (docs/judge-protocol.md).

Whatever the bytes: a Fault of kind "protocol", which names the rank and what was expected of it, or what the protocol says. The
text of a Fault is short, and can be written as UTF-8.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .on_rank.protocol import PROTOCOL, Answer, Hello, ProtocolError, from_json, parse, shown, to_json
from .processes import Fault

Line = dict[str, Any]


def fault(rank: int, expected: str, got: object) -> Fault:
    """Of a rank that said something else; -1 for one that has not said which it is."""
    who = f"rank {rank}" if rank >= 0 else "a rank"
    text = f"[judge] expected of {who} {expected}, got {said(got)}. The protocol is described in docs/judge-protocol.md."
    return Fault("protocol", rank, text)


def said(value: object) -> str:
    """A value in a text for a person."""
    return shown(value.decode(errors="replace") if isinstance(value, (bytes, bytearray)) else str(value))


def read_hello(line: bytes, world: int) -> Line:
    """A rank's first line: engine, version, torch, and the rank, which is below `world`."""
    expected = 'a line {"hello": {"protocol": 1, "rank": ...}} as the first'
    try:
        hello = parse(line)["hello"]
        version = hello["protocol"]
        if version != PROTOCOL:
            raise fault(hello["rank"] if type(hello["rank"]) is int else -1, f"protocol {PROTOCOL}", f"protocol {version}")
        read = from_json(Hello, hello)
    except ProtocolError as error:
        raise fault(-1, expected, error) from error
    except (ValueError, KeyError, TypeError) as error:
        raise fault(-1, expected, line or error) from error
    if read.rank not in range(world):
        raise fault(-1, f"a rank below {world}", f"rank {read.rank}")
    return dict(to_json(read))


def read_line(line: bytes, rank: int) -> Line:
    """A line that is an object of JSON."""
    try:
        parsed = parse(line)
    except ValueError as error:
        raise fault(rank, "one line of JSON", line or error) from error
    if not isinstance(parsed, dict):
        raise fault(rank, "a JSON object", line)
    return parsed


def read_answer(line: Line, rank: int, number: int) -> Answer:
    """The answer to the case of that number."""
    given = line.get("number")
    if type(given) is not int or given != number or "answer" not in line:
        raise fault(rank, f'{{"number": {number}, "answer": {{...}}}}', json.dumps(line))
    try:
        return from_json(Answer, line["answer"])
    except ProtocolError as error:
        raise Fault("protocol", rank, f"rank {rank}: {error}") from error


def read_tensors_path(line: Line, rank: int, folder: Path) -> Path:
    """The file of an answer with steps, which is in that folder."""
    path = Path(str(line.get("tensors")))
    try:
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            return path
    except (OSError, ValueError, RuntimeError) as error:  # a name that is too long, or no name; links in a circle
        raise fault(rank, f"tensors in a file of {folder}", error) from error
    raise fault(rank, f"tensors in a file of {folder}", line.get("tensors"))
