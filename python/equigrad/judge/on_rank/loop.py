"""The training loop that the adapters of this folder share: a case in, what was computed per step out."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import gc
import os
import re
import traceback
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from . import device, models, tensors
from .protocol import Absent, Answer, Case, Precision, Refused, StepAnswer, batch_key, tensor_key

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}
LOOP_OPTIONS = frozenset({"activation_checkpointing", "backwards", "engines", "module_id", "overflow", "record"})
"""Options that this loop does itself, for every engine."""
_REFUSALS = re.compile(
    r"not (yet |currently )?(been )?(support|implement|compatible)|unsupported|doesn't support|does not support",
    re.IGNORECASE,
)

Named = dict[str, torch.Tensor]


@dataclasses.dataclass
class Record:
    """What a forward gives with the option record: a class of the user's, which an engine need not know."""

    value: torch.Tensor


@dataclasses.dataclass(frozen=True)
class Place:
    """Which backward of a case this is."""

    step: int
    micro: int
    backward: int
    ends_micro_batch: bool
    ends_step: bool


@dataclasses.dataclass(frozen=True)
class Stepped:
    """What an engine says of a step; None for what it does not say."""

    applied: bool | None = None
    norm: float | None = None
    """Of the averaged, unscaled gradients before clipping."""
    lrs: tuple[float, ...] | None = None
    """By group, as used in this step."""
    loss_scale: float | None = None
    """As used in this step."""


class Engine(abc.ABC):
    """An engine under test, made for one case by Adapter.make()."""

    divides = False
    """Whether it divides by the accumulation itself; else this loop divides the loss (and a tensor's gradient)."""
    autocasts = False
    """Whether it runs the forward in autocast itself; else this loop does, where the case says so."""

    def __init__(self, module: Any) -> None:
        """module: what is called for a forward."""
        self.module = module
        self.device = device.here()

    @contextlib.contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Around the forward and backward of a place: no_sync, boundaries, an engine's step() that ends a micro-batch."""
        yield

    def scale(self, value: torch.Tensor) -> torch.Tensor:
        """A loss, or the gradient of an output, times the loss scale."""
        return value

    def backward(self, style: str, losses: models.Losses) -> None:
        """By one of STYLES. Override it where the engine has a backward of its own, or scales in hooks."""
        loss, output, gradient = losses
        if style == "tensor_backward":
            output.backward(self.scale(gradient))  # type: ignore[no-untyped-call]
        elif style == "loss_backward":
            loss.backward()  # type: ignore[no-untyped-call]
        else:
            self.scale(loss).backward()  # type: ignore[no-untyped-call]

    @abc.abstractmethod
    def gradients(self) -> Named:
        """After the last backward: averaged, unscaled, not clipped, whole. Called once per step."""

    @abc.abstractmethod
    def step(self) -> Stepped:
        """Clip, optimizer, schedule, loss scale; gradients are gone after it."""

    @abc.abstractmethod
    def values(self) -> tuple[Named, Named]:
        """Parameters that the next forward uses, whole, and masters, whole ({} where none are kept beside them)."""

    def save(self, folder: str) -> None:
        """The whole state of the training, into a folder that all ranks share."""
        raise Absent("this adapter saves no checkpoints")

    def load(self, folder: str) -> None:
        """What save() wrote."""
        raise Absent("this adapter loads no checkpoints")

    def close(self) -> None:
        """Lets go of what the next case must not meet."""


class Adapter(abc.ABC):
    """How one kind of engine is driven; one of it serves all cases of a rank."""

    name: str
    options: frozenset[str] = frozenset()
    """Of a case, beside LOOP_OPTIONS."""

    @abc.abstractmethod
    def version(self) -> str:
        """Of the engine. It imports the engine; an ImportError ends the process."""

    @abc.abstractmethod
    def start(self) -> None:
        """Makes what lives as long as the process: the process group."""

    @abc.abstractmethod
    def make(self, case: Case, module: nn.Module) -> Engine:
        """An engine around this plain fp32 module on the device, whose values are the case's weights."""

    def check(self, case: Case) -> None:
        """Raises Absent for a case that this engine has no feature for, before anything is made."""

    def notes(self, case: Case) -> tuple[str, ...]:
        """What a reader of this case's answer must know of how the engine was set up."""
        return ()

    def refuses(self, error: Exception) -> bool:
        """Whether this error of the engine's says that it does not support something."""
        return isinstance(error, NotImplementedError) or bool(_REFUSALS.search(str(error)))


