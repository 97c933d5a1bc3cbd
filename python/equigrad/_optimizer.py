"""What stands where DeepSpeed's users expect an optimizer: the engine updates, with the values of its param_groups."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NoReturn

import torch

from equigrad import _core
from equigrad.utils import z3_leaf_module

_OF_ADAM = ("lr", "betas", "eps", "weight_decay")
_OF_SGD = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
# What optimizers of torch take: a value that the configured one has not is refused, and every other key is the caller's.
_OF_ANY = {*_OF_ADAM, *_OF_SGD, "alpha", "amsgrad", "centered", "lr_decay", "maximize", "momentum_decay", "rho"}


def _values(given: _core.HyperParameters) -> dict[str, Any]:
    return {key: getattr(given, key) for key in (_OF_SGD if given.is_sgd else _OF_ADAM)}


class LossScaler:
    """What `optimizer.loss_scaler` and `loss_scale_config` show, as DeepSpeed's do. Nothing may be assigned."""

    scale_factor = 2.0

    def __init__(self, core: _core.Engine) -> None:
        self._core = core

    @property
    def cur_scale(self) -> float:
        """What a loss is multiplied by now; 1 where the precision needs no loss scale."""
        return self._core.loss_scale()

    loss_scale = cur_scale

    @property
    def cur_iter(self) -> int:
        """Boundaries so far, skipped ones included."""
        return self._core.counters().global_steps

    @property
    def scale_window(self) -> int:
        return self._core.config.loss_scale_window

    @property
    def min_scale(self) -> float:
        return self._core.config.min_loss_scale

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._core.config.dynamic_loss_scale

    dynamic = dynamic_loss_scale


def _plain(value: Any) -> Any:
    """Numbers, and tuples of them: a scheduler may leave tensors and lists."""
    if isinstance(value, (list, tuple)):
        return tuple(float(one) for one in value)
    return value if isinstance(value, bool) else float(value)


