"""Models to judge with: plain modules and their loss. docs/judge-protocol.md defines the lattice ones for other languages.

Every operation of a lattice model (linear, embedding, convolution, relu6, sums) is exact while its numbers are small integers,
forward and backward, in any order of additions. Its loss is sum(output * gradient) * factor, where `gradient` comes with the batch.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from . import users_model
from .protocol import Model, ProtocolError

Batch = Mapping[str, torch.Tensor]
Losses = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
LossFunction = Callable[[Any, Batch, int], Losses]
"""From (module or engine, batch, factor) to (loss, output, gradient of output): loss.backward() and output.backward(gradient)
give the same gradients."""

OF_LOSS = ("gradient", "target")
"""Tensors of a batch that the loss takes; the model's forward takes the others, by keyword."""


@dataclass(frozen=True)
class Input:
    """A tensor of a batch."""

    key: str
    shape: tuple[int, ...]
    kind: str
    """"integers" (floating type, -high ... high), "reals", "tokens" (int64, 0 ... high - 1), "flag" (int64 of shape (), 0 or 1),
    "gradient" (as "integers", of the output)."""
    high: int = 0


@dataclass(frozen=True)
class Description:
    """What a built-in model takes and has."""

    inputs: tuple[Input, ...]
    lattice: bool
    unused: tuple[str, ...] = ()
    """Parameters that no forward uses."""
    conditional: tuple[str, ...] = ()
    """Parameters that a forward uses where the batch's flag is 1."""
    tied: tuple[str, ...] = ()
    """Parameters that a forward uses more than once."""
    frozen: tuple[str, ...] = ()
    """Parameters that take no gradient."""


@dataclass(frozen=True)
class Built:
    """A module and its loss."""

    module: nn.Module
    loss: LossFunction


class _Checkpointed(nn.Module):
    """A model whose blocks may be computed again in backward."""

    checkpointing = False

    def _block(self, block: Callable[[torch.Tensor], torch.Tensor], value: torch.Tensor) -> torch.Tensor:
        if self.checkpointing:
            again: torch.Tensor = checkpoint(block, value, use_reentrant=False)
            return again
        return block(value)


class LatticeMlp(_Checkpointed):
    """5 -> 7 -> 7 -> 7 (tied) -> wide -> 3, times a gain of shape (1,). With `fork`, `other` is used where `branch` is not."""

    def __init__(
        self,
        wide: int = 131,
        unused: bool = True,
        frozen: bool = False,
        branch: bool = False,
        gain: bool = True,
        fork: bool = False,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 7, bias=False)
        self.third = nn.Linear(7, 7, bias=False)
        self.third.weight = self.second.weight
        self.branch = nn.Linear(7, 7) if branch or fork else None
        self.other = nn.Linear(7, 7) if fork else None
        self.wide = nn.Linear(7, wide)
        self.last = nn.Linear(wide, 3)
        self.gain = nn.Parameter(torch.ones(1)) if gain else None
        self.unused = nn.Linear(3, 5) if unused else None
        self.second.weight.requires_grad_(not frozen)

    def forward(self, input: torch.Tensor, use: torch.Tensor | None = None) -> torch.Tensor:
        value = functional.relu6(self.first(input))
        value = self._block(lambda here: functional.relu6(self.third(functional.relu6(self.second(here)))), value)
        if self.branch is not None and use is not None and bool(use):
            value = value + self.branch(value)
        elif self.other is not None:
            value = value + self.other(value)
        value = self._block(lambda here: functional.relu6(self.wide(here)), value)
        output: torch.Tensor = self.last(value)
        return output if self.gain is None else output * self.gain


