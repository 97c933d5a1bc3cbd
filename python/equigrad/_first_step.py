"""What the ranks of a tensor group must have in common, checked once: the data of the first forward pass, and the gradients of
what each of them has whole at the first step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from equigrad import _core
from equigrad._split_modules import on_gradient


class FirstStep:
    """Watches a model until its first step. Collective over the group."""

    def __init__(self, model: torch.nn.Module, group: _core.Communicator, first_rank: int) -> None:
        self._group = group
        self._ranks = range(first_rank, first_rank + group.world_size)  # of the group, among all
        self._digests: dict[str, int] = {}
        self._device = torch.device("cpu")
        self._hooks = [model.register_forward_pre_hook(self._look, prepend=True, with_kwargs=True)]
        for name, parameter in model.named_parameters():
            self._device = parameter.device
            if parameter.requires_grad and _core.split_of(parameter) is None:
                self._digests[name] = 0
                self._hooks.append(on_gradient(parameter, self._noting(name)))

    def _noting(self, name: str) -> Any:
        def note(gradient: torch.Tensor) -> None:
            self._digests[name] = self._digests[name] or _digest([gradient])

        return note

    def _look(self, _: torch.nn.Module, inputs: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self._hooks.pop(0).remove()
        tensors = list(_tensors((inputs, keywords)))
        others = self._differing([_digest(tensors)])
        if others:
            raise _core.Error(
                f"[engine.forward] expected the same data on ranks {_listed(self._ranks)}, which are one tensor group, got other data on "
                f"{_listed(self._ranks[at] for at, _ in others)} than on {self._ranks[0]}. Let a sampler have as many replicas as there are "
                "data ranks: engine.dp_world_size of them, the rank among them being engine.data_parallel_rank."
            )

    def let_go(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def end(self) -> None:
        """At the first step, before it acts."""
        self.let_go()
        names = list(self._digests)
        others = self._differing([self._digests[name] for name in names])
        if others:
            name = names[min(at for _, at in others)]
            raise _core.Error(
                f'[engine.step] expected one gradient of "{name}" on ranks {_listed(self._ranks)}, which are one tensor group and have it '
                f"whole, got another one on {_listed(sorted({self._ranks[rank] for rank, _ in others}))} than on {self._ranks[0]}. Give "
                "these ranks one seed for what the model draws; if the parameter is used on split activations, write a spec of it with "
                '"partition_type": "skip" and "grad_allreduce": true; if an operator of its adds in any order, use deterministic ones.'
            )

    def _differing(self, own: list[int]) -> list[tuple[int, int]]:
        """(rank of the group, index) of what is not as on its first rank."""
        rows = _core.gather_from(torch.tensor([own], dtype=torch.int64, device=self._device), 0, self._group)
        return [(int(rank), int(at)) for rank, at in (rows != rows[0]).nonzero().tolist()]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            yield from _tensors(value[key])
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _digest(tensors: list[torch.Tensor]) -> int:
    """Of shapes, types and bits; never 0."""
    total = hashlib.blake2b(digest_size=7)
    for tensor in tensors:
        dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
        total.update(f"{tuple(dense.shape)} {dense.dtype}".encode())
        if dense.numel():
            total.update(dense.contiguous().view(-1).view(torch.uint8).cpu().numpy().tobytes())
    return int.from_bytes(total.digest(), "little") + 1


def _listed(ranks: Any) -> str:
    numbers = [str(one) for one in ranks]
    return numbers[0] if len(numbers) == 1 else ", ".join(numbers[:-1]) + " and " + numbers[-1]