class Optimizer(torch.optim.Optimizer):
    """`engine.optimizer`: a torch.optim.Optimizer for schedulers and for reading; engine.step() takes its steps.

    param_groups may be assigned to: "lr" and what else the optimizer takes hold from the next update on. With an optimizer of the
    caller's they are its own, and so is `state`. Assign the same on every rank.
    """

    _states: defaultdict[torch.Tensor, Any]

    def __init__(
        self,
        core: _core.Engine,
        groups: list[dict[str, Any]],
        model: torch.nn.Module,
        client: torch.optim.Optimizer | None = None,
    ) -> None:
        self._core: _core.Engine | None = core
        self._client = client
        self._groups: list[dict[str, Any]] = []
        leaves = [module for module in model.modules() if z3_leaf_module(module)]
        self.leaf_parameters: dict[torch.nn.Module, list[torch.nn.Parameter]] = {leaf: list(leaf.parameters()) for leaf in leaves}
        given = core.hyper_parameters()
        if client is None:
            self._groups = [{**values, **_values(now)} for values, now in zip(groups, given, strict=True)]
        defaults = client.defaults if client is not None else _values(given[0])
        self.__setstate__({"defaults": dict(defaults), "_states": defaultdict(dict)})

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]  # torch's is an attribute
        return self._groups if self._client is None else self._client.param_groups

    @property
    def state(self) -> defaultdict[torch.Tensor, Any]:  # type: ignore[override]
        return self._states if self._client is None else self._client.state

    @property
    def client(self) -> torch.optim.Optimizer | None:
        """The caller's, if initialize() was given one."""
        return self._client

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The caller's, where DeepSpeed's optimizers have the one that they wrap; AttributeError for the configured one."""
        if self._client is None:
            raise AttributeError(
                "[optimizer.optimizer] expected an optimizer of the caller's, got the configured one, which is no torch.optim.Optimizer. "
                "engine.save_checkpoint() keeps its states, and utils.safe_get_full_optimizer_state() reads them."
            )
        return self._client

    @property
    def loss_scale(self) -> float:
        """What engine.scale() multiplies by now; 1 where the precision needs no loss scale."""
        return self._living("loss_scale").loss_scale()

    cur_scale = loss_scale

    @property
    def loss_scaler(self) -> LossScaler:
        return LossScaler(self._living("loss_scaler"))

    loss_scale_config = loss_scaler

    @property
    def dynamic_loss_scale(self) -> bool:
        return self._living("dynamic_loss_scale").config.dynamic_loss_scale

    def needs_scaler(self) -> bool:
        """Whether a loss must go through engine.scale() or engine.backward()."""
        return self._living("needs_scaler").config.scales_loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Empties the accumulation window."""
        self._living("zero_grad").zero_grad()

    def step(self, closure: Any = None) -> NoReturn:
        raise _core.Error(
            "[optimizer.step] expected engine.step(), which reduces, clips and updates, got optimizer.step(). Call "
            "engine.step() once per micro-batch."
        )

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        """As engine.backward(loss), without the division by the accumulation steps in what it returns."""
        self._living("backward").backward(loss, retain_graph, True)

    def state_dict(self) -> dict[str, Any]:
        """Of an optimizer of the caller's: its own, of this rank's slices."""
        return self._clients("state_dict").state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What state_dict() gave on this rank, with as many ranks and the same stage."""
        self._clients("load_state_dict").load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        raise _core.Error(
            "[optimizer.add_param_group] expected the groups that initialize() was given, got another. Give all of them to "
            "initialize(), as model_parameters or in the optimizer."
        )

    def push(self) -> None:
        """Before an update: the engine takes what was assigned. Collective where something was."""
        core = self._living("step")
        if self._client is not None:
            return
        now = core.hyper_parameters()
        wanted = core.hyper_parameters()
        for group, values in zip(self._groups, wanted, strict=True):
            keys = _OF_SGD if values.is_sgd else _OF_ADAM
            foreign = sorted((_OF_ANY & set(group)) - set(keys))
            if foreign:
                raise _core.Error(
                    f'[optimizer.param_groups] expected {", ".join(keys)}, which the configured optimizer takes, got "{foreign[0]}". '
                    "Drop it, or give initialize() an optimizer that has it."
                )
            for key in keys:
                if key in group:
                    setattr(values, key, _plain(group[key]) if key != "nesterov" else bool(group[key]))
        if [_values(one) for one in now] != [_values(one) for one in wanted]:
            core.set_hyper_parameters(wanted)

    def pull(self) -> None:
        """After an update: what a configured scheduler has set is shown."""
        self._opt_called = True  # what schedulers of torch look for before they step
        if self._client is None:
            for group, now in zip(self._groups, self._living("step").hyper_parameters(), strict=True):
                group.update(_values(now))

    def restore(self, saved: list[dict[str, Any]] | None) -> None:
        """After a load, which has set what the engine holds: the groups' values as they were saved, if Python saved them."""
        if self._client is None:
            for group, now in zip(self._groups, self._living("load_checkpoint").hyper_parameters(), strict=True):
                group.update(_values(now))
        for group, values in zip(self.param_groups, saved or []):
            for key, value in values.items():
                if torch.is_tensor(value) and torch.is_tensor(group.get(key)):
                    group[key].copy_(value)
                else:
                    group[key] = value

    def destroy(self) -> None:
        self._core = None
        self._client = None
        self._groups = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r})" if self._client is not None else super().__repr__()

    def _clients(self, where: str) -> torch.optim.Optimizer:
        self._living(where)
        if self._client is None:
            raise _core.Error(
                f"[optimizer.{where}] expected an optimizer of the caller's, got the configured one. engine.save_checkpoint() keeps "
                "its states, and utils.safe_get_full_optimizer_state() reads them."
            )
        return self._client

    def _living(self, where: str) -> _core.Engine:
        if self._core is None:
            raise _core.Error(f"[optimizer.{where}] expected an engine, got one that was destroyed. Make a new one.")
        return self._core


class Scheduler:
    """The scheduler that the configuration names, as `engine.lr_scheduler`: engine.step() takes its steps."""

    def __init__(self, core: _core.Engine) -> None:
        self._core = core

    def get_lr(self) -> list[float]:
        """Of the next update, by parameter group."""
        return self._core.get_lr()

    get_last_lr = get_lr

    def get_mom(self) -> list[Any]:
        """Of the next update, by parameter group: Adam's betas, or SGD's momentum."""
        return [one.momentum if one.is_sgd else one.betas for one in self._core.hyper_parameters()]

    def step(self, *_: Any) -> NoReturn:
        raise _core.Error(
            "[lr_scheduler.step] expected engine.step(), which steps the configured scheduler after an update, got "
            "lr_scheduler.step(). Leave the call out."
        )
