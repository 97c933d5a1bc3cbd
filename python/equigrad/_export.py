"""The whole model: as a state dict, as one file that others load, and back into the engine."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch

from equigrad._core import Error
from equigrad._tensor_parallel import own_part, whole_of, whole_shape
from equigrad._values import bytes_of, on_cpu
from equigrad.zero import GatheredParameters

if TYPE_CHECKING:
    from equigrad._engine import Engine

_GATHER_KEY = "zero_optimization.stage3_gather_16bit_weights_on_model_save"
# torch's types as safetensors calls them.
_SAFETENSORS = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


class _Entries:
    """The model's state dict by name: parameters that the engine holds, and what else there is."""

    def __init__(self, engine: Engine, exclude_frozen_parameters: bool) -> None:
        self.engine = engine
        self.core = engine._living("state_dict")
        self._held = {id(one): name for name, one in reversed(engine._parameters_held.items())}
        self.all: dict[str, Any] = {
            name: one
            for name, one in engine.module.state_dict(keep_vars=True).items()
            if not (exclude_frozen_parameters and isinstance(one, torch.nn.Parameter) and not one.requires_grad)
        }

    def first_names(self) -> dict[str, str]:
        """By name, the first one of the same tensor."""
        first: dict[int, str] = {}
        return {name: first.setdefault(id(one), name) if torch.is_tensor(one) else name for name, one in self.all.items()}

    def whole(self, name: str) -> Any:
        """A copy on the CPU. Collective for what the engine holds."""
        one = self.all[name]
        if not torch.is_tensor(one):
            return one
        held = self._held.get(id(one))
        whole = whole_of(one, self.engine._mesh.tensor) if held is None else self.core.full_parameter(held)
        return on_cpu(whole).clone() if whole.data_ptr() == one.data_ptr() else on_cpu(whole)


def _one_by_one(entries: _Entries) -> Iterator[tuple[str, Any]]:
    for name, first in entries.first_names().items():
        if name == first:
            yield name, entries.whole(name)


def _whole_dict(entries: _Entries, is_kept: bool) -> OrderedDict[str, Any]:
    """Tied names share their tensor. Collective; empty where nothing is kept."""
    kept = OrderedDict((name, one) for name, one in _one_by_one(entries) if is_kept)
    first = entries.first_names()
    return OrderedDict((name, kept[first[name]]) for name in entries.all) if is_kept else kept


