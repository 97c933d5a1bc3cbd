"""What judge and ranks say to each other: cases, answers, and the lines of the channel (docs/judge-protocol.md)."""

from __future__ import annotations

import functools
import json
import math
import socket
import sys
import types
import typing
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

PROTOCOL = 1
CHANNEL = "EQUIGRAD_JUDGE_CHANNEL"
"""The environment variable that holds the path of the judge's Unix socket."""
DEVICE = "EQUIGRAD_JUDGE_DEVICE"
"""That which holds the device: "cpu" or "cuda"."""
STYLES = ("engine_backward", "loss_backward", "scale_backward", "tensor_backward")
DTYPES = ("fp32", "fp64", "bf16", "fp16")

OPTIONS: dict[str, type] = {
    "offload": str,
    "bucket_bytes": int,
    "activation_checkpointing": bool,
    "no_sync": bool,
    "scale_wrt_gas": bool,
    "backwards": int,
    "save_after": int,
    "engines": int,
    "static_graph": bool,
    "find_unused": bool,
    "overflow": str,
    "gradient_as_bucket_view": bool,
    "reshard_after_forward": bool,
    "set_to_none": bool,
    "boundary": bool,
    "record": bool,
    "module_id": bool,
}
"""Every option that a case may have, and the type of its value."""


class ProtocolError(ValueError):
    """Something that is not as docs/judge-protocol.md says."""


class Absent(Exception):
    """Raised by an adapter: this engine has no such feature."""


class Refused(Exception):
    """Raised by an adapter: the engine itself said that it does not support this."""


@dataclass(frozen=True)
class Optimizer:
    """One of torch.optim's, by the names of its arguments."""

    name: str
    """"sgd" or "adamw"."""
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class Group:
    """A group of parameters with a learning rate and a decay of its own."""

    parameters: tuple[str, ...]
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Clip:
    """Clipping by the norm of all gradients together."""

    max_norm: float
    norm_type: str
    """"2" or "inf"."""


@dataclass(frozen=True)
class LossScale:
    """What an fp16 loss is multiplied by before backward."""

    dynamic: bool
    value: float
    """The static scale, or the first one."""
    window: int = 1000
    hysteresis: int = 1
    minimum: float = 1.0


@dataclass(frozen=True)
class Precision:
    """Types: of DTYPES, or "" where a field says so."""

    model: str
    autocast: str = ""
    """"" for none."""
    accumulation: str = ""
    """Of gradients over micro-batches; "" for the engine's default."""
    communication: str = ""
    """Of reductions; "" for the engine's default."""
    loss_scale: LossScale | None = None


@dataclass(frozen=True)
class Model:
    """A built-in model, or "package.module:factory" with the factory's keyword arguments."""

    name: str
    arguments: dict[str, bool | int | float | str] = field(default_factory=dict)
    factor: int = 1
    """The loss is multiplied by it, last of all."""


@dataclass(frozen=True)
class Case:
    """One cell: what every rank trains. Paths are absolute."""

    id: str
    world: int
    model: Model
    steps: int
    accumulation: int
    precision: Precision
    optimizer: Optimizer
    weights: str
    batches: str
    stage: int = 0
    style: str = "engine_backward"
    groups: tuple[Group, ...] = ()
    """Each parameter is in exactly one; () is one group of all."""
    schedule: tuple[float, ...] = ()
    """The factor on every group's lr, by applied steps; () is 1 throughout."""
    clip: Clip | None = None
    options: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class StepAnswer:
    """One step of one rank."""

    losses: tuple[float, ...]
    """By micro-batch, then by backward of it; with the factor, not divided by the accumulation, not scaled."""
    applied: bool | None = None
    norm: float | None = None
    """Of the averaged, unscaled gradients before clipping."""
    lrs: tuple[float, ...] | None = None
    """By group, as used in this step."""
    loss_scale: float | None = None
    """As used in this step."""


@dataclass(frozen=True)
class Answer:
    """What a rank answers a case with: steps, or exactly one of absent, refused and failed."""

    steps: tuple[StepAnswer, ...] = ()
    engine: str = ""
    version: str = ""
    torch: str = ""
    notes: tuple[str, ...] = ()
    absent: str | None = None
    refused: str | None = None
    failed: str | None = None


@dataclass(frozen=True)
class Hello:
    """A rank's first line."""

    protocol: int
    rank: int
    engine: str
    version: str
    torch: str


