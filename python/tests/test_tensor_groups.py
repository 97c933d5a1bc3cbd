"""Tensor groups in Python: what their ranks must have in common is checked, what cannot be split is refused by name, sizes that
disagree are shown, and whole tensors go out and come in."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

import equigrad
import ranks
import tensor_models as models
import twin
from equigrad import _core, deepspeed
from tensor_runs import SPECS, configuration, disturbed, errors_of, trained, without_optimizer

# ---- What the ranks of a group must have in common -------------------------------------------------------------------


def other_data() -> list[str]:
    engine = equigrad.initialize(model=models.Decoder(), config=configuration(2))[0]
    return errors_of(lambda: models.decoder_loss(engine, 0, engine.global_rank, 0))


def test_other_data_within_a_tensor_group_is_an_error_that_names_the_ranks() -> None:
    said = ranks.run(4, other_data)
    assert "on ranks 0 and 1," in said[0][0] and "other data on 1 than on 0" in said[1][0], said
    assert "on ranks 2 and 3," in said[2][0] and "other data on 3 than on 2" in said[3][0], said


def unsummed() -> list[str]:
    from equigrad import _tensor_parallel

    _tensor_parallel.sum_gradients = lambda *_: None
    engine = equigrad.initialize(model=models.Decoder(), config=configuration(2))[0]
    engine.backward(models.decoder_loss(engine, 0, 0, 0))
    return errors_of(engine.step)


class Noise(torch.nn.Module):
    """Drawn by a generator of its own, on each rank by another one."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden * torch.rand(hidden.shape, generator=torch.Generator().manual_seed(int(os.environ["RANK"])))


def seeds() -> list[str]:
    model = models.Decoder()
    model.layers[0].second_norm = torch.nn.Sequential(model.layers[0].second_norm, Noise())
    engine = equigrad.initialize(model=model, config=configuration(2))[0]
    engine.backward(models.decoder_loss(engine, 0, 0, 0))
    return errors_of(engine.step)


@pytest.mark.parametrize(("call", "name"), [(unsummed, "layers.0.self_attn.q_norm.weight"), (seeds, "")])
def test_other_gradients_of_what_is_whole_are_an_error(call: Any, name: str) -> None:
    for (said,) in ranks.run(2, call):
        assert f'one gradient of "{name}' in said and "ranks 0 and 1" in said and "than on 0" in said, said


class OwnNames(models.Decoder):
    """Norms of heads under a name that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        for layer in self.layers:
            attention = layer.self_attn
            attention.head_norm = attention.q_norm
            del attention._modules["q_norm"]
            attention.__dict__["q_norm"] = attention.head_norm


def own_names(section: dict[str, Any]) -> list[str]:
    engine = equigrad.initialize(model=OwnNames(), config=configuration(2, 0, section))[0]
    engine.backward(models.decoder_loss(engine, 0, 0, 0))
    return errors_of(engine.step)


def test_a_spec_says_whose_gradient_is_summed() -> None:
    summed = {"patterns": [".*head_norm.weight", ".*k_norm.weight"], "partition_type": "skip", "grad_allreduce": True}
    config = {"partition_config": {"use_default_specs": False, "layer_specs": [*SPECS, summed]}}
    assert "head_norm.weight" in ranks.run(2, own_names, {})[0][0]
    assert ranks.run(2, own_names, config) == [[""], [""]]


# ---- What cannot be split, by name -----------------------------------------------------------------------------------


class Plain(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8, 4)


class Around(models.Decoder):
    """Uses the weight of a split module beside it."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mlp = self.layers[1].mlp
        mlp.down_proj.forward = lambda x: _core.row_linear(x, mlp.down_proj.weight, None, None)
        return super().forward(tokens)


