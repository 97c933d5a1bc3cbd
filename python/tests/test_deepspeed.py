"""The drop-in for DeepSpeed: its engine's calls and errors, and the names at which its users look."""

from __future__ import annotations

import contextlib
import re

import pytest
import torch

import equigrad
import ranks
import twin
from equigrad import deepspeed


def configuration(stage: int = 0, **more) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        **more,
    }


def small() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 3))


def batch(rank: int, step: int = 0) -> torch.Tensor:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(17 * rank + step))


def make(stage: int = 0, model: torch.nn.Module | None = None, **more) -> deepspeed.DeepSpeedEngine:
    model = model or small()
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=configuration(stage, **more))[0]


def told(call, kind: type) -> str:
    """The text of the error, which has to be of this kind too."""
    try:
        call()
    except equigrad.Error as error:
        assert isinstance(error, kind), type(error).__mro__
        return str(error)
    raise AssertionError("it was taken")


# ---- Calls that DeepSpeed refuses ------------------------------------------------------------------------------------


def enter(scope) -> None:
    with scope:
        pass


def refused_calls() -> list[str]:
    engine = make(1)
    output = engine(batch(0))
    said = [
        told(lambda: engine.scale(output), AssertionError),
        told(lambda: engine.backward(output), AssertionError),
        told(lambda: engine.scale(torch.tensor(1.0)), AssertionError),
        told(lambda: enter(make(2).no_sync()), AssertionError),
        told(lambda: make(3, unknown_key=1), ValueError),
        told(lambda: make(3, unknown_key=1), AssertionError),
        told(lambda: deepspeed.zero.Init(module=small(), config=configuration(3)), equigrad.Error),
        told(lambda: deepspeed.zero.Init(remote_device="nvme", config=configuration(3)), equigrad.Error),
    ]
    for scope in (engine.no_sync, engine.coalesce_grad_reduction):
        with scope():
            said.append(told(engine.step, AssertionError))
            said.append(told(lambda: enter(engine.no_sync()), AssertionError))
            said.append(told(lambda: enter(engine.coalesce_grad_reduction()), AssertionError))
    try:
        enter(make(0).coalesce_grad_reduction())
    except NotImplementedError as error:
        said.append(str(error))
    engine.backward(engine(batch(0)).square().mean())
    engine.step()
    assert engine.was_step_applied()
    return said


def test_what_deepspeed_asserts_is_an_assertion_error_that_says_what_to_do() -> None:
    words = ["scalar tensor", "scalar tensor", "without a graph", "ZeRO stage 2", "unknown_key", "unknown_key"]
    words += ["initialize()", "remote_device"]
    words += ["leave the scope", "nested", "nested"] * 2 + ["no_sync()"]
    said = ranks.alone(refused_calls)
    assert len(said) == len(words)
    for text, word in zip(said, words, strict=True):
        assert word in text and "expected" in text and "got" in text, text


# ---- Scopes and counters ---------------------------------------------------------------------------------------------


def two_passes(stage: int, is_coalesced: bool) -> list[torch.Tensor]:
    engine = make(stage)
    scope = engine.coalesce_grad_reduction() if is_coalesced else contextlib.nullcontext()
    with scope:
        for step in range(2):
            engine.backward(engine(batch(engine.global_rank, step)).square().mean())
    gradients = [deepspeed.utils.safe_get_full_grad(p) for p in engine.module.parameters()]
    engine.step()
    return gradients + [engine.full_parameter("0.weight")]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_coalescing_changes_no_bit(stage: int) -> None:
    plain, coalesced = ranks.run(2, two_passes, stage, False), ranks.run(2, two_passes, stage, True)
    for got, want in zip(coalesced[0], plain[0], strict=True):
        twin.assert_same_bits(got, want, "coalesced")


def applied() -> list[bool]:
    engine = make(gradient_accumulation_steps=2)
    seen = []
    for step in range(4):
        engine.backward(engine(batch(0, step)).square().mean())
        engine.step()
        seen.append(engine.was_step_applied())
    return seen


def test_a_step_between_boundaries_applies_nothing() -> None:
    assert ranks.alone(applied) == [False, True, False, True]


# ---- Frozen parameters that model_parameters leaves out --------------------------------------------------------------


