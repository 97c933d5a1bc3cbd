"""Modules of which this rank has a part: linears and embeddings made so in place, and attention that counts its own heads.

A module keeps its name, its parameters and their names; its class becomes one of the same name whose forward is the core's.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from equigrad import _core
from equigrad._handles import OPEN_MARK
from equigrad._split_logits import SplitLogits

# Attributes of a module of attention that count heads, and those that are as wide as all of them.
_COUNTS = ("num_heads", "num_attention_heads", "num_key_value_heads", "num_kv_heads", "n_head", "n_heads", "n_kv_heads")
_WIDTHS = ("split_size", "all_head_size", "inner_dim", "embed_dim", "hidden_size", "d_model", "dim")
# What a call of it may be given for all heads: [batch x heads, ...] or [heads, ...].
_BY_HEADS = ("alibi", "position_bias")


class How(NamedTuple):
    """What a split module's forward needs."""

    name: str
    plan: _core.ModulePlan
    group: _core.Communicator
    calls: list[None]  # not empty: the forward has run

    def __deepcopy__(self, memo: dict[int, Any]) -> How:
        return self


class _Part(torch.nn.Module):
    _equigrad_how: How
    weight: torch.Tensor
    bias: torch.Tensor | None

    def _matrix(self) -> torch.Tensor:
        """[outputs, inputs]."""
        if OPEN_MARK in self.weight.__dict__:
            raise _core.Error(
                f'[zero.GatheredParameters] expected no pass of the model while parameters of "{self._equigrad_how.name}" are whole, got '
                "one. End the scope first."
            )
        self._equigrad_how.calls[:] = [None]
        return self.weight.t() if kind_of(self) == _core.ModuleKind.Conv1D else self.weight


class _Column(_Part):
    def forward(self, whole: torch.Tensor) -> torch.Tensor:
        _, plan, group, _ = self._equigrad_how
        part = _core.column_linear(whole, self._matrix(), self.bias, group)
        passes = self.__dict__.get("_equigrad_passes")
        if passes is not None and passes.have_labels:
            return SplitLogits.of(part, passes)
        return _gathered(part, self._equigrad_how) if gathers_output(plan) else part


class _Row(_Part):
    def forward(self, given: torch.Tensor) -> torch.Tensor:
        _, plan, group, _ = self._equigrad_how
        assert plan.weight is not None
        part = _core.scatter_to(given, -1, group, plan.weight.segments) if plan.takes_whole_input else given
        return _core.row_linear(part, self._matrix(), self.bias, group)


class _Vocabulary(_Part):
    padding_idx: int | None

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        return _core.embedding(indices, self._matrix(), self._equigrad_how.group, self.padding_idx)


class _Width(_Part):
    padding_idx: int | None

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        part = torch.nn.functional.embedding(indices, self._matrix(), self.padding_idx)
        return _gathered(part, self._equigrad_how) if gathers_output(self._equigrad_how.plan) else part


# Embeddings whose own forward calls torch's, and then scales what it gave: these take the place of torch's.
class _VocabularyBelow(_Vocabulary, torch.nn.Embedding):
    pass


class _WidthBelow(_Width, torch.nn.Embedding):
    pass


def gathers_output(plan: _core.ModulePlan) -> bool:
    """Whether every rank gets the whole output: also of a split head, but for logits beside a loss (_split_logits.py)."""
    return plan.gathers_output or plan.reason == "vocab_parallel_lm_head"


def _gathered(part: torch.Tensor, how: How) -> torch.Tensor:
    assert how.plan.weight is not None
    return _core.gather_from(part, -1, how.group, how.plan.weight.segments)


def whole_type(module: torch.nn.Module) -> type[torch.nn.Module]:
    """The class that it had before it was split."""
    kind = type(module)
    found: type[torch.nn.Module] = getattr(kind, "_equigrad_whole", kind)
    return found


