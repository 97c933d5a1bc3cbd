"""A checkpoint of DeepSpeed's ZeRO stages 1 to 3 becomes one of this engine's, so that a running job can be continued here.

Read are TAG/mp_rank_00_model_states.pt (stage 3: zero_pp_rank_R_mp_rank_00_model_states.pt) and TAG/*zero_pp_rank_R_mp_rank_00_optim_states.pt,
with `torch.load(weights_only=True)`: DeepSpeed's own objects in them become records of their attributes, and no code of theirs runs.

What DeepSpeed keeps flat is cut as it has laid it out: at stages 1 and 2 a group is one tensor over all of its parameters, in the order of
`param_shapes`, which ranks own in equal parts; at stage 3 every parameter is in equal parts, one on each rank, and a rank's parts follow
each other through its sub-groups. What fills up to an equal part is padding, and is left out.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from equigrad import _core, _values
from equigrad._core import Error

_WHERE = "import_deepspeed"
# What DeepSpeed writes into a model's file beside the caller's client_state.
_OWN_KEYS = {
    *(
        "module",
        "buffer_names",
        "optimizer",
        "param_shapes",
        "frozen_param_shapes",
        "shared_params",
        "frozen_param_fragments",
    ),
    *(
        "lr_scheduler",
        "data_sampler",
        "random_ltd",
        "sparse_tensor_module_names",
        "skipped_steps",
        "global_steps",
        "global_samples",
    ),
    *(
        "dp_world_size",
        "mp_world_size",
        "ds_config",
        "ds_version",
        "checkpoint_parallel_dimensions",
        "universal_checkpoint_info",
    ),
    *("num_experts", "autoep_layers", "ds_autoep_layers", "ds_parallel_dims"),
}
_PARTIAL = re.compile(r"^(bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_(model|optim)_states\.pt$")


class _Record:
    """The attributes of an object of DeepSpeed's."""


class _Stage:
    """DeepSpeed's enumeration of stages. Newer Pythons' pickle makes a member by its value."""

    def __new__(cls, value: Any) -> int:  # type: ignore[misc]
        if not isinstance(value, int) or not 0 <= value <= 3:
            raise ValueError(f"a ZeRO stage {value!r}")
        return int(value)


def _member(kind: type, name: str) -> int:
    """Instead of getattr, by which the pickle of older Pythons (3.11.2) names the members of an enumeration: of this one alone."""
    stages = ("disabled", "optimizer_states", "gradients", "weights")
    if kind is not _Stage or name not in stages:
        raise ValueError(f'a member "{name}" of {kind}')
    return stages.index(name)


_SAFE: list[Any] = [
    (_Record, "deepspeed.runtime.fp16.loss_scaler.LossScaler"),
    (_Record, "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler"),
    (_Record, "deepspeed.utils.tensor_fragment.fragment_address"),
    (_Stage, "deepspeed.runtime.zero.config.ZeroStageEnum"),
    (_member, "builtins.getattr"),
]


def import_deepspeed(
    source_dir: str | os.PathLike[str], tag: str | None, out_dir: str | os.PathLike[str], out_tag: str | None = None
) -> str:
    """Makes OUT_DIR/OUT_TAG, for load_checkpoint(), of SOURCE_DIR/TAG, which DeepSpeed's save_checkpoint() wrote. Returns its path.

    tag: None is the one that SOURCE_DIR/latest names. out_tag: without one it is `tag`. Needs no ranks; all of the checkpoint is in
    memory. The configuration of the engine that loads it must name the optimizer that DeepSpeed had: Adam, AdamW or SGD.
    """
    source = Path(source_dir)
    if source.resolve() == Path(out_dir).resolve():
        raise Error(
            f'[{_WHERE}] expected another folder than {source} to write to, got the same. Its "latest" is what DeepSpeed resumes from: '
            "give a new folder."
        )
    found = _tag_of(source) if tag is None else str(tag)
    saved = _Source(source / found)
    tensors = _Tensors(saved)
    form: dict[str, Any] = {
        "$python": 1,
        "client_state": saved.client_state(),
        "groups": [{} for _ in tensors.groups],
        "extra_state": {},
        "passes_stepped": 0,
    }
    if saved.scheduler_state() is not None:
        form["lr_scheduler"] = {"class": None, "state": _values.form_of(saved.model["lr_scheduler"], "lr_scheduler", _WHERE)}
    headers = [(name, one) for name, one in tensors.all()]
    return _core.write_checkpoint(
        os.fspath(out_dir),
        out_tag or found,
        saved.world_size,
        _values.text_of(tensors.engine()),
        _values.text_of(form),
        headers,
    )


