"""Files of tensors in the safetensors format, by torch alone: an environment under test may have neither safetensors nor numpy."""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

import torch

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
        size_bytes = os.fstat(file.fileno()).st_size
        header, begin = _header(file, size_bytes, path)
        tensors = {}
        for name, entry in header.items():
            if wanted is None or wanted(name):
                tensors[name] = _tensor(file, begin, size_bytes, name, entry, path)
        return tensors


def names(path: str | os.PathLike[str]) -> list[str]:
    """The names in a file, without reading its tensors."""
    with open(path, "rb") as file:
        return list(_header(file, os.fstat(file.fileno()).st_size, path)[0])


def _header(file: BinaryIO, size_bytes: int, path: str | os.PathLike[str]) -> tuple[dict[str, Any], int]:
    length = int.from_bytes(file.read(8), "little")
    if size_bytes < 8 or length > min(size_bytes - 8, _HEADER_LIMIT_BYTES):
        raise _damaged(path, f"a header of {length} bytes in a file of {size_bytes}")
    try:
        header = json.loads(file.read(length))
    except ValueError as error:
        raise _damaged(path, f"a header that is no JSON ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "a header that is no object")
    header.pop("__metadata__", None)
    return header, 8 + length


def _tensor(
    file: BinaryIO, begin: int, size_bytes: int, name: str, entry: Any, path: str | os.PathLike[str]
) -> torch.Tensor:
    try:
        dtype, shape = _CODES[entry["dtype"]], [int(one) for one in entry["shape"]]
        first, last = (int(one) for one in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"the entry {entry!r} of {name}") from error
    count = 1
    for one in shape:
        count *= one
    expected_bytes = count * torch.empty(0, dtype=dtype).element_size()
    if min([0, first, *shape]) < 0 or last - first != expected_bytes or begin + last > size_bytes:
        raise _damaged(path, f"{name} of {expected_bytes} bytes at {first}:{last}")
    if count == 0:
        return torch.empty(shape, dtype=dtype)
    file.seek(begin + first)
    return torch.frombuffer(bytearray(file.read(expected_bytes)), dtype=dtype).reshape(shape)


def _damaged(path: str | os.PathLike[str], got: str) -> TensorFileError:
    return TensorFileError(f"[judge] expected a whole safetensors file at {os.fspath(path)}, got {got}. Write it again.")