def frozen(stage: int) -> dict:
    model = small()
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=trained, config=configuration(stage))
    at_rest = [p.ds_status for p in model.parameters()]
    engine.backward(engine(batch(engine.global_rank)).square().mean())
    gradients = [deepspeed.utils.safe_get_full_grad(p) for p in model.parameters()]
    engine.step()
    return {
        "here": [status is deepspeed.zero.ZeroParamStatus.AVAILABLE for status in at_rest],
        "persist": [p.ds_persist for p in model.parameters()],
        "shown": [len(group["params"]) for group in optimizer.param_groups],
        "gradients": gradients,
        "frozen": [
            deepspeed.utils.safe_get_full_fp32_param(model[0].weight),
            deepspeed.utils.safe_get_full_optimizer_state(model[0].weight, "exp_avg"),
            deepspeed.utils.safe_get_local_grad(model[0].weight),
        ],
        "kept": engine.full_parameter("0.weight"),
    }


@pytest.mark.parametrize("stage", [0, 3])
def test_frozen_parameters_are_held_and_partitioned_too(stage: int) -> None:
    for seen in ranks.run(2, frozen, stage):
        assert seen["here"] == [stage == 0] * 4 and seen["persist"] == [stage == 0] * 4
        assert seen["shown"] == [2] and seen["frozen"] == [None] * 3
        assert seen["gradients"][:2] == [None, None] and all(one is not None for one in seen["gradients"][2:])
        twin.assert_same_bits(seen["kept"], small()[0].weight.detach(), "a frozen parameter")


# ---- Leaf modules ----------------------------------------------------------------------------------------------------


def leaves() -> dict:
    utils, model = deepspeed.utils, small()
    seen = {
        "name": utils.set_z3_leaf_modules_by_name(model, ["0", "9"], raise_if_not_found=False),
        "suffix": utils.set_z3_leaf_modules_by_suffix(model, ["2"]),
        "class": utils.set_z3_leaf_modules(model, [torch.nn.Conv2d], raise_if_not_found=False),
        "marked": len(utils.get_z3_leaf_modules(model)),
        "taken away": len(utils.unset_z3_leaf_modules(model, [torch.nn.Linear])),
        "left": len(utils.get_z3_leaf_modules(model)),
    }
    for key in ("name", "suffix"):
        found, missing = seen[key]
        seen[key] = (len(found), missing)
    try:
        utils.set_z3_leaf_modules_by_name(small(), ["0", "9"])
    except ValueError as error:
        seen["told"] = str(error)
    config = configuration(3)
    config["zero_optimization"] = {"stage": 3, "param_persistence_threshold": 20}
    seen["persist"] = [p.ds_persist for p in deepspeed.initialize(model=small(), config=config)[0].module.parameters()]
    config["zero_optimization"]["leaf_module"] = {"names": ["2"]}
    engine = deepspeed.initialize(model=model, config=config)[0]
    seen["configured"] = [utils.z3_leaf_module(module) for module in model]
    engine.destroy()
    return seen


def test_leaf_modules_are_marked_as_deepspeed_marks_them() -> None:
    seen = ranks.alone(leaves)
    assert seen["name"] == (1, ["9"]) and seen["suffix"] == (1, []) and seen["class"] == []
    assert (seen["marked"], seen["taken away"], seen["left"]) == (2, 2, 0)
    assert "'9'" in seen["told"] and "nearest" in seen["told"]
    assert seen["persist"] == [False, True, True, True]
    assert seen["configured"] == [False, False, True]


# ---- What a loss is multiplied by, and what a gradient becomes -------------------------------------------------------


def scaler() -> list:
    fp16 = {"enabled": True, "initial_scale_power": 8, "loss_scale_window": 2}
    engine = make(1, fp16=fp16)
    shown, seen = engine.optimizer.loss_scaler, []
    for step in range(3):
        seen.append((shown.cur_scale, shown.cur_iter))
        engine.backward(engine(batch(0, step).half()).float().square().mean())
        engine.step()
    seen.append((shown.cur_scale, shown.cur_iter))
    seen.append((shown.scale_window, shown.dynamic_loss_scale, engine.optimizer.dynamic_loss_scale))
    plain = make(1).optimizer.loss_scale_config
    return [*seen, (plain.cur_scale, plain.dynamic_loss_scale)]