def refused() -> list[str]:
    def make(model: torch.nn.Module | None = None, tensor: int = 2, stage: int = 0, **section: Any) -> Any:
        return lambda: equigrad.initialize(model=model or models.Decoder(), config=configuration(tensor, stage, section))

    def specs(*given: dict[str, Any], model: torch.nn.Module | None = None) -> Any:
        return make(model, partition_config={"use_default_specs": False, "layer_specs": list(given)})

    odd = models.Decoder()
    odd.config.num_attention_heads, odd.config.num_key_value_heads = 9, 3
    capped = models.Decoder()
    capped.embed_tokens.max_norm = 1.0
    exact = models.Decoder()
    exact.config.pretraining_tp, exact.config.slow_but_exact = 2, True
    once = models.Decoder()
    make(once)()
    used = models.Decoder()
    trained_before = torch.optim.SGD(used.parameters(), lr=0.1, momentum=0.9)
    return errors_of(
        make(odd),
        specs({"patterns": ["nothing.*"]}),
        specs(*SPECS, {"patterns": [".*o_proj.weight"], "partition_type": "skip"}),
        make(Plain()),
        make(stage=3),
        make(preset_model="bloom"),
        specs(*SPECS, model=capped),
        make(exact),
        make(once),
        lambda: equigrad.initialize(
            model=used, optimizer=_stepped(trained_before, used), config=without_optimizer(configuration(2))
        ),
    )


