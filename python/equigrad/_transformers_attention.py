"""Attention of Hugging Face's models over a split sequence, their code as it is.

`initialize` attaches a model where a sequence has several ranks: its attention is ATTENTION, which trades a part of the sequence
for some heads and calls the implementation that the model had; its masks are made for the whole sequence; its loss is the mean
over the whole sequence. A model that is not attached computes as without.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch

from equigrad import _core
from equigrad._sequence_parallel import IGNORED, cross_entropy

ATTENTION = "equigrad_ulysses"
_DEFAULT = "sdpa"  # where a model names ATTENTION itself

# Arguments of attention that have a value for each head.
_BY_HEAD = ("s_aux", "position_bias")


class Attached:
    """One model and its sequence group, until detach()."""

    def __init__(self, model: Any, group: _core.Communicator, replaces_loss: bool = True) -> None:
        register_with_transformers()
        _check(model)
        self.group = group
        self._model = model
        before = model.config._attn_implementation
        self.inner = _DEFAULT if before in (None, ATTENTION) else before
        model.set_attn_implementation(ATTENTION)
        if model.config._attn_implementation != ATTENTION:
            raise _refusal(model, "attention of transformers' interface", "attention that cannot be exchanged")
        self._calls = 0
        for module in model.modules():
            _attached[module] = self
        self._signature = inspect.signature(type(model).forward)
        self._hooks = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),
        ]
        self._loss = getattr(model, "_loss_function", None)
        self._replaces_loss = replaces_loss and hasattr(type(model), "loss_function")
        if self._replaces_loss:
            self._loss_type = model.loss_type
            model.loss_function = self.loss

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        for module in self._model.modules():
            _attached.pop(module, None)
        self._model.set_attn_implementation(self.inner)
        if self._replaces_loss:
            del self._model._loss_function
            if self._loss is not None:
                self._model.loss_function = self._loss

    def loss(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor | None = None,
        vocab_size: int | None = None,
        num_items_in_batch: Any = None,
        ignore_index: int = IGNORED,
        shift_labels: torch.Tensor | None = None,
        **_: Any,
    ) -> torch.Tensor:
        """In the place of transformers' ForCausalLMLoss: the mean over the tokens of all ranks' parts."""
        if self._loss_type != "ForCausalLM":
            raise _refusal(self._model, "the loss of a causal language model", f"the loss {self._loss_type}")
        if shift_labels is None:
            raise _core.Error(
                "[sequence_parallel] expected shift_labels, which were shifted before the sequence was cut, got labels alone: "
                "a part's last token would lose its target. Give what equigrad.parallel.split_batch makes of the batch."
            )
        targets = shift_labels.to(logits.device)
        if num_items_in_batch is None:
            return cross_entropy(logits, targets, self.group, ignore_index)
        rows = logits.float().reshape(-1, logits.shape[-1])
        total = torch.nn.functional.cross_entropy(rows, targets.reshape(-1), ignore_index=ignore_index, reduction="sum")
        mean: torch.Tensor = _core.reduce_from(total, self.group) / num_items_in_batch
        return mean

    # ---- While the model runs ------------------------------------------------------------------------------------

    def _begin(self, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = self._signature.bind_partial(model, *args, **kwargs).arguments
        bound.pop(next(iter(self._signature.parameters)))  # self
        given: dict[str, Any] = {}
        for name, value in bound.items():
            is_rest = self._signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            given.update(value if is_rest else {name: value})
        if given.get("cache") is not None or given.get("past_key_values") is not None:
            raise _refusal(model, "no cache of keys and values", "one. Generate from the model of one rank")
        tokens = given.get("input_ids")
        tokens = given["inputs_embeds"] if tokens is None else tokens
        running.held = _Running(self, tokens, given.get("position_ids"), given.get("attention_mask"))
        self._calls = 0
        given["position_ids"] = running.held.own_positions
        if running.held.padding is not None or given.get("attention_mask") is None:
            # Whole, so that nothing is concluded from a part; whole_mask() has the real one.
            given["attention_mask"] = tokens.new_ones((tokens.shape[0], running.held.length), dtype=torch.bool)
        if "use_cache" in self._signature.parameters:
            given["use_cache"] = False  # it would hold keys of some heads
        return (), given

    def _end(self, model: Any, *_: Any) -> None:
        running.held = None
        if self._calls == 0 and sys.exc_info()[0] is None:
            raise _refusal(model, "attention of transformers' interface", "a forward pass that called none")

    def attend(
        self,
        module: torch.nn.Module,
        query_key_value: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        mask: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[torch.Tensor, Any]:
        self._calls += 1
        by_head = [name for name in _BY_HEAD if kwargs.get(name) is not None]
        if by_head:
            raise _refusal(self._model, "attention without values of its own for each head", f"{by_head[0]}")
        some = _core.scatter_heads(*query_key_value, self.group, 1, 2)
        length = some[0].shape[2]
        if isinstance(mask, torch.Tensor) and mask.ndim == 4 and mask.shape[-1] != some[1].shape[2]:
            raise _refusal(
                self._model, f"a mask of the whole sequence of {length}", f"one of {list(mask.shape)}. Do not cut it"
            )
        if "flash" in self.inner and kwargs.get("position_ids") is not None:  # finds documents by them
            kwargs = {**kwargs, "position_ids": _core.gather_from(kwargs["position_ids"], -1, self.group)}
        groups = some[0].shape[1] // some[1].shape[1]
        seen = module if getattr(module, "num_key_value_groups", groups) == groups else _Seen(module, groups)
        output, weights = _implementation(self.inner, module)(seen, *some, mask, *args, **kwargs)
        return _core.gather_heads(output, some[0].transpose(1, 2), self.group, 2, 1), weights


class _Running:
    """What a forward pass has of the whole sequence."""

    def __init__(self, attached: Attached, tokens: torch.Tensor, positions: Any, mask: Any) -> None:
        self.attached = attached
        group = attached.group
        part = tokens.shape[1]
        self.length = part * group.world_size
        self.padding: torch.Tensor | None = None  # [batch, length], of the caller
        if isinstance(mask, torch.Tensor) and mask.ndim == 2:
            self.padding = _core.gather_from(mask, 1, group) if mask.shape[1] == part else mask
            if self.padding.shape[1] != self.length:
                raise _core.Error(
                    f"[sequence_parallel] expected an attention_mask of the whole sequence of {self.length}, or of this rank's "
                    f"part of {part}, got {list(mask.shape)}. Give what equigrad.parallel.split_batch makes of the batch."
                )
        if positions is None:
            first = group.rank * part
            self.own_positions = torch.arange(first, first + part, device=tokens.device).unsqueeze(0)
            self.positions = torch.arange(self.length, device=tokens.device).unsqueeze(0)
        else:
            self.own_positions = positions
            self.positions = _core.gather_from(positions, -1, group)


class _Seen:
    """A module of attention as the local implementation sees it: fewer query heads for each key/value head."""

    def __init__(self, module: torch.nn.Module, groups: int) -> None:
        self._module = module
        self.num_key_value_groups = groups

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


_attached: WeakKeyDictionary[torch.nn.Module, Attached] = WeakKeyDictionary()


class _PerThread(threading.local):
    held: _Running | None = None


running = _PerThread()


def attach(model: torch.nn.Module, group: _core.Communicator | None, replaces_loss: bool = True) -> list[Attached]:
    """Every model of transformers in `model`, but for those within another one."""
    if group is None or "transformers" not in sys.modules:
        return []
    pretrained = _of_transformers("modeling_utils").PreTrainedModel
    found: list[Attached] = []
    outer: set[str] = set()
    for name, module in model.named_modules():
        if isinstance(module, pretrained) and not any(name.startswith(f"{one}.") or one == "" for one in outer):
            outer.add(name)
            found.append(Attached(module, group, replaces_loss))
    return found


def register_with_transformers() -> None:
    """ATTENTION as an attention implementation: `attn_implementation="equigrad_ulysses"`. initialize() does it by itself."""
    _of_transformers("modeling_utils").AttentionInterface.register(ATTENTION, attention)
    _of_transformers("masking_utils").AttentionMaskInterface.register(ATTENTION, whole_mask)


def _of_transformers(module: str) -> Any:
    """Which is no dependency of this package."""
    return importlib.import_module(f"transformers.{module}")


def attention(
    module: torch.nn.Module, query: Any, key: Any, value: Any, attention_mask: Any, *args: Any, **kwargs: Any
) -> tuple[torch.Tensor, Any]:
    attached = _attached.get(module)
    if attached is None:
        as_without: tuple[torch.Tensor, Any] = _implementation(_DEFAULT, module)(
            module, query, key, value, attention_mask, *args, **kwargs
        )
        return as_without
    return attached.attend(module, (query, key, value), attention_mask, args, kwargs)


def whole_mask(**given: Any) -> Any:
    """The mask of the model's own implementation, of the whole sequence."""
    masking_utils = _of_transformers("masking_utils")
    held = running.held
    if held is None:
        return masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[_DEFAULT](**given)
    inner = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[held.attached.inner]
    given |= {"q_length": held.length, "kv_length": held.length, "q_offset": 0, "kv_offset": 0}
    given["attention_mask"] = None if held.padding is None else held.padding.to(given["device"], torch.bool)
    if held.padding is None:  # as transformers does it: documents where positions begin anew
        batch_size = given["batch_size"]
        packed = masking_utils.find_packed_sequence_indices(held.positions.expand(batch_size, -1))
        if packed is not None:
            given["mask_function"] = masking_utils.and_masks(
                given["mask_function"], masking_utils.packed_sequence_mask_function(packed)
            )
            given["allow_is_causal_skip"] = False
    return inner(**given)


def _implementation(name: str, module: torch.nn.Module) -> Callable[..., Any]:
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if name == "eager" and eager is None:
        raise _core.Error(
            f'[sequence_parallel] expected the attention "eager" beside {type(module).__name__}, got none. Load the model '
            'with attn_implementation="sdpa".'
        )
    found: Callable[..., Any] = _of_transformers("modeling_utils").ALL_ATTENTION_FUNCTIONS.get_interface(name, eager)
    return found


def _refusal(model: Any, expected: str, got: str) -> _core.Error:
    return _core.Error(
        f"[sequence_parallel] expected {expected}, got {got}, of {type(model).__name__}. Where it is otherwise, call "
        "equigrad.parallel.DistributedAttention in the model, or leave out sequence_parallel_size."
    )


def _check(model: Any) -> None:
    config = model.config
    if config.get_text_config() is not config:
        raise _refusal(model, "a model of text alone", "one of several, whose parts are not all sequences that are split")
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(model, "a model of one sequence", "an encoder and a decoder")
    other = sorted(set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"})
    if other:
        raise _refusal(model, "layers of full or sliding attention", f"layers of {other[0]}")