def test_the_loss_scaler_is_shown() -> None:
    assert ranks.alone(scaler) == [(256, 0), (256, 1), (256, 2), (512, 3), (2, True, True), (1, False)]


def vectorized(stage: int) -> list:
    engine = make(stage)
    parameters = list(engine.module.parameters())
    deepspeed.utils.safe_update_full_grad_vectorized(parameters, lambda old, _: old * 0)
    engine.backward(engine(batch(engine.global_rank)).square().mean())
    before = [deepspeed.utils.safe_get_full_grad(p) for p in parameters]
    deepspeed.utils.safe_update_full_grad_vectorized(parameters[:2], lambda old, p: old + p.ds_numel)
    after = [deepspeed.utils.safe_get_full_grad(p) for p in parameters]
    return [torch.equal(a, b + (p.ds_numel if i < 2 else 0)) for i, (a, b, p) in enumerate(zip(after, before, parameters))]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_gradients_are_updated_together(stage: int) -> None:
    assert ranks.run(2, vectorized, stage) == [[True] * 4] * 2


def sent_types() -> list:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    engine = make(1, model, torch_autocast={"enabled": True, "dtype": "bfloat16"})
    seen = [getattr(p, "comm_dtype", None) for p in model.parameters()]
    engine.destroy()
    return [*seen, hasattr(model[0].weight, "comm_dtype")]


def test_autocast_parameters_show_in_which_type_they_are_sent() -> None:
    assert ranks.alone(sent_types) == [torch.bfloat16, torch.bfloat16, None, None, False]


def helpers_of_autocast() -> None:
    helpers = deepspeed.runtime.torch_autocast
    assert not helpers.is_autocast_initialized()
    plain = make(1)
    assert not helpers.is_autocast_initialized() and not plain.torch_autocast_enabled()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4))
    engine = make(1, model, torch_autocast={"enabled": True, "dtype": "float16", "lower_precision_safe_modules": ["Linear"]})
    assert engine.torch_autocast_enabled() and engine.torch_autocast_dtype() is torch.float16
    assert helpers.is_autocast_initialized() and helpers.get_autocast_dtype() is torch.float16
    assert engine.dynamic_loss_scale() and engine.optimizer.dynamic_loss_scale and not plain.dynamic_loss_scale()
    assert [helpers.has_autocast_dtype(p) for p in model.parameters()] == [True, True, False, False]
    assert helpers.get_comm_dtype(model[0].weight) is torch.float16
    assert helpers.get_all_comm_dtypes(model[1].parameters()) == {torch.float32}
    assert "torch.nn.Conv2d" in helpers.get_default_autocast_lower_precision_modules()
    helpers.init_autocast_params(engine, torch.float16, ["torch.nn.modules.linear.Linear"])
    with pytest.raises(
        deepspeed.Error, match=r"expected the type of the configuration, torch\.float16, got torch\.bfloat16"
    ):
        helpers.init_autocast_params(engine, torch.bfloat16, ["Linear"])
    with pytest.raises(deepspeed.Error, match="expected the modules that the engine was made with"):
        helpers.init_autocast_params(engine, torch.float16)
    with pytest.raises(deepspeed.Error, match="no torch_autocast, got"):
        helpers.init_autocast_params(plain, torch.float16)
    engine.destroy()
    assert not helpers.is_autocast_initialized()


def test_the_helpers_of_autocast_say_what_the_configuration_does() -> None:
    ranks.alone(helpers_of_autocast)


def marks() -> list[list[bool]]:
    utils, model, seen = deepspeed.utils, small(), []

    def see() -> None:
        seen.append([utils.z3_leaf_module(module) for module in model])

    for mark, take_away, names in (
        (utils.set_z3_leaf_modules_by_name, utils.unset_z3_leaf_modules_by_name, ["0", "1"]),
        (utils.set_z3_leaf_modules_by_suffix, utils.unset_z3_leaf_modules_by_suffix, ["0", "2"]),
        (utils.set_z3_leaf_modules, utils.unset_z3_leaf_modules, [torch.nn.Tanh]),
    ):
        mark(model, names)
        see()
        take_away(model, names[:1])
        see()
        utils.set_z3_leaf_modules(model, [torch.nn.Module])
        take_away(model, names)
        see()
        utils.unset_z3_leaf_modules(model, [torch.nn.Module])
    return seen


