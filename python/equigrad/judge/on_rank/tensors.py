"""Files of tensors in the safetensors format, by torch alone: an environment under test may have neither safetensors nor numpy."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

from .protocol import parse, shown

_CODES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: code for code, dtype in _CODES.items()}
_HEADER_LIMIT_BYTES = 100_000_000  # the format's own


class TensorFileError(ValueError):
    """A file that is not as the format says, or a tensor that it cannot hold."""


def write(path: str | os.PathLike[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Writes the tensors, of any device and strides. Raises TensorFileError for a type that the format has not."""
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise TensorFileError(f"[judge] expected a type of {sorted(_CODES)} as {name}, got {tensor.dtype}. Convert it.")
    header: dict[str, Any] = {}
    offset = 0
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))  # so that each is aligned, for readers that map the file
    for name in order:
        tensor = tensors[name]
        size_bytes = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size_bytes],
        }
        offset += size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            here = tensors[name].detach().cpu().contiguous()
            file.write(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()) if here.numel() else b"")


def read(path: str | os.PathLike[str], wanted: Callable[[str], bool] | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file, or those whose name is wanted. Raises TensorFileError for a file that is damaged."""
    with open(path, "rb") as file:
        return {
            name: _tensor(file, entry, path)
            for name, entry in _entries(file, path).items()
            if wanted is None or wanted(name)
        }


def names(path: str | os.PathLike[str]) -> list[str]:
    """The names in a file, without reading its tensors."""
    with open(path, "rb") as file:
        return list(_entries(file, path))


@dataclass(frozen=True)
class _Entry:
    """A tensor of a file, whose bytes begin at `begin` of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    size_bytes: int


def _entries(file: BinaryIO, path: str | os.PathLike[str]) -> dict[str, _Entry]:
    """All of a file, checked: each lies in it, and no two have a byte in common, so that all need no more memory than the file."""
    size_bytes = os.fstat(file.fileno()).st_size
    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 8 or length > min(size_bytes - 8, _HEADER_LIMIT_BYTES):
        raise _damaged(path, f"a header of {length} bytes in a file of {size_bytes}")
    try:
        header = parse(file.read(length))
    except ValueError as error:
        raise _damaged(path, f"a header that is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "a header that is no object")
    header.pop("__metadata__", None)
    entries = {name: _entry(8 + length, size_bytes, name, one, path) for name, one in header.items()}
    end, last = 0, ""
    for name, entry in sorted(entries.items(), key=lambda one: (one[1].begin, one[1].size_bytes)):
        if entry.begin < end:
            raise _damaged(path, f"{name} on bytes of {last}")
        end, last = entry.begin + entry.size_bytes, name
    return entries


def _entry(begin: int, size_bytes: int, name: str, said: Any, path: str | os.PathLike[str]) -> _Entry:
    try:
        dtype = _CODES[said["dtype"]]
        shape = tuple(_count(one) for one in said["shape"])
        first, last = (_count(one) for one in said["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"the entry {said!r} of {name}") from error
    expected_bytes = torch.empty(0, dtype=dtype).element_size()
    for one in () if 0 in shape else shape:
        expected_bytes *= one
        if expected_bytes > size_bytes:
            break  # further products have as many digits as the header has room for
    if 0 in shape:
        expected_bytes = 0
    if last - first != expected_bytes or begin + last > size_bytes:
        raise _damaged(path, f"{name} of shape {list(shape)} at {first}:{last}")
    return _Entry(dtype, shape, begin + first, expected_bytes)


def _count(said: Any) -> int:
    """A number from 0 of at most 63 bits, as which torch counts. Raises ValueError for anything else."""
    if type(said) is not int or not 0 <= said < 1 << 63:
        raise ValueError("no count")
    return said


def _tensor(file: BinaryIO, entry: _Entry, path: str | os.PathLike[str]) -> torch.Tensor:
    try:
        if entry.size_bytes == 0:
            return torch.empty(entry.shape, dtype=entry.dtype)
        file.seek(entry.begin)
        return torch.frombuffer(bytearray(file.read(entry.size_bytes)), dtype=entry.dtype).reshape(entry.shape)
    except (RuntimeError, ValueError) as error:  # dimensions whose product torch cannot count; a file that has become shorter
        raise _damaged(path, f"a tensor of shape {list(entry.shape)} ({error})") from error


def _damaged(path: str | os.PathLike[str], got: str) -> TensorFileError:
    return TensorFileError(f"[judge] expected a whole safetensors file at {os.fspath(path)}, got {shown(got)}. Write it again.")
