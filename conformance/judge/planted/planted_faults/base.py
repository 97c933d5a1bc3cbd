"""What all faults share: patches that can be taken back, and a watch over steps, micro-batches, engines and what was changed."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


class Watch:
    """Where a rank is: which case, step and micro-batch; and how often the fault changed numbers in this case."""

    def __init__(self, make: Callable[[Watch, str], Fault], name: str) -> None:
        """make: a fault of this watch, by its name; name: of one, or @PATH of a file that names one for each case."""
        self._make = make
        self._source = name[1:] if name.startswith("@") else ""
        self._name = "" if self._source else name
        self.case: Any = None
        self.steps: dict[int, int] = {}
        self.backwards = 0
        self.from_output = False
        """Whether the backward at hand is that of an output, with its gradient."""
        self.fired = 0
        self.optimizers: list[torch.optim.Optimizer] = []
        self.fault = make(self, self._name)
        self.fault.apply()

    @property
    def rank(self) -> int:
        return distributed.get_rank() if distributed.is_initialized() else 0

    @property
    def world(self) -> int:
        return distributed.get_world_size() if distributed.is_initialized() else 1

    @property
    def step(self) -> int:
        """From 0; a step ends when its gradients are zeroed."""
        return max(self.steps.values(), default=0)

    @property
    def micro(self) -> int:
        """The micro-batch at hand, from 0."""
        return self.backwards // self.option("backwards", 1)

    @property
    def micros(self) -> int:
        """Micro-batches of a step."""
        return int(self.case.accumulation) if self.case is not None else 1

    @property
    def is_last(self) -> bool:
        """Whether the backward at hand is the last one of its step."""
        return self.backwards == self.micros * self.option("backwards", 1) - 1

    def option(self, name: str, default: Any) -> Any:
        return default if self.case is None else self.case.options.get(name, default)

    def install(self) -> None:
        """Patches that only look, and stay."""
        backward, zero_grad = torch.autograd.backward, torch.optim.Optimizer.zero_grad
        init = torch.optim.Optimizer.__init__

        @functools.wraps(backward)
        def watched_backward(tensors: Any, grad_tensors: Any = None, *rest: Any, **named: Any) -> None:
            self.from_output = grad_tensors is not None
            self.fault.before_backward()
            backward(tensors, grad_tensors, *rest, **named)
            self.fault.after_backward()
            self.backwards += 1

        @functools.wraps(zero_grad)
        def watched_zero_grad(optimizer: Any, *rest: Any, **named: Any) -> None:
            self.fault.zero_grad(optimizer, functools.partial(zero_grad, optimizer, *rest, **named), *rest, **named)
            self.steps[id(optimizer)] = self.steps.get(id(optimizer), 0) + 1
            self.backwards = 0

        @functools.wraps(init)
        def watched_init(optimizer: Any, *rest: Any, **named: Any) -> None:
            init(optimizer, *rest, **named)
            self.optimizers.append(optimizer)
            self.steps[id(optimizer)] = self.step  # an engine that resumes begins where the other one was
            self.fault.optimizer_made(optimizer)

        torch.autograd.backward = watched_backward
        torch.optim.Optimizer.zero_grad = watched_zero_grad  # type: ignore[method-assign]
        torch.optim.Optimizer.__init__ = watched_init  # type: ignore[method-assign]
        sys.meta_path.insert(0, _CasesSeen(self))

    def begin(self, case: Any) -> None:
        """A new case."""
        self.case, self.steps, self.backwards, self.fired = case, {}, 0, 0
        self.optimizers = []
        if self._source:
            with open(self._source, encoding="utf-8") as file:
                self._switch(file.read().strip())
        self.fault.case_begins()

    def _switch(self, name: str) -> None:
        """Takes one fault out and plants another."""
        if name != self._name:
            self.fault.remove()
            self._name, self.fault = name, self._make(self, name)
            self.fault.apply()

    def end(self) -> None:
        """Writes down how often the fault changed numbers in the case, where EQUIGRAD_PLANTED_LOG says so."""
        folder = os.environ.get("EQUIGRAD_PLANTED_LOG")
        if folder and self.case is not None:
            with open(os.path.join(folder, f"rank{self.rank}.jsonl"), "a", encoding="utf-8") as file:
                file.write(json.dumps({"case": self.case.id, "fired": self.fired}) + "\n")
        self.case = None


class _CasesSeen(importlib.abc.MetaPathFinder):
    """Tells the watch when a case begins and ends: wraps on_rank.loop.run_case as it is imported."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != "on_rank.loop":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.loader is not None
        execute = spec.loader.exec_module

        def executed(module: Any) -> None:
            execute(module)
            run_case = module.run_case

            def watched(adapter: Any, case: Any, *rest: Any) -> Any:
                self._watch.begin(case)
                try:
                    return run_case(adapter, case, *rest)
                finally:
                    self._watch.end()

            module.run_case = watched

        spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec


class Fault:
    """Something wrong that an engine does. apply() plants it into this process, remove() takes it out again."""

    name = ""
    what = ""
    """In words, for the table."""
    kinds: tuple[str, ...] = ()
    """Causes that are right (equigrad.judge.causes); () for a control, which must stay green."""
    subtle = False

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self._before: list[tuple[Any, str, Any]] = []

    @classmethod
    def engine(cls) -> str:
        """ "ddp" or "fsdp2"."""
        return cls.name.split("-")[0]

    def apply(self) -> None:
        """Makes the patches."""

    def remove(self) -> None:
        """Takes them back."""
        for owner, attribute, value in reversed(self._before):
            setattr(owner, attribute, value)
        self._before.clear()

    def patch(self, owner: Any, attribute: str, made: Callable[[Any], Any]) -> None:
        """Replaces owner.attribute by made(what it was), in adapters that have imported it by its name too."""
        was = getattr(owner, attribute)
        instead = made(was)
        adapters = [one for name, one in sys.modules.items() if name.startswith("on_rank.")]
        for holder in [owner, *(one for one in adapters if vars(one).get(attribute) is was)]:
            self._before.append((holder, attribute, was))
            setattr(holder, attribute, instead)

    def fire(self, changed: bool = True) -> None:
        """Notes that numbers were changed."""
        self.watch.fired += bool(changed)

    def case_begins(self) -> None:
        """Forgets what was kept of the case before."""

    def before_backward(self) -> None:
        """Before each backward."""

    def after_backward(self) -> None:
        """After each backward."""

    def zero_grad(self, optimizer: torch.optim.Optimizer, run: Callable[[], None], *rest: Any, **named: Any) -> None:
        """Instead of optimizer.zero_grad(); run() is the real one."""
        run()

    def optimizer_made(self, optimizer: torch.optim.Optimizer) -> None:
        """After an optimizer was made."""


class Bucket:
    """A bucket of DDP's, as a communication hook sees it."""

    def __init__(self, engine: DistributedDataParallel, number: int, given: Any) -> None:
        self.engine = engine
        self.engine_number = number
        self.given = given
        self.parameters: Sequence[torch.Tensor] = given.parameters()
        self.index: int = given.index()
        self.is_last: bool = given.is_last()

    def slices(self) -> list[tuple[torch.Tensor, slice]]:
        """Each parameter, and where its gradient lies in the buffer."""
        buffer, found = self.given.buffer(), []
        for parameter, gradient in zip(self.parameters, self.given.gradients()):
            begin = gradient.storage_offset() - buffer.storage_offset()
            found.append((parameter, slice(begin, begin + gradient.numel())))
        return found


class BucketFault(Fault):
    """Of DDP's reducer: something other than the average comes back for a bucket."""

    def apply(self) -> None:
        self._engines: dict[int, int] = {}
        register = DistributedDataParallel.register_comm_hook
        self.patch(DistributedDataParallel, "register_comm_hook", self._registering)

        def forwarding(forward: Any) -> Any:
            def forward_with_hook(engine: Any, *rest: Any, **named: Any) -> Any:
                if not getattr(engine, "_planted", False):
                    engine._planted = True
                    register(engine, engine, self._hook(_average))
                return forward(engine, *rest, **named)

            return forward_with_hook

        self.patch(DistributedDataParallel, "forward", forwarding)

    def case_begins(self) -> None:
        self._engines = {}

    def _registering(self, register: Any) -> Any:
        def registered(engine: Any, state: Any, hook: Any) -> None:
            engine._planted = True
            register(engine, engine, self._hook(lambda _, bucket: hook(state, bucket)))

        return registered

    def _hook(self, right: Callable[[Any, Any], Any]) -> Any:
        def hook(engine: Any, bucket: Any) -> Any:
            number = self._engines.setdefault(id(engine), len(self._engines))
            seen, local = Bucket(engine, number, bucket), bucket.buffer().clone()
            average = _first(right(engine, bucket).wait()).clone()
            return self.future(seen, local, average)

        hook.__annotations__ = {"bucket": distributed.GradBucket, "return": torch.futures.Future[torch.Tensor]}
        return hook

    def future(self, bucket: Bucket, local: torch.Tensor, average: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
        """What the hook gives back."""
        wrong = self.wrong(bucket, local, average.clone()) if self.watch.world > 1 else average
        self.fire(not torch.equal(wrong, average))
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(wrong)
        return done

    def wrong(self, bucket: Bucket, local: torch.Tensor, average: torch.Tensor) -> torch.Tensor:
        """Instead of the average. local: this rank's part, which may be changed, as the average may."""
        raise NotImplementedError


def _first(value: Any) -> torch.Tensor:
    tensor: torch.Tensor = value[0] if isinstance(value, (list, tuple)) else value
    return tensor


def _average(engine: Any, bucket: Any) -> Any:
    buffer = bucket.buffer().div_(distributed.get_world_size())
    return distributed.all_reduce(buffer, async_op=True).get_future()


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """The sum over the ranks, in the tensor's own type."""
    total = tensor.clone()
    distributed.all_reduce(total)
    return total


def gathered(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Every rank's."""
    parts = [torch.empty_like(tensor) for _ in range(distributed.get_world_size())]
    distributed.all_gather(parts, tensor.contiguous())
    return parts


def tied(module: torch.nn.Module) -> set[int]:
    """The parameters that have more than one name, by id."""
    seen: set[int] = set()
    twice: set[int] = set()
    for _, parameter in module.named_parameters(remove_duplicate=False):
        twice |= {id(parameter)} & seen
        seen.add(id(parameter))
    return twice