def kind_of(module: torch.nn.Module) -> _core.ModuleKind:
    """By what its forward does: of another one nothing is known."""
    kind = whole_type(module)
    if kind.forward is torch.nn.Linear.forward or (kind.__name__ == "FalconLinear" and issubclass(kind, torch.nn.Linear)):
        return _core.ModuleKind.Linear
    if kind.forward is torch.nn.Embedding.forward or _is_scaled(kind):
        return _core.ModuleKind.Embedding
    if kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers."):
        return _core.ModuleKind.Conv1D
    return _core.ModuleKind.Other


def _is_scaled(kind: type[torch.nn.Module]) -> bool:
    """Of transformers, where all of this name are so: Gemma's, Bart's and others."""
    is_named = kind.__name__.endswith("ScaledWordEmbedding") and kind.__module__.startswith("transformers.")
    return is_named and issubclass(kind, torch.nn.Embedding)


_classes: dict[tuple[type, type], type] = {}


def _class_of(part: type[_Part], kind: type[torch.nn.Module]) -> type:
    if (part, kind) not in _classes:
        names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_equigrad_whole": kind}
        bases = (kind, part) if issubclass(part, torch.nn.Embedding) else (part, kind)
        _classes[part, kind] = type(kind.__name__, bases, names)
    return _classes[part, kind]


# Sizes that a module says of itself, in the order of its weight's dimensions.
_SIZES = {
    _core.ModuleKind.Linear: ("out_features", "in_features"),
    _core.ModuleKind.Conv1D: ("nx", "nf"),
    _core.ModuleKind.Embedding: ("num_embeddings", "embedding_dim"),
}


def split_module(name: str, module: torch.nn.Module, plan: _core.ModulePlan, group: _core.Communicator) -> None:
    """Makes `module`, whose parameters are this rank's parts already, compute with them."""
    kind = kind_of(module)
    if kind == _core.ModuleKind.Embedding:
        _check_embedding(name, module)
        is_scaled = _is_scaled(whole_type(module))
        if plan.placement == _core.Placement.Vocabulary:
            part: type[_Part] = _VocabularyBelow if is_scaled else _Vocabulary
        else:
            part = _WidthBelow if is_scaled else _Width
    else:
        part = _Row if plan.placement == _core.Placement.Row else _Column
    how = How(name, plan, group, [])
    weight = module.weight
    assert isinstance(weight, torch.nn.Parameter)
    for attribute, size in zip(_SIZES[kind], weight.shape, strict=True):
        setattr(module, attribute, size)
    module.__dict__["_equigrad_how"] = how
    module.__class__ = _class_of(part, type(module))
    if weight.requires_grad:
        _watch_use(weight, how)


def _check_embedding(name: str, module: torch.nn.Module) -> None:
    for option in ("max_norm", "scale_grad_by_freq", "sparse"):
        value = getattr(module, option, None)
        if value:
            raise _core.Error(
                f"[tensor_parallel] {name}: expected an embedding without {option}, got {value}. Leave it whole with a spec of "
                '"skip", or make it without.'
            )


def on_gradient(tensor: torch.Tensor, call: Callable[[torch.Tensor], Any]) -> RemovableHandle:
    typed: Any = tensor  # register_hook has no types
    handle: RemovableHandle = typed.register_hook(call)
    return handle


# By the weight: the modules that share it, until its first gradient.
def _watch_use(weight: torch.nn.Parameter, how: How) -> None:
    def check(_: torch.Tensor) -> None:
        handle.remove()
        users: list[How] = weight.__dict__.pop("_equigrad_users", [])
        if users and not any(one.calls for one in users):
            raise _core.Error(
                f"[tensor_parallel] {how.name}: expected its forward to be called, got a model that uses its weight without it, "
                'and so a part of it. Leave the module whole with a spec of "skip".'
            )

    others: list[How] = weight.__dict__.setdefault("_equigrad_users", [])
    others.append(how)
    if len(others) == 1:
        handle = on_gradient(weight, check)


