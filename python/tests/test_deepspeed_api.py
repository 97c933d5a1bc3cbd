"""DeepSpeed's methods, one by one: each is the engine's own, is answered, or is refused with words; docs/deepspeed-api.md says which."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import equigrad
import ranks
import twin
from equigrad import _deepspeed_api as tables
from equigrad import deepspeed

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deepspeed_tests"))

import api


def configuration(stage: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 77},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        **more,
    }


class Small(torch.nn.Sequential):
    """With attributes of its own that have names of DeepSpeed's methods."""

    log_level = "mine"

    def load_moe_state_dict(self, *_: Any) -> str:
        return "mine"


def small() -> torch.nn.Module:
    torch.manual_seed(5)
    return Small(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(17 * rank + step))


def make(initialize: Any = deepspeed.initialize, stage: int = 0, **more: Any) -> Any:
    return initialize(model=small(), config=configuration(stage, **more))[0]


# ---- The page --------------------------------------------------------------------------------------------------------


def test_the_page_is_that_of_the_tables() -> None:
    assert api.PAGE.read_text() == api.page(), "The tables have changed. Run python/deepspeed_tests/api.py"


def test_every_method_of_deepspeed_has_one_row_and_no_row_has_no_method() -> None:
    _, methods = api.read_list()
    names = [method.name for method in methods]
    assert len(names) == len(set(names)) > 190
    assert [method.name for method in methods if api.kind_of(method)[0] == "missing"] == []
    rows = [*tables.ANSWERED, *tables.REFUSED, *tables.DIFFERENT]
    assert sorted(set(rows) - set(names)) == []
    assert set(tables.ANSWERED) & (set(tables.REFUSED) | set(tables.DIFFERENT)) == set()
    # The engine of equigrad.initialize does without this one.
    assert set(tables.REFUSED) & set(tables.DIFFERENT) == {"coalesce_grad_reduction"}
    assert [name for name in (*tables.ANSWERED, *tables.REFUSED) if hasattr(equigrad.Engine, name)] == []


def parameters_of(text: str) -> list[str]:
    """(name, *name, **name) as DeepSpeed's method takes them."""
    taken = ast.parse(f"def method({text}): pass").body[0].args
    stars = [f"*{taken.vararg.arg}"] if taken.vararg else []
    stars += [f"**{taken.kwarg.arg}"] if taken.kwarg else []
    return [one.arg for one in taken.args] + stars


def test_methods_of_the_engine_take_what_deepspeeds_take() -> None:
    own = [method for method in api.read_list()[1] if api.kind_of(method)[0] in ("same", "differs")]
    assert len(own) > 20
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    for method in own:
        _, *taken = inspect.signature(getattr(deepspeed.DeepSpeedEngine, method.name)).parameters.values()
        want = parameters_of(method.parameters)
        shown = [marks.get(one.kind, "") + one.name for one in taken]
        assert shown[: len(want)] == want, method.name
        assert all(one.default is not one.empty for one in taken[len(want) :]), method.name


def test_the_list_is_read_from_a_source_as_it_is_called() -> None:
    source = "class DeepSpeedEngine(Module):\n def a(self, x=1, *y): ...\n def _b(self): ...\n"
    source += " @property\n def c(self): ...\n @staticmethod\n def d(x): ...\n @c.setter\n def c(self, v): ...\n"
    assert [method.shown for method in api.methods_of(source)] == ["a(x=1, *y)", "c", "d(x)"]


# ---- The engine ------------------------------------------------------------------------------------------------------


def on_living_engines() -> list[dict[str, Any]]:
    """Of both engines, by name: ("answers", value) or ("refused", text)."""
    seen = []
    for initialize in (equigrad.initialize, deepspeed.initialize):
        engine = make(initialize, 1, gradient_accumulation_steps=2)
        by_name: dict[str, Any] = {}
        for method in api.read_list()[1]:
            found = getattr(engine, method.name)
            if hasattr(type(engine), method.name):
                continue
            if isinstance(found, str):
                by_name[method.name] = ("answers", found)
                continue
            if method.parameters == "property" or method.name in ("is_map_style_dataset", "is_iterable_style_dataset"):
                by_name[method.name] = ("answers", repr(found))
                continue
            arguments = ["x" for name in parameters_of(method.parameters) if "*" not in name]
            try:
                by_name[method.name] = ("answers", found(*arguments))
            except equigrad.NotSupportedError as error:
                assert isinstance(error, NotImplementedError) and isinstance(error, equigrad.Error)
                by_name[method.name] = ("refused", str(error))
        seen.append(by_name)
    return seen