def _tag_of(source: Path) -> str:
    try:
        text = (source / "latest").read_text().strip()
    except OSError as error:
        raise Error(f'[{_WHERE}] expected a file "latest" in {source}, got {error}. Give the folder above the tag\'s.') from error
    if "\n" in text:
        raise Error(f"[{_WHERE}] expected a folder of DeepSpeed's, got {source}, which is this engine's already. Load it as it is.")
    return text


def _load(path: Path) -> dict[str, Any]:
    try:
        with torch.serialization.safe_globals(_SAFE):
            given = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        unsafe = re.search(r"[Uu]nsupported (?:global: )?GLOBAL (\S+)", str(error))
        what = unsafe[1] if unsafe else f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'nothing'}"
        raise Error(
            f"[{_WHERE}] expected values that can be read without running code in {path}, got {what}. Only checkpoints of stages 1 to 3 "
            "are imported, with client_state of plain values."
        ) from error
    if not isinstance(given, dict):
        raise Error(f"[{_WHERE}] expected a dict in {path}, got a {type(given).__name__}. It is none of DeepSpeed's files.")
    return given


class _Source:
    """The files of one checkpoint, as they were written."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise Error(f"[{_WHERE}] expected a folder {folder}, got none. Give the folder above it, and the tag.")
        partial: dict[str, dict[int, Path]] = {"model": {}, "optim": {}}
        for path in folder.iterdir():
            named = _PARTIAL.match(path.name)
            if named is None:
                continue
            if int(named[3]) != 0:
                raise Error(
                    f"[{_WHERE}] expected no model parallelism, got {path.name}. Make it whole with DeepSpeed first."
                )
            partial[named[4]][int(named[2])] = path
        self.folder = folder
        self.optim = [
            self._in(_load(path), "optimizer_state_dict", path)
            for path in _by_rank(partial["optim"], "optim_states", folder)
        ]
        whole = folder / "mp_rank_00_model_states.pt"
        paths = [whole] if whole.exists() else _by_rank(partial["model"], "model_states", folder)
        self.models = [_load(path) for path in paths]
        self.model = self.models[0]
        self.world_size = len(self.optim)
        self.stage: int = self.optim[0].get("zero_stage", 1)
        count = self.optim[0].get("partition_count", self.world_size)
        counts = set(count) if isinstance(count, list) else {count}
        if counts != {self.world_size} or self.model.get("dp_world_size", self.world_size) != self.world_size:
            raise Error(
                f"[{_WHERE}] expected files of {min(counts)} ranks in {folder}, got {self.world_size}. One is missing, or left over."
            )
        if self.model.get("mp_world_size", 1) != 1:
            raise Error(f"[{_WHERE}] expected no model parallelism, got {self.model['mp_world_size']} ranks of it.")

    def _in(self, given: dict[str, Any], key: str, path: Path) -> Any:
        if key not in given:
            raise Error(f'[{_WHERE}] expected "{key}" in {path}, got none. It is no optimizer state of ZeRO.')
        return given[key]

    def client_state(self) -> Any:
        own = {key: value for key, value in self.model.items() if key not in _OWN_KEYS}
        return _values.form_of(own, "client_state", _WHERE)

    def scheduler_state(self) -> dict[str, Any] | None:
        """Of torch's; DeepSpeed's own schedulers have a number alone, which is the engine's to keep."""
        state = self.model.get("lr_scheduler")
        return state if isinstance(state, dict) and set(state) != {"last_batch_iteration"} else None


