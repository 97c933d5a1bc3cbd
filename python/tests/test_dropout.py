"""Dropout on ranks that share a model: gradients are those of one process that draws the same numbers, bit for bit; also where
activations are computed again and where a run is resumed. Planted faults are seen."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

import dropout_models as models
import equigrad
import random_twin
import ranks
import tensor_models
import twin
from equigrad import _core
from tensor_runs import configuration, digest, errors_of, whole

STEPS, PASSES, LR, SEED = 2, 2, 0.05, 100


class Played(NamedTuple):
    history: list[dict[str, Any]]  # gradients of every step, whole
    state: torch.Tensor  # of torch's generator, at the end


def played(kind: str, tensor: int, stage: int, how: str, folder: str = "") -> Played:
    """how: "recomputed" or "reentrant", and "resumed" before the last step, or several of them."""
    engine = engine_of(kind, tensor, stage, how)
    torch.manual_seed(SEED + engine.data_parallel_rank)
    history = []
    for step in range(STEPS):
        if "resumed" in how and step == STEPS - 1:
            engine.save_checkpoint(folder)
            engine.destroy()
            engine = engine_of(kind, tensor, stage, how)
            torch.manual_seed(0)
            assert engine.load_checkpoint(folder)[0] is not None
        for k in range(PASSES):
            engine.backward(models.loss_of(kind, engine, step, engine.data_parallel_rank, k))
            if k == PASSES - 1:
                read = equigrad.utils.safe_get_full_grad
                history.append({n: whole(engine, p, read(p)) for n, p in engine.module.named_parameters()})
            engine.step()
    return Played(history, torch.get_rng_state())


def engine_of(kind: str, tensor: int, stage: int, how: str) -> equigrad.Engine:
    model = models.make(kind)
    if "recomputed" in how or "reentrant" in how:
        models.recompute(model, use_reentrant="reentrant" in how)
    return equigrad.initialize(model=model, config=configuration(tensor, stage))[0]


def twin_of(kind: str, data: int, tensor: int, stage: int) -> Played:
    group = random_twin.Group(tensor)
    states = []
    for rank in range(data):
        torch.manual_seed(SEED + rank)
        states.append(torch.get_rng_state())

    def make() -> nn.Module:
        model = models.make(kind)
        models.split(kind, model, group)
        return model

    def loss_of(model: nn.Module, step: int, rank: int, k: int) -> torch.Tensor:
        torch.set_rng_state(states[rank])
        with group.dropping():
            loss = models.loss_of(kind, model, step, rank, k)
        states[rank] = torch.get_rng_state()
        return loss

    return Played(twin.train(make, loss_of, data, stage, STEPS, PASSES, LR)[0], states[0])


wanted = functools.cache(lambda *of: ranks.alone(twin_of, *of))


def assert_same(got: list[Played], want: Played) -> None:
    for rank, one in enumerate(got):
        for step, (gradients, wanted_ones) in enumerate(zip(one.history, want.history, strict=True)):
            assert gradients.keys() == wanted_ones.keys()
            for name, gradient in wanted_ones.items():
                twin.assert_same_bits(gradients[name], gradient, f"rank {rank}, step {step + 1}, gradient of {name}")
    twin.assert_same_bits(got[0].state, want.state, "torch's generator on rank 0")


WAYS = ["", "recomputed", "reentrant", "resumed"]


@pytest.mark.parametrize("kind", models.KINDS)
@pytest.mark.parametrize(("data", "tensor", "how"), [(1, 2, how) for how in WAYS] + [(2, 2, "recomputed, resumed")])
def test_a_tensor_group_draws_as_one_process(kind: str, data: int, tensor: int, how: str, tmp_path: Any) -> None:
    models.require(kind)
    got = ranks.run(data * tensor, played, kind, tensor, 1, how, str(tmp_path))
    assert_same(got, wanted(kind, data, tensor, 1))


def test_four_ranks_of_a_tensor_group() -> None:
    assert_same(ranks.run(4, played, "own", 4, 2, ""), wanted("own", 1, 4, 2))


# ---- 16 bits ---------------------------------------------------------------------------------------------------------

NARROW = {"bf16": {"enabled": True}, "fp16": {"enabled": True, "loss_scale": 1}}


def played_narrow(kind: str, tensor: int, dtype: str) -> list[dict[str, Any]]:
    more = {dtype: NARROW[dtype], "data_types": {"grad_accum_dtype": "fp32"}}
    engine = equigrad.initialize(model=models.make(kind), config=configuration(tensor, 2, **more))[0]
    torch.manual_seed(SEED)
    for k in range(PASSES):
        engine.backward(models.loss_of(kind, engine, 0, 0, k))
        if k < PASSES - 1:
            engine.step()
    read = equigrad.utils.safe_get_full_grad
    return [{n: whole(engine, p, read(p)) for n, p in engine.module.named_parameters()}]


def twin_narrow(kind: str, tensor: int, dtype: str) -> list[Any]:
    group = random_twin.Group(tensor)
    model = models.make(kind)
    for parameter in model.parameters():  # buffers, as a rotary embedding's frequencies, keep their type
        parameter.data = parameter.to({"bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
    models.split(kind, model, group)
    torch.manual_seed(SEED)
    passes = []
    for k in range(PASSES):
        with group.dropping():
            loss = models.loss_of(kind, model, 0, 0, k)
        passes.append(twin.local_gradients(model, loss))
    in_fp32 = [{n: None if g is None else g.float() for n, g in one.items()} for one in passes]
    return [twin.averaged([in_fp32], 2)]


def assert_same_narrow(got: list[dict[str, Any]], want: list[Any]) -> None:
    compared = 0
    for name, value in want[0].items():
        if value is not None:
            twin.assert_same_bits(got[0][name].float(), value, name)
            compared += value.numel()
    assert compared > 0


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", models.KINDS)
def test_a_tensor_group_draws_as_one_process_in_16_bits(kind: str, dtype: str) -> None:
    models.require(kind)
    got = ranks.run(2, played_narrow, kind, 2, dtype)
    assert_same_narrow(got[0], ranks.alone(twin_narrow, kind, 2, dtype))
    other = ranks.alone(twin_narrow, kind, 1, dtype)  # its masks are other ones
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same_narrow(got[0], other)


# ---- Planted faults --------------------------------------------------------------------------------------------------


def one_mask_for_all_parts() -> None:
    _core.enter_split_random = lambda *_: False


def not_put_back() -> None:
    _core.leave_split_random = lambda _: True
    _core.abandon_split_random = lambda _: False


def whole_within_the_region() -> None:
    """Left at the end of a call, and not at the row."""
    _core.leave_split_random = lambda _: True


def by_how_often(entered: list[None] = []) -> None:  # noqa: B006  its state
    own = _core.enter_split_random

    def enter(*given: Any) -> bool:
        entered.append(None)
        torch.rand(len(entered))  # as of a stream that goes on, whatever is restored
        return own(*given)

    _core.enter_split_random = enter


def played_planted(plant: Callable[[], None], how: str) -> Played:
    plant()
    return played("own", 2, 1, how)


@pytest.mark.parametrize(
    ("plant", "how", "seen"),
    [
        (one_mask_for_all_parts, "", "elements differ"),
        (not_put_back, "", "expected one gradient of"),
        (whole_within_the_region, "", "expected one gradient of"),
        (by_how_often, "recomputed", "elements differ"),
        (by_how_often, "reentrant", "elements differ"),
    ],
)
def test_planted_faults_are_seen(plant: Any, how: str, seen: str) -> None:
    with pytest.raises(AssertionError, match=seen):
        assert_same(ranks.run(2, played_planted, plant, how), wanted("own", 1, 2, 1))


def test_a_recomputation_that_draws_anew_differs_from_itself() -> None:
    plain, again = (ranks.run(2, played_planted, by_how_often, how)[0].history for how in ("", "recomputed"))
    assert digest(list(plain[0].values())) != digest(list(again[0].values()))


# ---- What is drawn elsewhere -----------------------------------------------------------------------------------------


def effects() -> dict[str, Any]:
    engine = engine_of("own", 2, 1, "")
    states = {}

    def note(name: str) -> None:
        states[name] = torch.get_rng_state()

    def fail(*_: Any) -> None:
        raise RuntimeError("of the model")

    def attempt(call: Callable[[], Any]) -> None:
        with pytest.raises(RuntimeError, match="of the model"):
            call()
        note("after an exception")

    torch.manual_seed(SEED)
    note("before")
    engine.eval()
    models.loss_of("own", engine, 0, 0, 0)
    note("evaluated")
    engine.train()
    layer = engine.module.layers[0]
    hook = layer.act.register_forward_pre_hook(fail)
    attempt(lambda: layer(torch.randn(2, 6, models.WIDTH, generator=torch.Generator().manual_seed(1))))
    hook.remove()
    states["is in a region"] = _core.leave_split_random(_core.RandomParts.Tensor)
    return states


def test_an_evaluation_leaves_no_trace_and_an_exception_no_region() -> None:
    first, second = ranks.run(2, effects)
    assert torch.equal(first["before"], first["evaluated"])
    assert torch.equal(first["after an exception"], second["after an exception"])
    assert not torch.equal(first["before"], first["after an exception"])
    assert not first["is in a region"] and not second["is in a region"]


def seeded(tensor: int, whole_rate: float, attention_rate: float) -> str:
    """Every rank by its own number."""
    model = models.Own()
    model.set_rates(whole_rate, attention_rate)
    engine = equigrad.initialize(model=model, config=configuration(tensor))[0]
    torch.manual_seed(engine.global_rank)
    return errors_of(lambda: models.loss_of("own", engine, 0, engine.data_parallel_rank, 0))[0]


def test_ranks_of_other_seeds_are_named() -> None:
    said = ranks.run(4, seeded, 2, 0.25, 0.25)
    for rank, text in enumerate(said):
        first = rank - rank % 2
        assert f"random numbers on ranks {first}, {first + 1}, which are one tensor group" in text
        assert f"got another one on rank {first + 1} than on {first}" in text and "data_parallel_rank" in text
    assert ranks.run(4, seeded, 2, 0.0, 0.25) == [""] * 4, "nothing is drawn for what all have"
    assert ranks.run(4, seeded, 2, 0.0, 0.0) == [""] * 4


class BehindTheHead(tensor_models.Decoder):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return F.dropout(super().forward(tokens), 0.25, self.training)


def behind_the_head() -> torch.Tensor:
    section = {"vocab_parallel_lm_head": True}
    engine = equigrad.initialize(model=BehindTheHead(), config=configuration(2, section=section))[0]
    assert "lm_head  column" in engine.tensor_parallel_plan
    torch.manual_seed(SEED)
    return engine(tensor_models.tokens(0, 0, 0)).detach()


def test_what_is_gathered_has_one_mask() -> None:
    first, second = ranks.run(2, behind_the_head)
    assert torch.equal(first, second) and int((first == 0).sum()) > 0


def drifted(whole_rate: float) -> list[str]:
    """Rank 1 draws by itself between two passes."""
    model = models.Own()
    model.set_rates(whole_rate, 0.25)
    engine = equigrad.initialize(model=model, config=configuration(2, gradient_accumulation_steps=1))[0]
    torch.manual_seed(SEED)
    said = []
    for step in range(3):
        said += errors_of(lambda step=step: engine.backward(models.loss_of("own", engine, step, 0, 0)))
        if not said[-1]:
            engine.step()
        if engine.global_rank == step == 1:
            torch.rand(1)
    return said


def test_a_rank_that_draws_alone_is_named_at_the_next_pass() -> None:
    for said in ranks.run(2, drifted, 0.25):
        assert said[:2] == ["", ""] and "got another one on rank 1 than on 0" in said[2]
    assert ranks.run(2, drifted, 0.0) == [["", "", ""]] * 2, "nothing is drawn for what all have"


class TwoRows(nn.Module):
    """Both rows are called behind both columns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleDict({n: nn.Linear(8, 8) for n in ("q_proj", "o_proj", "up_proj", "down_proj")})]
        )
        self.rate = 0.5

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        layer = self.layers[0]
        heads, inner = layer["q_proj"](hidden), layer["up_proj"](hidden)
        output = layer["o_proj"](heads)
        return output + layer["down_proj"](F.dropout(inner, self.rate, self.training))