def test_every_row_holds_on_a_living_engine() -> None:
    plain, drop_in = ranks.alone(on_living_engines)
    # The model's own are not the engine's, but the drop-in's are.
    assert plain.pop("log_level") == plain.pop("load_moe_state_dict") == ("answers", "mine")
    assert drop_in.pop("log_level") == ("answers", None) and drop_in["load_moe_state_dict"][0] == "refused"
    for seen in (plain, drop_in):
        for name, (kind, value) in seen.items():
            assert (name in tables.REFUSED) == (kind == "refused"), name
            if kind == "refused":
                assert value == f"[engine.{name}] expected a call that this engine supports, got {name}(). {tables.REFUSED[name]}"
                assert tables.REFUSED[name].endswith("."), name
        answers = {name: value for name, (kind, value) in seen.items() if kind == "answers"}
        want = {
            "get_batch_info": (4, 2, 2),
            "zero_reduce_bucket_size": 77,
            "zero_param_persistence_threshold": 0,
            "zero_overlap_comm": True,
            "zero_reduce_scatter": True,
            "zero_offload_optimizer": None,
            "zero_cpu_offload": False,
            "zero_optimization_partition_gradients": False,
            "optimizer_name": "AdamW",
            "scheduler_name": None,
            "scheduler_params": None,
            "sparse_gradients_enabled": False,
            "postscale_gradients": True,
            "fp16_enabled": False,
            "loss_scale": 0.0,
            "initial_dynamic_scale": 65536,
            "get_mom": [(0.9, 0.999)],
            "get_data_types": (torch.float32, torch.float32),
            "communication_data_type": "None",
            "is_compiled": "False",
            "pld_params": False,
            "pld_theta": 0.5,
            "managed_gradient_accumulation": True,
            "steps_per_print": None,
        }
        assert {name: answers[name] for name in want} == want
        assert answers["optimizer_params"]["lr"] == 0.01 and answers["optimizer_params"]["betas"] == [0.9, 0.999]
        scale = answers["dynamic_loss_scale_args"]
        assert (scale["init_scale"], scale["scale_window"], scale["min_scale"]) == (65536, 1000, 1.0)


def attributes_of_living_engines() -> list[Any]:
    plain, drop_in = (make(initialize, 1) for initialize in (equigrad.initialize, deepspeed.initialize))
    for engine in (plain, drop_in):
        seen = {name: getattr(engine, name) for name in tables.ATTRIBUTES}
        assert seen["config"] == configuration(1) and seen["local_rank"] == 0 and seen["client_optimizer"] is None
        assert sorted(seen["param_names"].values()) == sorted(name for name, _ in engine.module.named_parameters())
        assert (seen["dist_backend"], seen["sequence_parallel_size"], seen["seq_dp_world_size"]) == ("gloo", 1, 1)
        for name in tables.MISSING:
            assert not hasattr(engine, name), name
    try:
        drop_in.monitor  # noqa: B018
    except AttributeError as error:
        return [str(error), isinstance(error, equigrad.NotSupportedError)]
    return []


def test_attributes_of_deepspeeds_engine_are_answered_or_say_what_there_is_instead() -> None:
    text, is_named = ranks.alone(attributes_of_living_engines)
    assert is_named and text == f"[engine.monitor] expected an attribute that this engine has, got monitor. {tables.MISSING['monitor']}"
    rows = [*tables.ATTRIBUTES, *tables.MISSING]
    assert len(rows) == len(set(rows)) > 40
    assert set(rows) & {*tables.ANSWERED, *tables.REFUSED, *tables.DIFFERENT} == set()
    assert [name for name in rows if hasattr(equigrad.Engine, name)] == []


def numbers_without_an_end() -> list[str]:
    engine = make(steps_per_print=float("inf"))  # as accelerate writes it
    said = [engine.steps_per_print()]
    mine = configuration(0, steps_per_print=float("inf"))
    deepspeed.initialize(model=small(), config=mine)
    said.append(str(mine["steps_per_print"] == float("inf")))  # the caller's dict is left alone
    for more in ({"gradient_clipping": float("inf")}, {"scheduler": {"params": {"a": [1.0, float("nan")]}}}):
        try:
            make(**more)
        except equigrad.Error as error:
            said.append(str(error))
    return said


def test_a_number_without_an_end_is_named_by_its_key() -> None:
    assert ranks.alone(numbers_without_an_end) == [
        "inf",
        "True",
        "[initialize] gradient_clipping: expected a number that is finite, got inf. JSON has no other.",
        "[initialize] scheduler.params.a[1]: expected a number that is finite, got nan. JSON has no other.",
    ]