def test_marks_of_leaf_modules_are_taken_away_as_they_were_made() -> None:
    assert ranks.alone(marks) == [
        *([True, True, False], [False, True, False], [False, False, True]),
        *([True, False, True], [False, False, True], [False, True, False]),
        *([False, True, False], [False, False, False], [True, False, True]),
    ]


# ---- Gathered before there is an engine ------------------------------------------------------------------------------


def early() -> dict:
    config = {key: value for key, value in configuration(3).items() if key != "optimizer"}
    inner = deepspeed.zero.Init(config_dict_or_path=config, mem_efficient_linear=False, dtype=None)
    with deepspeed.zero.Init(config_dict_or_path=config), inner:
        model = small()
    weight = model[0].weight
    status = [weight.ds_status]
    with deepspeed.zero.GatheredParameters(weight, modifier_rank=1):
        status.append(weight.ds_status)
        before = weight.detach().clone()
        if deepspeed.comm.get_rank() == 1:
            with torch.no_grad():
                weight.mul_(2)
    status.append(weight.ds_status)
    try:
        with deepspeed.zero.GatheredParameters([weight], modifier_rank=0):
            with torch.no_grad():
                weight.zero_()
            raise KeyError("mine")
    except KeyError:
        pass
    engine = deepspeed.initialize(model=model, config=configuration(3))[0]
    return {"status": [one.name for one in status], "before": before, "after": engine.full_parameter("0.weight")}


def in_a_group() -> dict:
    deepspeed.init_distributed("gloo")
    return early()


def test_parameters_of_init_are_gathered_and_written_before_there_is_an_engine() -> None:
    want = small()[0].weight.detach()
    for seen in ranks.run(2, in_a_group):
        assert seen["status"] == ["NOT_AVAILABLE", "AVAILABLE", "NOT_AVAILABLE"]
        twin.assert_same_bits(seen["before"], want, "gathered before there is an engine")
        twin.assert_same_bits(seen["after"], want * 2, "written before there is an engine")


def unmanaged() -> list[str]:
    config = {**configuration(2), "managed_gradient_accumulation": False}
    engine, _, _, _ = equigrad.deepspeed.initialize(model=torch.nn.Linear(4, 2), config=config)
    said = [engine.managed_gradient_accumulation(), engine.is_gradient_accumulation_boundary()]
    for call in (
        lambda: engine.set_gradient_accumulation_boundary(True),
        lambda: engine.coalesce_grad_reduction().__enter__(),
    ):
        with pytest.raises(AssertionError) as refused:
            call()
        said.append(str(refused.value))
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 4)).sum())
    engine.step()
    config["zero_optimization"] = {"stage": 1, "overlap_comm": True}
    with pytest.raises(AssertionError, match="overlap_comm only with ZeRO stage 2"):
        equigrad.deepspeed.initialize(model=torch.nn.Linear(4, 2), config=config)
    return [*said, engine.global_steps]


def test_where_the_caller_owns_the_boundary_deepspeed_s_refusals_hold() -> None:
    is_managed, is_boundary, boundary, coalesce, steps = ranks.alone(unmanaged)
    assert (is_managed, is_boundary, steps) == (False, False, 1)
    assert "set_gradient_accumulation_boundary() is not supported" in boundary
    assert "coalesce_grad_reduction is not supported" in coalesce


def old_forms() -> list[int]:
    stages = []
    for old in (True, False, None):
        config = {**configuration(0), "managed_gradient_accumulation": False, "zero_optimization": old}
        stages.append(equigrad.deepspeed.initialize(model=torch.nn.Linear(4, 2), config=config)[0].zero_optimization_stage())
    return stages


def test_true_in_place_of_zero_s_section_is_stage_1() -> None:
    """As read_zero_config_deprecated of DeepSpeed 0.19.8 reads it."""
    assert ranks.alone(old_forms) == [1, 0, 0]


COMMENTED = """{
  "train_micro_batch_size_per_gpu": 2, // of a rank
  "managed_gradient_accumulation": false, /* by "hand" */
  "zero_optimization": {"stage": 3, "leaf_module": {"names": []}},
  %s
}"""