def module_state_dict(
    engine: Engine, destination: dict[str, Any] | None, prefix: str, keep_vars: bool, exclude_frozen_parameters: bool
) -> dict[str, Any]:
    if engine.zero_optimization_stage() < 3 and engine._mesh.tensor is None:
        given: dict[str, Any] = {} if destination is None else {"destination": destination}
        own: dict[str, Any] = engine.module.state_dict(**given, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, one in engine.module.named_parameters(remove_duplicate=False):
                if not one.requires_grad:
                    own.pop(prefix + name, None)
        return own
    if keep_vars:
        raise Error(
            "[engine.module_state_dict] expected no keep_vars at stage 3, or of a split model, where a rank keeps parts of parameters and "
            "the state dict is of copies. Leave it out."
        )
    whole = _whole_dict(_Entries(engine, exclude_frozen_parameters), is_kept=True)
    state: dict[str, Any] = OrderedDict() if destination is None else destination
    state.update({prefix + name: one for name, one in whole.items()})
    return state


def zero3_state_dict(engine: Engine, exclude_frozen_parameters: bool) -> dict[str, Any] | None:
    if engine.zero_optimization_stage() != 3:
        raise ValueError(
            "[engine._zero3_consolidated_16bit_state_dict] expected stage 3. Call module_state_dict() below it."
        )
    is_first = engine.global_rank == 0
    state = _whole_dict(_Entries(engine, exclude_frozen_parameters), is_first)
    return state if is_first else None


# ---- One file --------------------------------------------------------------------------------------------------------


def save_16bit_model(
    engine: Engine, save_dir: str | os.PathLike[str], save_filename: str, exclude_frozen_parameters: bool
) -> bool:
    where = "engine.save_16bit_model"
    entries = _Entries(engine, exclude_frozen_parameters)
    if not isinstance(save_filename, str) or not save_filename or Path(save_filename).name != save_filename:
        raise Error(
            f'[{where}] expected the name of a file, got {save_filename!r}. Give "pytorch_model.bin" or "model.safetensors".'
        )
    path = Path(save_dir) / save_filename
    if engine.zero_optimization_stage() == 3 and not json.loads(engine._settings[_GATHER_KEY]):
        warnings.warn(
            f'[{where}] expected "stage3_gather_16bit_weights_on_model_save": true at stage 3, got false: {path} is not saved. Set it, or call '
            "save_checkpoint().",
            stacklevel=3,
        )
        return False
    is_safe = path.suffix == ".safetensors"
    header = _safetensors_header(entries, where) if is_safe else b""
    file = _File(path if engine.global_rank == 0 else None)
    if is_safe:
        file.write(header)
        for _, one in _one_by_one(entries):
            file.write(bytes_of(one))
    else:
        state = _whole_dict(entries, engine.global_rank == 0)
        file.attempt(lambda out: torch.save(state, out))
    file.finish()
    _agree(engine, file, where)
    return True


def _safetensors_header(entries: _Entries, where: str) -> bytes:
    """Of every tensor under its first name; the other names of tied ones are in the metadata, as Hugging Face's are."""
    tensors: dict[str, Any] = {}
    metadata = {"format": "pt"}
    offset = 0
    for name, first in entries.first_names().items():
        one = entries.all[name]
        if not torch.is_tensor(one) or one.dtype not in _SAFETENSORS:
            what = f"a tensor of {one.dtype}" if torch.is_tensor(one) else f"a {type(one).__name__}"
            raise Error(
                f'[{where}] expected tensors of types that safetensors has, got {what} in "{name}". Name the file .bin.'
            )
        if name != first:
            metadata[name] = first
            continue
        shape = whole_shape(one)
        end = offset + math.prod(shape) * one.element_size()
        tensors[name] = {"dtype": _SAFETENSORS[one.dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps({"__metadata__": metadata, **tensors}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


class _File:
    """Written beside its place, synced, and renamed: who reads finds the old file or the new one. Without a path it does nothing.

    After an error nothing more is written, and the error is kept: other ranks still wait for this one's tensors.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.error: BaseException | None = None
        self._out: IO[bytes] | None = None
        if path is not None:
            self._beside = path.with_name(path.name + ".saving")
            self._try(self._open)

    def attempt(self, write: Callable[[IO[bytes]], Any]) -> None:
        out = self._out
        if out is not None and self.error is None:
            self._try(lambda: write(out))

    def write(self, data: bytes | memoryview) -> None:
        self.attempt(lambda out: out.write(data))

    def finish(self) -> None:
        if self._out is None:
            return
        if self.error is None:
            self._try(self._put_in_place)
        self._out.close()
        if self.error is not None:
            self._beside.unlink(missing_ok=True)

    def _open(self) -> None:
        self._beside.parent.mkdir(parents=True, exist_ok=True)
        self._out = self._beside.open("wb")

    def _put_in_place(self) -> None:
        assert self._out is not None and self.path is not None
        self._out.flush()
        os.fsync(self._out.fileno())
        self._beside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _try(self, call: Callable[[], Any]) -> None:
        try:
            call()
        except Exception as error:  # noqa: BLE001  raised when all ranks have come to the end
            self.error = error


def _agree(engine: Engine, file: _File, where: str) -> None:
    """Rank 0's error is one on all."""
    failed = torch.tensor([file.error is not None], dtype=torch.uint8, device=engine.device)
    engine._ranks.broadcast(failed, 0)
    if file.error is not None:
        raise Error(
            f'[{where}] expected to write "{file.path}", got {type(file.error).__name__}: {file.error}. What was there is whole.'
        ) from file.error
    if failed.item():
        raise Error(f"[{where}] expected rank 0 to write the file, got an error there. What was there is whole.")


# ---- Back ------------------------------------------------------------------------------------------------------------


def load_module_state_dict(
    engine: Engine,
    checkpoint: dict[str, Any],
    strict: bool,
    custom_load_fn: Callable[..., Any] | None,
    allowed_missing_keys: Iterable[str] | None,
) -> None:
    where = "engine.load_module_state_dict"
    core = engine._living("load_module_state_dict")
    if not isinstance(checkpoint, dict) or "module" not in checkpoint:
        raise Error(f'[{where}] expected a dict with a state dict under "module", got none. Give {{"module": state_dict}}.')
    state = checkpoint["module"]
    if custom_load_fn is not None:
        _load_by(engine, state, custom_load_fn)
        return
    own: dict[str, Any] = engine.module.state_dict(keep_vars=True)
    _check_names(own, state, strict, set(allowed_missing_keys or ()), where)
    held = {id(one): name for name, one in reversed(engine._parameters_held.items())}
    is_loaded: set[int] = set()
    for name, one in own.items():
        if name not in state or id(one) in is_loaded:
            continue
        is_loaded.add(id(one))
        if not torch.is_tensor(one):
            _module_of(engine.module, name).set_extra_state(state[name])
        elif id(one) not in held:
            with torch.no_grad():
                one.copy_(own_part(state[name], one, engine._mesh.tensor))
        elif one.requires_grad:
            core.set_full_master(held[id(one)], own_part(state[name].detach().to(one.device), one, engine._mesh.tensor))
        elif engine._mesh.tensor is not None:
            with torch.no_grad():
                one.copy_(own_part(state[name], one, engine._mesh.tensor))
        else:
            with GatheredParameters([one], modifier_rank=0), torch.no_grad():
                if engine.global_rank == 0:
                    one.copy_(state[name])


def _module_of(model: torch.nn.Module, name: str) -> torch.nn.Module:
    return model.get_submodule(name.rpartition(".")[0])


def _check_names(own: dict[str, Any], state: dict[str, Any], strict: bool, allowed: set[str], where: str) -> None:
    missing = sorted(set(own) - set(state) - allowed) if strict else []
    foreign = sorted(set(state) - set(own)) if strict else []
    if missing or foreign:
        raise Error(
            f"[{where}] expected the names of this model, got none for {_some(missing)}, and {_some(foreign)} too. Give strict=False to "
            "load what both have."
        )
    for name, one in own.items():
        given = state.get(name)
        if name not in state or not torch.is_tensor(one):
            continue
        if not torch.is_tensor(given) or list(given.shape) != whole_shape(one):
            shape = list(given.shape) if torch.is_tensor(given) else type(given).__name__
            raise Error(f'[{where}] expected "{name}" of shape {whole_shape(one)}, got {shape}. It is of another model.')


def _some(names: list[str]) -> str:
    shown = ", ".join(f'"{name}"' for name in names[:3])
    return "no other" if not names else shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _load_by(engine: Engine, state: dict[str, Any], custom_load_fn: Callable[..., Any]) -> None:
    """On rank 0, whose values become every rank's."""
    if engine._mesh.tensor is not None:
        raise Error(
            "[engine.load_module_state_dict] expected no custom_load_fn of a split model, of which rank 0 has a part. Leave it out, and give "
            "a state dict of whole tensors."
        )
    from equigrad._initialize import broadcast_buffers

    parameters = list({id(one): one for one in engine._parameters_held.values()}.values())
    with GatheredParameters(parameters, modifier_rank=0):
        if engine.global_rank == 0:
            custom_load_fn(src=state, dst=engine.module)
    broadcast_buffers(engine.module, engine._ranks)
