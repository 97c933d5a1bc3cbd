"""Optimizers for tests: torch's own and some of a user's, and what they give on whole parameters."""

from __future__ import annotations

from collections.abc import Callable

import torch

import models
import twin

LARGE = ("embedding", "first")  # the modules of the first group


class Signs(torch.optim.Optimizer):
    """A user's own: steps by the sign of a mean of gradients, element by element."""

    def __init__(self, params, lr=0.01, decay=0.5):
        super().__init__(params, {"lr": lr, "decay": decay})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                mean.mul_(group["decay"]).add_(p.grad)
                p.sub_(mean.sign() * group["lr"])


class LayerScaled(torch.optim.Optimizer):
    """As LAMB: the norm of a parameter scales its step."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * (group["lr"] * p.norm() / (p.grad.norm() + 1e-6)))


class OneStep(torch.optim.Optimizer):
    """One step length for all parameters, from all gradients."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        held = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        length = sum(p.grad.abs().sum() for p in held)
        for p in held:
            p.sub_(p.grad / (1 + length) * self.param_groups[0]["lr"])


class Noisy(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.grad.add_(torch.randn_like(p))
        super().step()


class Elsewhere(torch.optim.Optimizer):
    """Steps over a list of its own, and not over its param_groups."""

    def __init__(self, params, lr=0.01):
        params = list(params)
        super().__init__(params, {"lr": lr})
        self.held = params

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.held:
            if p.grad is not None:
                p.sub_(p.grad * 0.01)


KINDS: dict[str, Callable] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.03),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "Nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.03),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.03),
    "AMSGrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.9),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, initial_accumulator_value=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "Signs": lambda p: Signs(p),
}


def groups(model: torch.nn.Module) -> list[dict]:
    """Two, with rates of their own; frozen and unused parameters are in them."""
    named = list(model.named_parameters())
    large = [p for name, p in named if name.startswith(LARGE)]
    small = [p for name, p in named if not name.startswith(LARGE)]
    return [{"params": large}, {"params": small, "lr": 0.003}]


def on_whole_parameters(
    kind: str, world: int, stage: int, steps: int, passes: int, make_scheduler: Callable | None = None
) -> tuple[dict, dict]:
    """(parameters, states) after `steps`, from the averages of plain autograd."""
    torch.set_num_threads(1)
    model = models.Mixed()
    optimizer = KINDS[kind](groups(model))
    scheduler = make_scheduler(optimizer) if make_scheduler else None
    for step in range(steps):
        by_rank = [
            [twin.local_gradients(model, models.mixed_loss(model, step, rank, k)) for k in range(passes)]
            for rank in range(world)
        ]
        gradients = twin.averaged(by_rank, stage)
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        optimizer.step()
        if scheduler:
            scheduler.step()
    states = {
        name: {key: one for key, one in optimizer.state.get(p, {}).items() if torch.is_tensor(one) and one.shape == p.shape}
        for name, p in model.named_parameters()
        if p.requires_grad
    }
    return {name: p.detach().clone() for name, p in model.named_parameters()}, states
