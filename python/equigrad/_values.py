"""Values of Python as JSON and back, every bit and every type: what a checkpoint keeps of the caller's, and of schedulers.

    None, True, 7, 0.5, "text", [1, 2], {"epoch": 3}      as JSON has them
    (1, 2)                  {"$tuple": [1, 2]}
    nan, inf, 2**70         {"$float": "nan"}, {"$int": "0x400000000000000000"}
    {3: "a"}                {"$dict": [[3, "a"]]}, where a key is no text, begins with "$", or the order is not that of the keys
    b"..."                  {"$bytes": BASE64}
    OrderedDict, Counter    {"$OrderedDict": [[key, value], ...]}, {"$Counter": [...]}
    torch.Tensor            {"$tensor": BASE64, "dtype": "float32", "shape": [2, 3]}
    numpy's                 {"$numpy": BASE64, "dtype": "<f4", "shape": [2, 3]}; {"$numpy_scalar": ...} of one number

Nothing is pickled and no code runs on reading. What has no form here is refused by its place: `client_state["a"][0]`.
"""

from __future__ import annotations

import base64
import ctypes
import importlib
import json
import math
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from equigrad._core import Error

# Of all tensors and arrays of one text: it is one document, whole in the memory of every rank.
LARGEST_BYTES = 64 << 20
# Of values within values: a manifest has up to 100 levels, and a value here up to three of them.
MOST_LEVELS = 30
_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
}
_DICTS: dict[str, type] = {"$dict": dict, "$OrderedDict": OrderedDict, "$Counter": Counter}


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU, which must outlive them."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("cpu").resolve_conj().resolve_neg().contiguous()


def form_of(value: Any, place: str, where: str) -> Any:
    """What json.dumps takes. `place` is what an error calls the value, `where` the call that it comes out of."""
    return _Writer(where).form_of(value, place)


def text_of(form: Any) -> str:
    return json.dumps(form, allow_nan=False)