class LatticeEmbedding(_Checkpointed):
    """An embedding of 11 tokens x 5, a linear layer, and a head that is the embedding's weight again."""

    def __init__(self, tied: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.middle = nn.Linear(5, 5)
        self.head = nn.Linear(5, 11, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self._block(lambda here: functional.relu6(self.middle(here)), self.embedding(tokens))
        output: torch.Tensor = self.head(value)
        return output


class LatticeConvolution(_Checkpointed):
    """Two convolutions, and a linear layer over all that they give."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 2, 1)
        self.last = nn.Linear(2 * 5 * 4, 3)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        value = functional.relu6(self.first(input))
        value = self._block(lambda here: functional.relu6(self.second(here)), value)
        output: torch.Tensor = self.last(value.flatten(1))
        return output


class LatticePair(nn.Module):
    """Two models under one loss: the sum of their outputs. With the option `engines` each is an engine of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = LatticeMlp()
        self.second = LatticeMlp(wide=37, unused=False)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.first(input) + self.second(input)
        return output


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.mixed = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.after = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        rows, length, width = value.shape
        parts = self.mixed(self.before(value)).view(rows, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = parts[0] @ parts[1].transpose(-1, -2) / (width // self.heads) ** 0.5
        future = torch.ones(length, length, dtype=torch.bool, device=value.device).triu(1)
        mixed = scores.masked_fill(future, float("-inf")).softmax(-1).to(parts.dtype) @ parts[2]
        value = value + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        result: torch.Tensor = value + self.down(functional.gelu(self.up(self.after(value))))
        return result


class Gpt(_Checkpointed):
    """A small GPT with a tied head; no lattice: its numbers are rounded as in any model."""

    def __init__(self, vocabulary: int = 31, width: int = 12, heads: int = 2, layers: int = 2, length: int = 7) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_Attention(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        value = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            value = self._block(block, value)
        output: torch.Tensor = self.head(self.norm(value))
        return output


BUILT_IN: dict[str, type[nn.Module]] = {
    "lattice-mlp": LatticeMlp,
    "lattice-embedding": LatticeEmbedding,
    "lattice-convolution": LatticeConvolution,
    "lattice-pair": LatticePair,
    "gpt": Gpt,
}
_ROWS = 3


def describe(name: str, arguments: Mapping[str, Any]) -> Description:
    """What a built-in model takes. Raises ProtocolError for another name."""
    if name in ("lattice-mlp", "lattice-pair"):
        pair = name == "lattice-pair"
        branch, frozen = bool(arguments.get("branch", False)), bool(arguments.get("frozen", False))
        fork = bool(arguments.get("fork", False))
        flag = (Input("use", (), "flag"),) if branch or fork else ()
        sometimes = (["branch"] if branch or fork else []) + (["other"] if fork else [])
        parts = ["first.", "second."] if pair else [""]
        second = tuple(f"{part}second.weight" for part in parts)
        return Description(
            inputs=(Input("input", (_ROWS, 5), "integers", 2), *flag, Input("gradient", (_ROWS, 3), "gradient", 1)),
            lattice=True,
            unused=(f"{parts[0]}unused.weight", f"{parts[0]}unused.bias") if arguments.get("unused", True) else (),
            conditional=tuple(f"{name}.{part}" for name in sometimes for part in ("weight", "bias")),
            tied=second,
            frozen=second if frozen else (),
        )
    if name == "lattice-embedding":
        inputs = (Input("tokens", (_ROWS, 4), "tokens", 11), Input("gradient", (_ROWS, 4, 11), "gradient", 1))
        return Description(inputs, lattice=True, tied=("embedding.weight",) if arguments.get("tied", True) else ())
    if name == "lattice-convolution":
        inputs = (Input("input", (_ROWS, 2, 5, 4), "integers", 2), Input("gradient", (_ROWS, 3), "gradient", 1))
        return Description(inputs, lattice=True)
    if name == "gpt":
        high, shape = int(arguments.get("vocabulary", 31)), (_ROWS, int(arguments.get("length", 7)))
        inputs = (Input("tokens", shape, "tokens", high), Input("target", shape, "tokens", high))
        return Description(inputs, lattice=False, tied=("tokens.weight",))
    raise ProtocolError(f"[judge] expected a built-in model of {sorted(BUILT_IN)}, got {name!r}. Choose one of them.")


def build(model: Model) -> Built:
    """The model and its loss, in fp32, initialised by torch's generator. Raises ProtocolError where it cannot be made."""
    if model.name in BUILT_IN:
        try:
            return Built(BUILT_IN[model.name](**model.arguments), loss)
        except TypeError as error:
            raise ProtocolError(
                f"[judge] expected arguments of {model.name}, got {model.arguments}: {error}. Correct them."
            ) from error
    if model.name.startswith(users_model.PREFIX):
        return Built(users_model.make(model.name, int(model.arguments["seed"])), _users_loss(users_model.loss_of(model)))
    made = _factory(model.name)(**model.arguments)
    if isinstance(made, tuple) and len(made) == 2:
        return Built(made[0], _users_loss(made[1]))
    return Built(made, _users_loss(_called))


def make(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """build()'s module."""
    return build(Model(name, dict(arguments))).module


def checkpoint_activations(module: nn.Module) -> bool:
    """Lets the model compute its blocks again in backward; False where it has no way to."""
    changed = False
    for one in module.modules():
        if isinstance(one, _Checkpointed):
            one.checkpointing = changed = True
    ask = getattr(module, "gradient_checkpointing_enable", None)  # of Hugging Face's models
    if not changed and callable(ask):
        ask()
        changed = True
    return changed


def loss(module: Any, batch: Batch, factor: int = 1) -> Losses:
    """A built-in model's loss: in fp32 (fp64 where the output is), whatever the model's type."""
    output = module(**{key: value for key, value in batch.items() if key not in OF_LOSS})
    if "gradient" in batch:
        return _weighted(output, batch["gradient"], factor)
    gradient = torch.zeros_like(output)
    with torch.enable_grad():
        leaf = output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(_cross_entropy(leaf, batch["target"]) * factor, leaf)
    return _cross_entropy(output, batch["target"]) * factor, output, gradient


def _weighted(output: torch.Tensor, gradient: torch.Tensor, factor: int) -> Losses:
    wide = _widened(output)
    return (wide * gradient.to(wide.dtype)).sum() * factor, output, (gradient.to(wide.dtype) * factor).to(output.dtype)


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(_widened(output).flatten(0, -2), target.flatten())


def _widened(output: torch.Tensor) -> torch.Tensor:
    return output if output.dtype == torch.float64 else output.float()


def _factory(name: str) -> Callable[..., Any]:
    where, _, what = name.partition(":")
    if not what:
        raise ProtocolError(
            f"[judge] expected a model of {sorted(BUILT_IN)} or package.module:factory, got {name!r}. Correct the name."
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    factory: Callable[..., Any] = getattr(importlib.import_module(where), what)
    return factory


def _called(module: Any, batch: Batch) -> Any:
    """What a model without a loss function gives: its loss, its output's `loss`, or the first of a tuple."""
    outcome = module(**batch)
    if isinstance(outcome, Mapping) and "loss" in outcome:
        return outcome["loss"]
    if hasattr(outcome, "loss"):
        return outcome.loss
    return outcome[0] if isinstance(outcome, (tuple, list)) else outcome


def _users_loss(function: Callable[[Any, Batch], Any]) -> LossFunction:
    def loss_of_user(module: Any, batch: Batch, factor: int = 1) -> Losses:
        outcome = function(module, batch)
        if isinstance(outcome, tuple):
            return _weighted(outcome[0], outcome[1], factor)
        if not isinstance(outcome, torch.Tensor) or outcome.numel() != 1:
            raise ProtocolError(
                f"[judge] expected a loss, or (output, gradient), from the model, got {type(outcome).__name__}. Give a factory that "
                "returns (module, function), where function(module, batch) gives one of them."
            )
        return outcome * factor, outcome, torch.full_like(outcome, factor)

    return loss_of_user