Record = TypeVar("Record")
_LARGEST = int(sys.float_info.max)

LEVELS = 32
"""How deep objects and lists of a line may be in each other."""


def parse(text: str | bytes) -> Any:
    """What JSON says. Raises ValueError for what is none, or has more than LEVELS levels."""
    too_deep = f"expected JSON of at most {LEVELS} levels, got more"
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(too_deep) from error
    level = [value]
    for _ in range(LEVELS):
        level = [one for outer in level for one in _inner(outer) if isinstance(one, (dict, list))]
        if not level:
            return value
    raise ValueError(too_deep)


def shown(text: str) -> str:
    """A text that somebody else wrote, in one for a person: short, and such that UTF-8 has all of it."""
    short = text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"
    return short.encode(errors="backslashreplace").decode()


def batch_key(step: int, rank: int, micro: int, backward: int, key: str) -> str:
    """The name of a tensor in the file of batches."""
    return f"s{step}.r{rank}.m{micro}.b{backward}.{key}"


def tensor_key(step: int, kind: str, name: str) -> str:
    """The name of a tensor in the file of an answer; kind is "gradient", "parameter" or "master"."""
    return f"step{step}/{kind}/{name}"


def local_key(rank: int, micro: int, name: str, exact: bool = False) -> str:
    """The name of a tensor in the file of the reference; exact: of the set that was computed in fp64."""
    return f"{'fp64/' if exact else ''}r{rank}.m{micro}/{name}"


def to_json(record: Any) -> Any:
    """A record of this module as what json.dumps takes. Numbers that are not finite become "inf", "-inf", "nan"."""
    if is_dataclass(record):
        pairs = ((one.name, getattr(record, one.name)) for one in fields(record))
        leave = isinstance(record, Answer)  # an answer holds one of its kinds only
        return {name: to_json(value) for name, value in pairs if not (leave and value is None)}
    if isinstance(record, dict):
        return {name: to_json(value) for name, value in record.items()}
    if isinstance(record, (tuple, list)):
        return [to_json(value) for value in record]
    if isinstance(record, float) and not math.isfinite(record):
        return "nan" if math.isnan(record) else "inf" if record > 0 else "-inf"
    return record


def from_json(kind: type[Record], value: Any) -> Record:
    """A record of this module from what json.loads gave. Raises ProtocolError, with the place, for anything else."""
    record: Record = _read(kind, value, kind.__name__.lower())
    if isinstance(record, Case):
        _check_case(record)
    if isinstance(record, Answer):
        kinds = [name for name in ("absent", "refused", "failed") if getattr(record, name) is not None]
        if len(kinds) + bool(record.steps) != 1:
            raise ProtocolError(
                f"[judge] expected an answer with steps, or with one of absent, refused and failed, got {len(record.steps)} "
                f"steps and {kinds}. Mend the adapter."
            )
    return record


def read_case(path: str) -> Case:
    """The case in that file."""
    with open(path, encoding="utf-8") as file:
        return from_json(Case, parse(file.read()))