def form_from(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Error(f"[{where}] expected JSON, got what is none: {error}.") from error


def value_of(form: Any, where: str) -> Any:
    try:
        return _value_of(form)
    except (ValueError, KeyError, TypeError, ImportError, RecursionError) as error:
        raise Error(f"[{where}] expected values as this version writes them, got what is none: {error}.") from error


class _Writer:
    def __init__(self, where: str) -> None:
        self.where = where
        self.bytes = 0
        self.above: list[int] = []

    def refuse(self, value: Any, place: str, why: str = "") -> NoReturn:
        kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
        raise Error(
            f"[{self.where}] expected None, bool, int, float, str, bytes, lists, tuples, dicts, tensors and arrays, got a {kind} in "
            f"{place}{why}. Nothing is pickled: keep what it is made of."
        )

    def form_of(self, value: Any, place: str) -> Any:
        if id(value) in self.above:
            self.refuse(value, place, ", which is within itself")
        if len(self.above) > MOST_LEVELS:
            self.refuse(value, place, f", which is deeper than {MOST_LEVELS} levels")
        self.above.append(id(value))
        try:
            return self._form_of(value, place)
        finally:
            self.above.pop()

    def _form_of(self, value: Any, place: str) -> Any:
        kind = type(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return value if -(2**63) <= value < 2**63 else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": repr(value)}
        if kind is str:
            return self._text(value, place)
        if kind is bytes:
            return {"$bytes": self._base64(value, value, place)}
        if kind in (list, tuple):
            items = [self.form_of(one, f"{place}[{at}]") for at, one in enumerate(value)]
            return items if kind is list else {"$tuple": items}
        if kind in _DICTS.values():
            return self._dict(value, place)
        if kind is torch.Tensor:
            return self._tensor(value, place)
        if "numpy" in sys.modules:
            numpy = sys.modules["numpy"]
            if kind is numpy.ndarray or isinstance(value, numpy.generic):
                return self._array(value, place, numpy)
        self.refuse(value, place)

    def _text(self, value: str, place: str) -> str:
        try:
            value.encode()
        except UnicodeEncodeError:
            self.refuse(value, place, ", which is no text of Unicode")
        return value

    def _dict(self, value: dict[Any, Any], place: str) -> Any:
        shown = [f'"{key}"' if type(key) is str else repr(key) for key in value]
        pairs = [(key, self.form_of(one, f"{place}[{name}]")) for name, (key, one) in zip(shown, value.items(), strict=True)]
        names = [key for key in value if type(key) is str]
        # An object of JSON has no order of its own.
        if (
            type(value) is dict
            and len(names) == len(value)
            and names == sorted(names)
            and not any(n[:1] == "$" for n in names)
        ):
            return {self._text(key, place): one for key, one in pairs}
        tag = next(name for name, kind in _DICTS.items() if kind is type(value))
        return {tag: [[self.form_of(key, f"a key of {place}"), one] for key, one in pairs]}

    def _tensor(self, value: torch.Tensor, place: str) -> dict[str, Any]:
        name = str(value.dtype).removeprefix("torch.")
        if name not in _DTYPES or value.layout is not torch.strided or value.is_meta:
            self.refuse(value, place, f" of {value.dtype}, {value.layout} on {value.device}")
        here = on_cpu(value)
        return {"$tensor": self._base64(bytes_of(here), value, place), "dtype": name, "shape": list(value.shape)}

    def _array(self, value: Any, place: str, numpy: Any) -> dict[str, Any]:
        if value.dtype.kind not in "biufc" or value.dtype.str[1:] not in _numpy_types(numpy):
            self.refuse(value, place, f" of {value.dtype}")
        tag = "$numpy" if isinstance(value, numpy.ndarray) else "$numpy_scalar"
        return {tag: self._base64(value.tobytes(), value, place), "dtype": value.dtype.str, "shape": list(value.shape)}

    def _base64(self, given: Any, value: Any, place: str) -> str:
        self.bytes += len(given)
        if self.bytes > LARGEST_BYTES:
            self.refuse(value, place, f", with which all tensors have more than {LARGEST_BYTES} bytes")
        return base64.b64encode(given).decode()


def _numpy_types(numpy: Any) -> Iterable[str]:
    return [numpy.dtype(one).str[1:] for one in ("?", *"bhilqBHILQ", *"efdFD")]


def _value_of(form: Any) -> Any:
    if isinstance(form, list):
        return [_value_of(one) for one in form]
    if not isinstance(form, dict):
        return form
    tag = next((key for key in form if key[:1] == "$"), None)
    if tag is None:
        return {key: _value_of(one) for key, one in form.items()}
    if tag in _DICTS:
        pairs = [(_value_of(key), _value_of(one)) for key, one in form[tag]]
        made = _DICTS[tag]()
        for key, one in pairs:
            made[key] = one
        return made
    if tag not in _READERS:
        raise ValueError(f'a form "{tag}", which this version does not know')
    return _READERS[tag](form)


def _tensor_of(form: dict[str, Any]) -> torch.Tensor:
    dtype, shape = _DTYPES[form["dtype"]], [int(one) for one in form["shape"]]
    given = base64.b64decode(form["$tensor"], validate=True)
    if len(given) != math.prod(shape) * dtype.itemsize or any(one < 0 for one in shape):
        raise ValueError(f"{len(given)} bytes of a tensor of {dtype} and shape {shape}")
    made = torch.empty(shape, dtype=dtype)
    if given:
        bytes_of(made)[:] = given
    return made


def _array_of(form: dict[str, Any], tag: str) -> Any:
    numpy: Any = importlib.import_module("numpy")
    dtype = numpy.dtype(str(form["dtype"]))
    if dtype.kind not in "biufc":
        raise ValueError(f"an array of {dtype}")
    given = base64.b64decode(form[tag], validate=True)
    made = numpy.frombuffer(given, dtype=dtype).reshape(form["shape"]).copy()
    return made if tag == "$numpy" else made[()]


def _float_of(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f'a number "{text}"')
    return float(text)


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "$tuple": lambda form: tuple(_value_of(one) for one in form["$tuple"]),
    "$int": lambda form: int(form["$int"], 16),
    "$float": lambda form: _float_of(form["$float"]),
    "$bytes": lambda form: base64.b64decode(form["$bytes"], validate=True),
    "$tensor": _tensor_of,
    "$numpy": lambda form: _array_of(form, "$numpy"),
    "$numpy_scalar": lambda form: _array_of(form, "$numpy_scalar"),
}