def sum_gradients(module: torch.nn.Module, group: _core.Communicator) -> None:
    """Of parameters that all ranks have and use on their parts of activations."""
    for parameter in module.parameters(recurse=False):
        if parameter.requires_grad:
            on_gradient(parameter, lambda gradient: _core.sum_over(gradient, group))


def share_keys(module: torch.nn.Module, latent: int, group: _core.Communicator) -> None:
    """Of latent attention: the outputs behind `latent` are a key that the heads of all ranks use."""

    def spread(_: torch.nn.Module, __: Any, output: torch.Tensor) -> torch.Tensor:
        return torch.cat((output[..., :latent], _core.copy_to(output[..., latent:], group)), -1)

    module.register_forward_hook(spread)


# ---- Attention -------------------------------------------------------------------------------------------------------


def count_own_heads(name: str, module: torch.nn.Module, rank: int, size: int) -> None:
    """Makes a module of attention compute with this rank's heads, `size` ranks having equally many."""
    counts = {one: module.__dict__[one] for one in _COUNTS if _is_count(module.__dict__.get(one))}
    config = module.__dict__.get("config")
    said = {} if config is None else {one: getattr(config, one, None) for one in _COUNTS[:3]}
    of_config = {one: count for one, count in said.items() if isinstance(count, int) and _is_count(count)}
    heads = counts.get("num_heads") or next(iter(counts.values()), 0) or of_config.get("num_attention_heads", 0)
    if not heads:
        return
    for one, count in {**of_config, **counts}.items():
        if count % size != 0:
            raise _core.Error(
                f"[tensor_parallel] {name}: expected a {one} that the tensor size {size} divides, got {count}. Lower autotp_size, or "
                'leave the attention whole with "skip".'
            )
    for one, count in counts.items():
        setattr(module, one, count // size)
    for one in _WIDTHS:
        if _is_count(module.__dict__.get(one)):
            setattr(module, one, module.__dict__[one] // size)
    if of_config:
        module.__dict__["config"] = _with_own_heads(config, of_config, size)
    _cut_what_is_by_heads(module, heads, rank, size)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _with_own_heads(config: Any, counts: dict[str, int], size: int) -> Any:
    """The same configuration, also of what is set later, but for these counts."""
    kind = type(config)
    names: dict[str, Any] = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    attribute_map: dict[str, str] = getattr(kind, "attribute_map", {})
    for one, count in counts.items():
        names[attribute_map.get(one, one)] = property(_always(count // size))
    try:
        own: Any = object.__new__(type(kind.__name__, (kind,), names))
        object.__setattr__(own, "__dict__", config.__dict__)
    except (TypeError, AttributeError):  # its class is no class of Python's
        own = copy.copy(config)
        for one, count in counts.items():
            setattr(own, one, count // size)
    return own


def _always(count: int) -> Callable[[Any], int]:
    return lambda _: count


def _cut_what_is_by_heads(module: torch.nn.Module, heads: int, rank: int, size: int) -> None:
    signature = inspect.signature(module.forward)
    if not {*_BY_HEADS, "attention_mask"} & set(signature.parameters):
        return

    def own(name: str, value: Any) -> Any:
        if not torch.is_tensor(value):
            return value
        if name in _BY_HEADS and value.dim() == 3 and value.size(0) % heads == 0:
            return value.view(-1, heads, *value.shape[1:]).chunk(size, 1)[rank].flatten(0, 1)
        if name == "attention_mask" and value.dim() == 4 and value.size(1) == heads > 1:
            return value.chunk(size, 1)[rank]
        return value

    places = list(signature.parameters)

    def cut(_: torch.nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What was given by place stays so, and what by name: a decorated forward may tell them apart."""
        by_place = [own(name, value) for name, value in zip(places, inputs, strict=False)]
        by_name = {name: own(name, value) for name, value in keywords.items()}
        return (*by_place, *inputs[len(by_place) :]), by_name

    hook: Callable[..., Any] = cut
    module.register_forward_pre_hook(hook, with_kwargs=True)