def other_configurations(folder: str) -> dict[str, Any]:
    """The configuration as a file with a comment, beside a client's optimizer; and one in which most is on."""
    path = Path(folder) / "config.json"
    zero = '{"stage": 2, "reduce_scatter": false, "offload_optimizer": {"device": "cpu"}}'
    path.write_text(
        f'{{"train_batch_size": 2, // all\n "zero_optimization": {zero}, "wall_clock_breakdown": true, "steps_per_print": 7}}'
    )
    client = equigrad.initialize(model=small(), optimizer=torch.optim.RMSprop, config=str(path))[0]
    seen = {
        "client": client.optimizer_name(),
        "parameters": client.optimizer_params(),
        "momentum": client.get_mom(),
        "idle": (client.zero_reduce_scatter(), client.wall_clock_breakdown(), client.steps_per_print()),
        "offload": client.zero_offload_optimizer()["device"],
        "cpu": client.zero_cpu_offload(),
    }
    full = make(
        bf16={"enabled": True},
        communication_data_type="fp32",
        progressive_layer_drop={"enabled": True, "theta": 0.25},
        scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
        prescale_gradients=True,
    )
    seen["bf16"] = (full.bfloat16_enabled(), full.communication_data_type, full.get_data_types()[0], full.postscale_gradients())
    low = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    named = make(stage=1, bf16=low), make(stage=1, bfloat16=low)
    seen["masters"] = [(one.bf16_master_weights_and_gradients(), one.bf16_optimizer_states()) for one in named]
    seen["layer drop"] = full.pld_params()
    seen["scheduler"] = (full.scheduler_name(), full.scheduler_params()["warmup_num_steps"])
    try:
        full.communication_data_type = torch.float16
    except equigrad.NotSupportedError as error:
        seen["assigned"] = str(error)
    full.destroy()
    try:
        full.get_pld_theta()
    except equigrad.Error as error:
        seen["destroyed"] = str(error)
    try:
        full.no_such_method()
    except AttributeError as error:
        seen["unknown"] = str(error)
    return seen


def test_answers_are_those_of_the_configuration(tmp_path: Path) -> None:
    seen = ranks.alone(other_configurations, str(tmp_path))
    assert (seen["client"], seen["parameters"], seen["momentum"]) == ("RMSprop", None, [0])
    assert seen["idle"] == (False, True, 7) and seen["offload"] == "cpu" and seen["cpu"] is True
    assert seen["bf16"] == (True, torch.float32, torch.bfloat16, False)
    assert seen["masters"] == [(True, True)] * 2
    assert seen["layer drop"]["theta"] == 0.25 and "enabled" not in seen["layer drop"]
    assert seen["scheduler"] == ("WarmupLR", 5)
    assert "expected no assignment, got torch.float16" in seen["assigned"]
    assert "destroyed" in seen["destroyed"] and "no_such_method" in seen["unknown"]


def sparse() -> str:
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Embedding(9, 4, sparse=True), torch.nn.Linear(4, 3))
    engine = deepspeed.initialize(model=model, config=configuration())[0]
    try:
        engine.backward(engine(torch.tensor([1, 2])).square().mean())
    except equigrad.Error as error:
        return str(error)
    return "was taken"


def test_a_sparse_gradient_is_refused_with_its_remedy() -> None:
    said = ranks.alone(sparse)
    assert "expected a dense gradient" in said and '"0.weight"' in said and "sparse=False" in said


# ---- compile() -------------------------------------------------------------------------------------------------------


def trained(stage: int, is_compiled: bool) -> dict[str, Any]:
    engine = make(stage=stage)
    seen: dict[str, Any] = {"before": engine.is_compiled}
    for name in ("schedule", "compiled_autograd_enabled") if is_compiled else ():
        try:
            engine.compile(**{name: True})
        except equigrad.NotSupportedError as error:
            seen[name] = str(error)
    if is_compiled:
        engine.compile("aot_eager", compile_kwargs={"dynamic": False})
        engine.compile("aot_eager")
    seen["after"] = engine.is_compiled
    for step in range(2):
        engine.backward(engine(batch(engine.global_rank, step)).square().mean())
        engine.step()
    seen["weights"] = [engine.full_parameter(name) for name, _ in engine.module.named_parameters()]
    return seen


@pytest.mark.parametrize("stage", [0, 3])
def test_compile_compiles_the_model_in_place(stage: int) -> None:
    compiled, plain = ranks.run(2, trained, stage, True), ranks.run(2, trained, stage, False)
    for mine, other in zip(compiled, plain, strict=True):
        assert (mine["before"], mine["after"], other["after"]) == (False, True, False)
        assert "expected no schedule, got True" in mine["schedule"] and "compiled" in mine["compiled_autograd_enabled"]
        for got, want in zip(mine["weights"], other["weights"], strict=True):
            twin.assert_same_bits(got, want, "compiled in place")