def run_case(adapter: Adapter, case: Case, rank: int, folder: str) -> tuple[Answer, Named]:
    """Trains the case on this rank. Never raises for what an engine does: that is an answer too.

    folder: exists, is the same for all ranks of the case, and is this case's alone.
    """
    try:
        _check(adapter, case)
        steps, named = _train(adapter, case, rank, folder)
        return _signed(adapter, case, Answer(steps=steps)), named
    except Absent as error:
        return _signed(adapter, case, Answer(absent=str(error))), {}
    except Refused as error:
        return _signed(adapter, case, Answer(refused=str(error))), {}
    except Exception as error:  # noqa: BLE001  whatever an engine raises is what the case came to
        if adapter.refuses(error):
            return _signed(adapter, case, Answer(refused=f"{type(error).__name__}: {error}")), {}
        return _signed(adapter, case, Answer(failed=traceback.format_exc())), {}
    finally:
        gc.collect()


def plain_module(case: Case, offset: float = 0.0) -> models.Built:
    """The case's model in fp32, on the device, with its weights plus an offset (for a model that a checkpoint is loaded over)."""
    torch.manual_seed(0)
    built = models.build(case.model)
    load_weights(built.module, tensors.read(case.weights), offset)
    built.module.to(device.here())
    return built


def load_weights(module: nn.Module, weights: Named, offset: float = 0.0) -> None:
    """Copies values into parameters and buffers by name. Raises KeyError for a parameter that has none."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(weights[name] + offset)
        for name, buffer in module.named_buffers():
            if name in weights:
                buffer.copy_(weights[name])


def autocast(precision: Precision) -> contextlib.AbstractContextManager[Any]:
    """What the forward and the loss run in."""
    if not precision.autocast:
        return contextlib.nullcontext()
    return torch.autocast(device.here().type, DTYPES[precision.autocast])


def read_batches(case: Case, rank: int) -> Named:
    """All tensors of a rank's batches."""
    part = f".r{rank}."
    return tensors.read(case.batches, lambda name: part in name[: name.index(".m") + 1])


def batch_of(batches: Named, place: Place, rank: int, dtype: torch.dtype) -> Named:
    """The batch of a place, on the device: inputs of floating types in the model's, what the loss takes as it is."""
    prefix = batch_key(place.step, rank, place.micro, place.backward, "")
    batch = {name[len(prefix) :]: tensor.to(device.here()) for name, tensor in batches.items() if name.startswith(prefix)}
    return {
        key: tensor.to(dtype) if tensor.is_floating_point() and key not in models.OF_LOSS else tensor
        for key, tensor in batch.items()
    }


def places(case: Case, step: int) -> Iterator[Place]:
    """All backwards of a step, in their order."""
    count = int(case.options.get("backwards", 1))
    for micro in range(case.accumulation):
        for backward in range(count):
            ends = backward == count - 1
            yield Place(step, micro, backward, ends, ends and micro == case.accumulation - 1)


def overflows(case: Case, place: Place, rank: int) -> bool:
    """Whether the loss of this place is made infinite: of the first backward of the step and rank that the option names."""
    at = str(case.options.get("overflow", ""))
    return bool(at) and at == f"{place.step}:{rank}" and place.micro == 0 and place.backward == 0


def seed_of(place: Place, rank: int) -> int:
    """What torch's generator is seeded with before the forward of a place, for models that draw random numbers."""
    return ((place.step * 1000 + rank) * 1000 + place.micro) * 1000 + place.backward


def _signed(adapter: Adapter, case: Case, answer: Answer) -> Answer:
    version, notes = adapter.version(), (*device.notes(), *adapter.notes(case))
    return dataclasses.replace(answer, engine=adapter.name, version=version, torch=torch.__version__, notes=notes)


def _check(adapter: Adapter, case: Case) -> None:
    for option in case.options:
        if option not in LOOP_OPTIONS | adapter.options:
            raise Absent(f"the adapter of {adapter.name} does not know the option {option}")
    if case.options.get("engines", 1) != 1:
        several = {"groups": case.groups, "clip": case.clip, "a loss scale": case.precision.loss_scale}
        for what, given in several.items():
            if given:
                raise Absent(f"several engines under one loss are judged without {what}")
        if case.options["engines"] != 2 or case.model.name != "lattice-pair":
            raise Absent("several engines under one loss are judged as two, on lattice-pair")
    adapter.check(case)