def of_commented_texts() -> list:
    client, text = torch.optim.RMSprop, COMMENTED % '"optimizer": {"type": "SGD"} // https://a.b'
    engine = deepspeed.initialize(model=small(), optimizer=client, config=text)[0]
    with deepspeed.zero.Init(config=COMMENTED % '"gradient_clipping": 1.0'):
        model = torch.nn.Linear(4, 2)
    return [engine.managed_gradient_accumulation(), engine.is_managed, engine.optimizer_name(), model.weight.ds_status.name]


def test_a_configuration_may_have_comments() -> None:
    assert ranks.alone(of_commented_texts) == [False, False, "RMSprop", "NOT_AVAILABLE"]


def written(way: str) -> list[str]:
    """Without a modifier, on rank 1 alone; then the parameter is as it was."""
    deepspeed.init_distributed("gloo")
    with deepspeed.zero.Init():  # no configuration: stage 3
        model = small()
    weight, said = model[0].weight, []
    assert weight.ds_status == deepspeed.zero.ZeroParamStatus.NOT_AVAILABLE
    with deepspeed.zero.GatheredParameters(weight):
        before = weight.detach().clone()
    try:
        with deepspeed.zero.GatheredParameters([weight]):
            if deepspeed.comm.get_rank() == 1 and way == "operator":
                with torch.no_grad():
                    weight.add_(0.0)
            elif deepspeed.comm.get_rank() == 1:
                weight.data[-1, -1] = 7
    except deepspeed.Error as error:
        said.append(str(error))
    with deepspeed.zero.GatheredParameters(weight):
        twin.assert_same_bits(weight.detach(), before, "after the refused write")
    return said


@pytest.mark.parametrize("way", ["operator", "data"])
def test_a_write_without_a_modifier_is_told_on_every_rank(way: str) -> None:
    for said in ranks.run(2, written, way):
        assert len(said) == 1
        assert re.search(
            r"got an in-place modification of a parameter of shape \[6, 4\] on rank 1\. Give modifier_rank=", said[0]
        )


def numbered() -> list[int]:
    with deepspeed.zero.Init():
        model = small()
    found = [p.ds_id for p in model.parameters()]
    assert not hasattr(torch.nn.Parameter(torch.ones(1)), "ds_id")
    engine = make(3, model)
    assert found == [p.ds_id for p in engine.module.parameters()]
    return found


def test_parameters_have_one_number_from_their_making_on() -> None:
    found = ranks.alone(numbered)
    assert len(set(found)) == len(found)


# ---- What the caller counts ------------------------------------------------------------------------------------------


def samples() -> list[int]:
    engine = make(1, managed_gradient_accumulation=False)
    seen = []
    for count in (2, 5, 3):
        for step in range(count):
            engine.backward(engine(batch(0, step)).square().mean() / count, scale_wrt_gas=False)
        engine.step()
        seen.append(engine.global_samples)
    engine = make(1, gradient_accumulation_steps=2)
    for step in range(3):
        engine.backward(engine(batch(0, step)).square().mean())
        engine.step()
    return [*seen, engine.global_samples, engine.train_micro_batch_size_per_gpu()]


def test_samples_are_those_of_the_passes() -> None:
    *seen, managed, micro_batch = ranks.run(2, samples)[0]
    assert seen == [2 * micro_batch * passes for passes in (2, 7, 10)]
    assert managed == 2 * micro_batch * 3


def momenta() -> list:
    cycle = {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2, "cycle_min_mom": 0.08, "cycle_max_mom": 0.09}
    cycle |= {"cycle_first_step_size": 2, "decay_step_size": 2}
    engine = make(1, optimizer={"type": "Adam", "params": {"lr": 1e-3}}, scheduler={"type": "OneCycle", "params": cycle})
    seen = []
    for step in range(4):
        seen.append(engine.lr_scheduler.get_mom())
        engine.backward(engine(batch(0, step)).square().mean())
        engine.step()
    return seen


def test_a_scheduler_tells_the_momentum_of_the_next_update() -> None:
    seen = ranks.alone(momenta)
    assert [round(one[0][0], 6) for one in seen] == [0.08, 0.085, 0.08, 0.085]
    assert {one[0][1] for one in seen} == {0.999}