def _stepped(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> torch.optim.Optimizer:
    models.decoder_loss(model, 0, 0, 0).backward()
    optimizer.step()
    return optimizer


REFUSED = [
    r"layers\.\d\.self_attn\.qkv_proj.*heads.*9",
    r'layer_specs\[0\].*"nothing\.\*"',
    r"o_proj: expected one spec, got two.*layer_specs\[0\].*layer_specs\[5\]",
    "expected modules to split, got none in a Plain",
    "got stage 3",
    'preset "bloom" fits',
    "embed_tokens: expected an embedding without max_norm, got 1.0",
    "slow_but_exact",
    r'whose "layers\.0\.\S+" was split for another engine',
    "optimizer that has not stepped",
]


def test_what_cannot_be_split_is_refused_by_name() -> None:
    for said in ranks.run(2, refused):
        assert len(said) == len(REFUSED)
        for text, wanted in zip(said, REFUSED, strict=True):
            assert re.search(wanted, text) and "expected" in text and "got" in text, (wanted, text)


def around() -> list[str]:
    engine = equigrad.initialize(model=Around(), config=configuration(2))[0]
    loss = models.decoder_loss(engine, 0, 0, 0)
    return errors_of(lambda: engine.backward(loss))


def test_a_weight_that_is_used_without_its_module_is_an_error() -> None:
    for (said,) in ranks.run(2, around):
        assert "layers.1.mlp.down_proj: expected its forward to be called" in said, said


# ---- Who says how large the group is ---------------------------------------------------------------------------------


class Mpu:
    """Of Megatron's functions; `is_strided`: tensor ranks that are no neighbours."""

    def __init__(self, size: int, is_strided: bool = False) -> None:
        world, self.size = dist.get_world_size(), size
        near = [list(range(first, first + size)) for first in range(0, world, size)]
        far = [list(range(first, world, size)) for first in range(size)]
        tensor, data = (far, near) if is_strided else (near, far)
        self.tensor = next(group for group in [(dist.new_group(one), one) for one in tensor] if dist.get_rank() in group[1])
        self.data = next(group for group in [(dist.new_group(one), one) for one in data] if dist.get_rank() in group[1])

    def get_tensor_model_parallel_world_size(self) -> int:
        return self.size

    def get_tensor_model_parallel_group(self) -> Any:
        return self.tensor[0]

    def get_data_parallel_group(self) -> Any:
        return self.data[0]


class OldMpu:
    def get_model_parallel_world_size(self) -> int:
        return 2

    def get_model_parallel_rank(self) -> int:
        return int(os.environ["RANK"]) % 2


def sized() -> Any:
    """Texts of errors, then digests that must all be the same."""
    equigrad.init_distributed("gloo")
    from torch.distributed.device_mesh import init_device_mesh

    mpu, far = Mpu(2), Mpu(2, is_strided=True)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    unnamed = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))

    def make(tensor: int | None, model: torch.nn.Module | None = None, **more: Any) -> Any:
        config = configuration(tensor or 1)
        if tensor is None:
            del config["tensor_parallel"]
        return lambda: equigrad.initialize(model=disturbed(model or models.Decoder()), config=config, **more)[0]

    def recorded(size: int, dtype: torch.dtype = torch.float32, **more: Any) -> torch.nn.Module:
        deepspeed.set_autotp_mode(training=True)
        return deepspeed.tp_model_init(models.Decoder(), size, dtype, **more)

    texts = errors_of(
        make(4, mpu=mpu),
        make(2, mpu=far),
        make(None, mpu=mpu),
        make(4, mesh_device=mesh),
        make(2, mesh_device=unnamed),
        make(4, recorded(2)),
        make(None, recorded(2, torch.bfloat16)),
        make(2, recorded(2, tp_group=mpu.tensor[0]), mpu=mpu),
        make(2, recorded(2, tp_group=far.tensor[0])),
        lambda: recorded(2, config={"tensor_parallel": {"autotp_size": 4}}),
    )
    empty = configuration(1)
    empty["tensor_parallel"] = {}
    ways = [
        make(2),
        make(2, mpu=mpu),
        make(2, mpu=OldMpu()),
        make(2, mesh_device=mesh),
        lambda: equigrad.initialize(model=disturbed(models.Decoder()), config=empty, mpu=mpu)[0],
        make(None, recorded(2)),
        make(None, recorded(2, tp_group=mpu.tensor[0])),
        make(2, recorded(2), mpu=mpu),
    ]
    digests = []
    for way in ways:
        engine = way()
        assert (engine.dp_world_size, engine.data_parallel_rank) == (2, engine.global_rank // 2)
        digests.append(trained(engine, models.decoder_loss, 1)["digest"])
        engine.destroy()
    return texts, digests


SIZED = [
    r"autotp_size\] expected one value, got 2 by mpu and 4 by the configuration",
    r"mpu's tensor group to be \[0, 1\] on rank 0, got \[0, 2\]",
    r'"autotp_size": 2\}.*beside mpu',
    r"autotp_size\] expected one value, got 2 by mesh_device and 4 by the configuration",
    r"a dimension \"tp\".*got \['a', 'b'\]",
    r"autotp_size\] expected one value, got 2 by tp_model_init and 4 by the configuration",
    'tensor_parallel.dtype.*fp32.*got "bf16"',
    "tp_model_init provided tp_group",
    r"tp_group to be \[0, 1\] on rank 0, got \[0, 2\]",
    r"autotp_size\] expected one value, got 2 by its arguments and 4 by its config",
]


def test_sizes_from_mpu_from_a_device_mesh_and_from_the_older_way() -> None:
    outcomes = ranks.run(4, sized)
    for text, wanted in zip(outcomes[0][0], SIZED, strict=True):
        assert re.search(wanted, text), (wanted, text)
    assert len({digest for _, digests in outcomes for digest in digests}) == 1


# ---- Out and in again ------------------------------------------------------------------------------------------------


def exported(folder: str) -> Any:
    engine = equigrad.initialize(model=disturbed(models.Decoder()), config=configuration(2, 2))[0]
    before = engine.module_state_dict()
    engine.save_16bit_model(folder, "model.bin")
    engine.save_16bit_model(folder, "model.safetensors")
    trained(engine, models.decoder_loss, 1)
    engine.load_module_state_dict({"module": before})
    again = engine.module_state_dict()
    errors = errors_of(
        lambda: engine.load_module_state_dict({"module": engine.module.state_dict()}),
        lambda: engine.module_state_dict(keep_vars=True),
    )
    return dict(before), dict(again), errors, repr(engine.module), [n for n, _ in engine.module.named_parameters()]


def test_whole_tensors_go_out_and_come_in(tmp_path: Any) -> None:
    outcomes = ranks.run(4, exported, str(tmp_path))
    model = models.Decoder()
    saved = torch.load(tmp_path / "model.bin")
    for before, again, errors, shown, names in outcomes:
        assert names == [n for n, _ in model.named_parameters()]
        assert "qkv_proj): Linear(in_features=24, out_features=32, bias=True)" in shown
        assert list(before) == list(model.state_dict()) == list(saved)
        for name, value in model.state_dict().items():
            for got in (before[name], again[name], saved[name]):
                twin.assert_same_bits(got, value, name)
        wanted = ["of shape", "keep_vars"]
        assert all(word in text for word, text in zip(wanted, errors, strict=True)), errors
    header = (tmp_path / "model.safetensors").read_bytes()[8:4000].decode(errors="replace")
    assert '"layers.0.self_attn.qkv_proj.weight":{"dtype":"F32","shape":[64,24]' in header


# ---- Whole parameters for a while ------------------------------------------------------------------------------------

PACKED = "layers.0.self_attn.qkv_proj.weight"


def written(precision: str, modifier: int) -> Any:
    """What a scope shows, and what the model and its masters are after it and after a step."""
    more = {} if precision == "fp32" else {precision: {"enabled": True}}
    engine = equigrad.initialize(model=disturbed(models.Decoder()), config=configuration(2, 1, **more))[0]
    trained(engine, models.decoder_loss, 1)  # so masters are no longer what the model's type has room for
    names = [PACKED, "norm.weight", "scale"]
    parameters = [engine.module.get_parameter(name) for name in names]
    parts = [one.shape for one in parameters]
    before = {name: value.clone() for name, value in engine.module_state_dict().items()}
    masters = [equigrad.utils.safe_get_full_fp32_param(one) for one in parameters[:2]]
    with equigrad.zero.GatheredParameters(parameters, modifier_rank=modifier), torch.no_grad():
        shown = [one.clone() for one in parameters]
        refused = errors_of(engine.step, lambda: engine.module(torch.zeros(1, 4, dtype=torch.int64)))
        if engine.global_rank == modifier:
            parameters[0][3] = 0.5  # one row of a packed weight
            parameters[2].mul_(2)
    assert [one.shape for one in parameters] == parts
    after = dict(engine.module_state_dict())
    changed = [equigrad.utils.safe_get_full_fp32_param(one) for one in parameters[:2]]
    same = [int(twin_bits(a).eq(twin_bits(b)).sum()) for a, b in zip(masters, changed, strict=True)]
    sizes = [one.numel() for one in masters]
    trained(engine, models.decoder_loss, 1)
    return before, after, shown, refused, same, sizes


def twin_bits(values: torch.Tensor) -> torch.Tensor:
    return values.contiguous().view(torch.int32)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_whole_parameters_are_read_and_written(precision: str) -> None:
    outcomes = ranks.run(4, written, precision, 3)
    changed = 0
    for before, after, shown, refused, same, sizes in outcomes:
        for name, got in zip([PACKED, "norm.weight", "scale"], shown, strict=True):
            twin.assert_same_bits(got, before[name], name)
        assert "open, in which split" in refused[0] and "End the scope first" in refused[1], refused
        want = {name: value.clone() for name, value in before.items()}
        want[PACKED][3] = 0.5
        want["scale"] *= 2
        for name, value in want.items():
            twin.assert_same_bits(after[name], value, name)
        assert same[1] == sizes[1]  # nobody wrote it, so its master keeps every bit
        changed += sizes[0] - same[0]
    assert changed == 2 * models.WIDTH  # one row, on one tensor rank of each of two data ranks, some of its elements on each


def wrong_scopes() -> list[str]:
    engine = equigrad.initialize(model=disturbed(models.Decoder()), config=configuration(2, 1))[0]
    weight = engine.module.get_parameter(PACKED)
    before = weight.detach().clone()

    def scope(modifier: int | None, writer: int | None, raises: bool = False) -> None:
        with equigrad.zero.GatheredParameters([weight], modifier_rank=modifier), torch.no_grad():
            if engine.global_rank == writer:
                weight.add_(1)
            if raises:
                raise equigrad.Error("the caller's own")

    said = errors_of(
        lambda: scope(None, 1),
        lambda: scope(0, 1),
        lambda: scope(0, 0, raises=True),
        lambda: scope(9, 0),
        lambda: scope(engine.global_rank, None),
    )
    with equigrad.zero.GatheredParameters(weight):
        said += errors_of(lambda: scope(0, None))
    twin.assert_same_bits(weight, before, "after scopes that keep nothing")
    trained(engine, models.decoder_loss, 1)
    return said


def test_wrong_scopes_of_whole_parameters_keep_nothing() -> None:
    wanted = [
        f'got a write to "{PACKED}" on rank 1',
        "expected writes on rank 0 only",
        "the caller's own",
        "from 0 to 1, got 9",
        "the same parameters and modifier rank",
        "that no scope holds",
    ]
    for said in ranks.run(2, wrong_scopes):
        assert all(text in one for text, one in zip(wanted, said, strict=True)), said