class Within(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.body(hidden)


def two_rows(is_within: bool) -> list[str]:
    body = TwoRows()
    engine = equigrad.initialize(model=Within(body) if is_within else body, config=configuration(2))[0]
    torch.manual_seed(1)
    said = errors_of(lambda: engine(torch.ones(2, 8)))
    body.rate = 0.0
    return [*said, *errors_of(lambda: engine(torch.ones(2, 8)))]


@pytest.mark.parametrize("is_within", [False, True])
def test_draws_between_two_rows_are_refused(is_within: bool) -> None:
    for said in ranks.run(2, two_rows, is_within):
        assert "layers.0.down_proj: expected random numbers to be drawn between a column and the row behind it" in said[0]
        assert said[1] == ""


def behind_a_lone_column(is_called: bool) -> list[torch.Tensor]:
    engine = engine_of("own", 2, 1, "")
    torch.manual_seed(SEED)
    if is_called:
        engine.module.layers[0].up_proj(torch.ones(1, models.WIDTH))
    return [models.loss_of("own", engine, 0, 0, 0).detach(), torch.get_rng_state()]


def test_a_column_that_is_called_by_itself_leaves_no_region() -> None:
    alone, plain = (ranks.run(2, behind_a_lone_column, is_called) for is_called in (True, False))
    assert [digest(one) for one in alone] == [digest(one) for one in plain]


class Gathered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config, self.proj = SimpleNamespace(model_type="own"), nn.Linear(8, 8)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.dropout(self.proj(hidden), 0.5, self.training)


def gathered() -> torch.Tensor:
    spec = {"patterns": ["proj.weight"], "partition_type": "column", "gather_output": True}
    section = {"partition_config": {"use_default_specs": False, "layer_specs": [spec]}}
    engine = equigrad.initialize(model=Gathered(), config=configuration(2, 0, section))[0]
    assert list(engine.module.proj.weight.shape) == [4, 8]
    torch.manual_seed(SEED)
    return engine(torch.ones(4, 8)) == 0


def test_what_a_column_gathers_is_whole() -> None:
    torch.manual_seed(SEED)
    want = F.dropout(torch.ones(4, 8), 0.5) == 0
    for got in ranks.run(2, gathered):
        assert torch.equal(got, want)


class Partly(nn.Module):
    """Computes again from behind a column to behind a row, or from a column to before the row."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.ModuleDict({n: nn.Linear(8, 8) for n in ("up_proj", "down_proj")}) for _ in range(2)]
        )
        self.how = ""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        again = functools.partial(torch.utils.checkpoint.checkpoint, use_reentrant=False)
        for layer in self.layers:
            if self.how == "across":
                hidden = again(lambda inner, down=layer["down_proj"]: down(F.dropout(inner)), layer["up_proj"](hidden))
            elif self.how == "before":
                hidden = layer["down_proj"](again(lambda x, up=layer["up_proj"]: F.dropout(up(x)), hidden))
            else:
                hidden = layer["down_proj"](F.dropout(layer["up_proj"](hidden)))
        return hidden


def partly(how: str) -> tuple[str, Any]:
    torch.manual_seed(5)
    engine = equigrad.initialize(model=Partly(), config=configuration(2, gradient_accumulation_steps=1))[0]
    engine.module.how = how
    torch.manual_seed(1)
    said = errors_of(lambda: engine.backward(engine(torch.ones(2, 8)).square().sum()))[0]
    read = equigrad.utils.safe_get_full_grad
    return said, None if said else [read(p) for p in engine.module.parameters()] + [torch.get_rng_state()]


def test_a_part_of_a_region_that_is_computed_again() -> None:
    plain, before, across = (ranks.run(2, partly, how) for how in ("", "before", "across"))
    for (_, got), (said, want) in zip(before, plain, strict=True):
        assert said == "" and digest(got) == digest(want)
    assert all("from behind a column-parallel layer to behind a row-parallel one" in said for said, _ in across)


def test_the_seed_of_a_region() -> None:
    for kind, of in ((random_twin.TENSOR, _core.RandomParts.Tensor), (random_twin.SEQUENCE, _core.RandomParts.Sequence)):
        for drawn in (0, 1, 2**63 + 12345, 2**64 - 1):
            for rank in (0, 1, 3, 4095):
                assert _core.split_seed(drawn, rank, of) == random_twin.seed(drawn, rank, kind)