class _Training:
    """The engines of a case (two with the option `engines`), as one."""

    def __init__(self, adapter: Adapter, case: Case) -> None:
        self._adapter = adapter
        self._case = case
        self.engines: dict[str, Engine] = {}
        self.built = self.make(0.0)

    def make(self, offset: float) -> models.Built:
        """New engines."""
        built = plain_module(self._case, offset)
        if self._case.options.get("activation_checkpointing") and not models.checkpoint_activations(built.module):
            raise Absent("this model has no activation checkpointing")
        _dress(built.module, self._case)
        if self._case.options.get("engines", 1) == 1:
            self.engines = {"": self._adapter.make(self._case, built.module)}
        else:
            self.engines = {f"{name}.": self._adapter.make(self._case, part) for name, part in built.module.named_children()}
        return built

    @property
    def first(self) -> Engine:
        return next(iter(self.engines.values()))

    def called(self) -> Any:
        """What the loss function calls."""
        if len(self.engines) == 1 and self._case.options.get("record"):
            return lambda *values, **inputs: self.first.module(*values, **inputs).value
        if len(self.engines) == 1:
            return self.first.module
        return lambda *values, **inputs: sum(engine.module(*values, **inputs) for engine in self.engines.values())

    def backward(self, place: Place, batch: Named, rank: int) -> float:
        """Forward and backward of one place; its loss."""
        case, first = self._case, self.first
        torch.manual_seed(seed_of(place, rank))
        with contextlib.ExitStack() as stack:
            for engine in self.engines.values():
                stack.enter_context(engine.at(place))
            with contextlib.nullcontext() if first.autocasts else autocast(case.precision):
                loss, output, gradient = self.built.loss(self.called(), batch, case.model.factor)
            if overflows(case, place, rank):
                loss, gradient = loss * float("inf"), gradient * float("inf")
            value = float(loss.detach())
            if case.accumulation > 1 and (not first.divides or case.options.get("scale_wrt_gas") is False):
                loss, gradient = loss / case.accumulation, gradient / case.accumulation
            first.backward(case.style, (loss, output, gradient))
        return value

    def finish_step(self, step: int, losses: list[float], named: Named) -> StepAnswer:
        """Gradients, the step, and the values after it."""
        for prefix, engine in self.engines.items():
            _keep(named, step, "gradient", prefix, engine.gradients())
        stepped = [engine.step() for engine in self.engines.values()]
        for prefix, engine in self.engines.items():
            parameters, masters = engine.values()
            _keep(named, step, "parameter", prefix, parameters)
            _keep(named, step, "master", prefix, masters)
        norm = stepped[0].norm if len(stepped) == 1 else None
        return StepAnswer(tuple(losses), stepped[0].applied, norm, stepped[0].lrs, stepped[0].loss_scale)

    def resume(self, folder: str) -> None:
        """Saves, throws away, and goes on in new engines that were made on other weights."""
        where = {prefix: os.path.join(folder, f"checkpoint-{prefix.rstrip('.')}") for prefix in self.engines}
        for prefix, engine in self.engines.items():
            os.makedirs(where[prefix], exist_ok=True)
            engine.save(where[prefix])
        self.close()
        self.built = self.make(1.0)
        for prefix, engine in self.engines.items():
            engine.load(where[prefix])

    def close(self) -> None:
        for engine in self.engines.values():
            engine.close()
        self.engines = {}
        gc.collect()


def _dress(module: nn.Module, case: Case) -> None:
    """What a model of a user's may do beside its arithmetic, which stays as it is."""
    if case.options.get("module_id"):
        module.id = 1  # type: ignore[assignment]
        module.register_forward_hook(lambda seen, inputs, output: output * seen.id)
    if case.options.get("record"):
        module.register_forward_hook(lambda seen, inputs, output: Record(output))


def _train(adapter: Adapter, case: Case, rank: int, folder: str) -> tuple[tuple[StepAnswer, ...], Named]:
    batches = read_batches(case, rank)
    dtype = DTYPES[case.precision.model]
    training = _Training(adapter, case)
    steps, named = [], Named()
    for step in range(case.steps):
        losses = []
        for place in places(case, step):
            batch = batch_of(batches, place, rank, dtype)
            losses.append(training.backward(place, batch, rank))
        steps.append(training.finish_step(step, losses, named))
        if case.options.get("save_after") == step:
            training.resume(folder)
    training.close()
    return tuple(steps), named


def _keep(named: Named, step: int, kind: str, prefix: str, got: Named) -> None:
    for name, tensor in got.items():
        wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
        named[tensor_key(step, kind, prefix + name)] = tensor.detach().to("cpu", wide, copy=True)