def write_case(case: Case, path: str) -> None:
    """Writes the case as JSON."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(to_json(case), file, indent=1)


def misfit(case: Case, answer: Answer) -> str:
    """What is wrong with the counts of an answer with steps to this case, or ""."""
    losses = case.accumulation * int(case.options.get("backwards", 1))
    groups = max(1, len(case.groups))
    if len(answer.steps) != case.steps:
        return f"[judge] expected an answer to all {case.steps} steps, got {len(answer.steps)}. Mend the adapter."
    for step, said in enumerate(answer.steps):
        if len(said.losses) != losses:
            return f"[judge] expected {losses} losses in step {step}, one per backward, got {len(said.losses)}. Mend the adapter."
        if said.lrs is not None and len(said.lrs) != groups:
            return f"[judge] expected {groups} lrs in step {step}, one per group, or null, got {len(said.lrs)}. Mend the adapter."
    return ""


def _inner(outer: Any) -> Iterable[Any]:
    if isinstance(outer, dict):
        return outer.values()
    return outer if isinstance(outer, list) else ()


@functools.cache
def _types_of(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _read(kind: Any, value: Any, place: str) -> Any:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        plain = [one for one in inner if one is not type(None)]
        matching = [one for one in plain if type(value) is one] or plain
        return _read(matching[0], value, place)
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or (inner[-1] is not ... and len(value) != len(inner)):
            raise _unexpected("a list" if inner[-1] is ... else f"a list of {len(inner)}", value, place)
        return tuple(_read(inner[0], one, f"{place}[{index}]") for index, one in enumerate(value))
    if origin is dict:
        if not isinstance(value, dict):
            raise _unexpected("an object", value, place)
        return {_read_plain(str, name, place): _read(inner[1], one, f"{place}.{shown(name)}") for name, one in value.items()}
    if is_dataclass(kind):
        return _read_record(kind, value, place)
    return _read_plain(kind, value, place)


def _read_record(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _unexpected("an object", value, place)
    hints = _types_of(kind)
    known = {one.name: one for one in fields(kind)}
    for name in value:
        if name not in known:
            raise ProtocolError(f"[judge] expected fields of {sorted(known)} in {place}, got {shown(repr(name))}. Take it out.")
    for name, one in known.items():
        if name not in value and one.default is MISSING and one.default_factory is MISSING:
            raise ProtocolError(f"[judge] expected a field {name!r} in {place}, got {shown(str(sorted(value)))}. Add it.")
    return kind(**{name: _read(hints[name], one, f"{place}.{name}") for name, one in value.items()})


def _read_plain(kind: Any, value: Any, place: str) -> Any:
    if kind is float:
        if isinstance(value, str) and value in ("inf", "-inf", "nan"):
            return float(value)
        if isinstance(value, float) or (type(value) is int and abs(value) <= _LARGEST):
            return float(value)
        raise _unexpected("a number", value, place)
    if type(value) is not kind:
        raise _unexpected({int: "an integer", str: "a string", bool: "true or false"}[kind], value, place)
    if kind is str and not _is_utf8(value):
        raise _unexpected("a string that UTF-8 has", value, place)
    return value


def _is_utf8(text: str) -> bool:
    """Whether it can be written: a surrogate cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unexpected(expected: str, value: Any, place: str) -> ProtocolError:
    return ProtocolError(
        f"[judge] expected {expected} as {place}, got {shown(repr(value))}. Correct it; docs/judge-protocol.md has all fields."
    )


def _check_case(case: Case) -> None:
    for name, value in case.options.items():
        if name not in OPTIONS:
            raise ProtocolError(f"[judge] expected options of {sorted(OPTIONS)}, got {name!r}. Take it out.")
        if type(value) is not OPTIONS[name]:
            raise ProtocolError(f"[judge] expected {OPTIONS[name].__name__} as option {name}, got {value!r}. Correct it.")
    one_of = [
        ("style", case.style, STYLES),
        ("precision.model", case.precision.model, DTYPES),
        ("precision.autocast", case.precision.autocast, ("", "bf16", "fp16")),
        ("precision.accumulation", case.precision.accumulation, ("", *DTYPES)),
        ("precision.communication", case.precision.communication, ("", *DTYPES)),
        ("optimizer.name", case.optimizer.name, ("sgd", "adamw")),
        ("clip.norm_type", case.clip.norm_type if case.clip else "2", ("2", "inf")),
    ]
    for name, got, known in one_of:
        if got not in known:
            raise ProtocolError(f"[judge] expected one of {list(known)} as {name}, got {got!r}. Correct it.")
    for name, number in (
        ("world", case.world),
        ("steps", case.steps),
        ("accumulation", case.accumulation),
        ("factor", case.model.factor),
    ):
        if number < 1:
            raise ProtocolError(f"[judge] expected at least 1 as {name}, got {number}. Correct it.")


class Channel:
    """Lines of JSON over a stream socket, each ended by a newline; either side."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")

    @staticmethod
    def connect(path: str) -> Channel:
        """To the judge's socket. Raises OSError where nobody listens."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(path)
        return Channel(connection)

    def send(self, message: dict[str, Any]) -> None:
        """One line. Raises OSError where the other side is gone."""
        self._connection.sendall(json.dumps(message, allow_nan=False).encode() + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """The next line, or None where the other side has closed. Raises ProtocolError for a line that is no object of JSON."""
        line = self._file.readline()
        if not line:
            return None
        try:
            message = parse(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise ProtocolError(f"[judge] expected a line with an object of JSON, got {line[:200]!r}. Mend the other side.")
        return message

    def close(self) -> None:
        """Both directions."""
        self._file.close()
        self._connection.close()