def _by_rank(paths: dict[int, Path], what: str, folder: Path) -> list[Path]:
    """In the order of their numbers: that of their names has 10 before 2."""
    if not paths:
        raise Error(
            f"[{_WHERE}] expected zero_pp_rank_*_{what}.pt in {folder}, got none. It is no checkpoint of ZeRO stages 1 to 3."
        )
    missing = sorted(set(range(max(paths) + 1)) - set(paths))
    if missing:
        raise Error(
            f"[{_WHERE}] expected the {what} of every rank in {folder}, got none of rank {missing[0]}. It is not whole."
        )
    return [paths[rank] for rank in range(len(paths))]


class _Group(NamedTuple):
    shapes: dict[str, list[int]]  # by name, in the order of what is flat
    options: dict[str, Any]
    steps: int


class _Tensors:
    """Masters, states, frozen parameters and buffers under this engine's names."""

    def __init__(self, source: _Source) -> None:
        self.source = source
        self.shared = dict(source.model.get("shared_params") or {})
        shapes = source.model.get("param_shapes")
        if not shapes:
            raise Error(
                f'[{_WHERE}] expected "param_shapes" in {source.folder}, got none. It is no checkpoint of ZeRO stages 1 to 3.'
            )
        self.flat: dict[str, Callable[[str], torch.Tensor]]
        optimizer = source.optim[0]["optimizer_state_dict" if source.stage == 3 else "base_optimizer_state"]
        if not isinstance(optimizer, dict):
            raise Error(f'[{_WHERE}] expected no "elastic_checkpoint", got one in {source.folder}. Save it again without.')
        self.states, self.steps = self._states_of(optimizer)
        self.groups = [
            _Group({name: list(shape) for name, shape in of.items()}, options, self._steps_of(at, options))
            for at, (of, options) in enumerate(
                zip(self._by_group(shapes, optimizer), optimizer["param_groups"], strict=True)
            )
        ]
        self.kind = self._kind()

    def _by_group(self, shapes: list[dict[str, Any]], optimizer: dict[str, Any]) -> list[dict[str, Any]]:
        """At stage 3 param_shapes are by sub-group, of which a group has several."""
        counts = [len(group["params"]) for group in optimizer["param_groups"]]
        if self.source.stage != 3:
            return shapes
        if sum(counts) != len(shapes):
            raise Error(f"[{_WHERE}] expected {len(shapes)} sub-groups, got states of {sum(counts)}. It is not whole.")
        rest = iter(shapes)
        return [{name: shape for _ in range(count) for name, shape in next(rest).items()} for count in counts]

    def _states_of(self, optimizer: dict[str, Any]) -> tuple[list[str], dict[int, int]]:
        """(names of states as large as what is flat, steps by number)"""
        names: list[str] = []
        steps: dict[int, int] = {}
        for number, state in optimizer["state"].items():
            for key, value in state.items():
                if key == "step":
                    steps[number] = int(value)
                elif torch.is_tensor(value) and value.dim() > 0 and key not in names:
                    names.append(key)
        return names, steps

    def _steps_of(self, group: int, options: dict[str, Any]) -> int:
        numbers = {self.steps[number] for number in options["params"] if number in self.steps}
        if len(numbers) > 1:
            raise Error(f"[{_WHERE}] expected one step of all sub-groups of group {group}, got {sorted(numbers)}.")
        return numbers.pop() if numbers else int(options.get("step", 0))

    def _kind(self) -> str:
        names = set(self.states)
        options = self.groups[0].options
        if names <= {"momentum_buffer"} and "momentum" in options:
            return "sgd"
        if names <= {"exp_avg", "exp_avg_sq"} and "betas" in options and not options.get("amsgrad"):
            config = (self.source.model.get("ds_config") or {}).get("optimizer") or {}
            named = str(config.get("type", "")).lower()
            mode = config.get("params", {}).get("adam_w_mode", True)
            is_adam = named == "adam" and not mode
            return "adam" if is_adam or options.get("decoupled_weight_decay") is False else "adamw"
        raise Error(
            f"[{_WHERE}] expected states of Adam, AdamW or SGD, got {', '.join(sorted(names)) or 'none'}. Only the configured "
            "optimizers' are imported."
        )

    # ---- What is flat ----

    def _flat_of(self, state: str | None, rank: int, number: int) -> torch.Tensor | None:
        """A rank's flat master, or state, of a group (stage 3: of a sub-group)."""
        given = self.source.optim[rank]
        if state is None:
            one: torch.Tensor = given["fp32_flat_groups" if self.source.stage == 3 else "single_partition_of_fp32_groups"][
                number
            ]
            return one
        optimizer = given["optimizer_state_dict" if self.source.stage == 3 else "base_optimizer_state"]
        found: torch.Tensor | None = optimizer["state"].get(number, {}).get(state)
        return found

    def _trained(self, state: str | None) -> Iterator[tuple[str, torch.Tensor]]:
        """By name, whole."""
        return self._of_stage_3(state) if self.source.stage == 3 else self._below_stage_3(state)

    def _below_stage_3(self, state: str | None) -> Iterator[tuple[str, torch.Tensor]]:
        alignment = self.source.optim[0].get("param_alignment_paddings")
        for number, group in enumerate(self.groups):
            parts = [self._flat_of(state, rank, number) for rank in range(self.source.world_size)]
            if any(part is None for part in parts):
                continue
            # Masters are saved without what fills up the last part, states with it.
            flat = torch.cat([part.flatten() for part in parts if part is not None])
            offset = 0
            for at, (name, shape) in enumerate(group.shapes.items()):
                numel = math.prod(shape)
                if offset + numel > flat.numel():
                    raise Error(
                        f'[{_WHERE}] expected {offset + numel} elements up to "{name}", got {flat.numel()}. It is not whole.'
                    )
                yield name, flat[offset : offset + numel].view(shape)
                offset += numel + (alignment[number][at] if alignment else 0)

    def _of_stage_3(self, state: str | None) -> Iterator[tuple[str, torch.Tensor]]:
        world = self.source.world_size
        count = len(self.source.optim[0]["fp32_flat_groups"])
        by_rank = []
        for rank in range(world):
            parts = [self._flat_of(state, rank, number) for number in range(count)]
            if any(part is None for part in parts):
                return
            by_rank.append(torch.cat([part.flatten() for part in parts if part is not None]))
        offset = 0
        for group in self.groups:
            for name, shape in group.shapes.items():
                numel = math.prod(shape)
                part = -(-numel // world)
                if offset + part > by_rank[0].numel():
                    raise Error(
                        f'[{_WHERE}] expected {offset + part} elements of a rank up to "{name}", got {by_rank[0].numel()}.'
                    )
                whole = torch.cat([flat[offset : offset + part] for flat in by_rank])
                yield name, whole[:numel].view(shape)
                offset += part

    def _frozen(self) -> dict[str, torch.Tensor]:
        shapes = self.source.model.get("frozen_param_shapes") or {}
        if self.source.stage == 3:
            return {
                name: torch.cat([one["frozen_param_fragments"][name].flatten() for one in self.source.models])[
                    : math.prod(shape)
                ].view(list(shape))
                for name, shape in shapes.items()
            }
        trained = {name for group in self.groups for name in group.shapes}
        known = trained | set(self.shared) | set(self.source.model["buffer_names"])
        return {name: one for name, one in self.source.model["module"].items() if name not in known and torch.is_tensor(one)}

    def all(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, one in self._trained(None):
            yield f"master/{name}", one.float()
        for state in self.states:
            for name, one in self._trained(state):
                yield f"{state}/{name}", one
        for name, one in self._frozen().items():
            yield f"parameter/{name}", one
        for rank in range(self.source.world_size):
            module = self.source.models[min(rank, len(self.source.models) - 1)]["module"]
            for name in self.source.model["buffer_names"]:
                if name in module:
                    yield f"rank{rank}/buffer/{name}", module[name]

    # ---- What is no tensor ----

    def engine(self) -> dict[str, Any]:
        model, frozen = self.source.model, self._frozen()
        aliases: dict[str, list[str]] = {}
        for other, name in self.shared.items():
            aliases.setdefault(name, []).append(other)
        parameters = [
            self._parameter(name, shape, aliases, True, group.steps, number)
            for number, group in enumerate(self.groups)
            for name, shape in group.shapes.items()
        ]
        parameters += [self._parameter(name, list(one.shape), aliases, False, 0, 0) for name, one in frozen.items()]
        schedule = model.get("lr_scheduler")
        is_own = isinstance(schedule, dict) and set(schedule) == {"last_batch_iteration"}
        passes = int((model.get("ds_config") or {}).get("gradient_accumulation_steps") or 1)
        return {
            "stage": self.source.stage,
            "param_type": self._param_type(),
            "master_type": "F32",
            "optimizer": self.kind,
            "parameters": parameters,
            "groups": [self._options(group.options) for group in self.groups],
            "counters": {
                "micro_steps": model["global_steps"] * passes,
                "global_steps": model["global_steps"],
                "skipped_steps": model["skipped_steps"],
            },
            "was_step_applied": False,
            "norm": None,
            "loss_scale": self._loss_scale(),
            "schedule": {"last_batch_iteration": schedule["last_batch_iteration"]} if is_own and schedule else None,
            "layer_drop": None,
        }

    def _parameter(
        self, name: str, shape: list[int], aliases: dict[str, list[str]], trainable: bool, steps: int, group: int
    ) -> dict[str, Any]:
        return {
            "name": name,
            "aliases": aliases.get(name, []),
            "shape": shape,
            "trainable": trainable,
            "steps": steps,
            "group": group,
        }

    def _param_type(self) -> str:
        config = self.source.model.get("ds_config") or {}
        for key, name in (("bf16", "BF16"), ("bfloat16", "BF16"), ("fp16", "F16")):
            if (config.get(key) or {}).get("enabled"):
                return name
        return "F32"

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        beta1, beta2 = given.get("betas", (0.9, 0.999))
        return {
            "lr": float(given["lr"]),
            "weight_decay": float(given.get("weight_decay", 0)),
            "beta1": float(beta1),
            "beta2": float(beta2),
            "eps": float(given.get("eps", 1e-8)),
            "momentum": float(given.get("momentum", 0)),
            "dampening": float(given.get("dampening", 0)),
            "nesterov": bool(given.get("nesterov", False)),
        }

    def _loss_scale(self) -> dict[str, Any]:
        scaler = getattr(self.source.optim[0].get("loss_scaler"), "__dict__", {})
        is_dynamic = bool(scaler.get("dynamic"))
        is_fp16 = self._param_type() == "F16"
        return {
            "policy": "deepspeed" if is_dynamic else "static" if is_fp16 else "none",
            "scale": float(scaler.get("cur_scale", 1)) if is_fp16 else 1.0,
            "stepped": False,
            "overflow": False,
            "steps": int(scaler.get("cur_iter", 0)),
            "last_overflow": int(scaler.get("last_overflow_iter", -1)),
            "hysteresis_left": int(scaler.get("cur_hysteresis", 1)),
            "good_steps": 0,
        }
