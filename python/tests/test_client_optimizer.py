"""Optimizers and schedulers of torch under the engine, bit for bit as on whole parameters; and what is refused."""

from __future__ import annotations

import copy
import json
import traceback
import warnings

import pytest
import torch

import equigrad
import equigrad.deepspeed
import models
import optimizers
import ranks
import twin

STEPS, PASSES = 5, 2


def configuration(stage: int, **more) -> dict:
    return {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": PASSES,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0, "reduce_bucket_size": 150},
        **more,
    }


def configured(stage: int, kind: str = "AdamW", **params) -> dict:
    return configuration(stage, optimizer={"type": kind, "params": {"lr": 0.01, **params}})


def train(engine: equigrad.Engine, steps: int, first: int = 0, passes: int = PASSES) -> None:
    for step in range(first, first + steps):
        for micro_batch in range(passes):
            engine.backward(models.mixed_loss(engine, step, engine.global_rank, micro_batch))
            engine.step()


def parameters(engine: equigrad.Engine) -> dict[str, torch.Tensor]:
    return {name: engine.full_parameter(name) for name, _ in engine.module.named_parameters()}


def assert_equal(got: dict[str, torch.Tensor], want: dict[str, torch.Tensor], what: str) -> None:
    assert got.keys() == want.keys(), what
    for name, value in got.items():
        twin.assert_same_bits(value, want[name], f"{what}, {name}")


# ---- torch's optimizers on slices ------------------------------------------------------------------------------------


def on_slices(stage: int, names: dict[str, dict[str, list[str]]]) -> dict:
    seen = {}
    for kind, states in names.items():
        model = models.Mixed()
        client = optimizers.KINDS[kind](optimizers.groups(model))
        engine, optimizer, _, _ = equigrad.initialize(model=model, optimizer=client, config=configuration(stage))
        assert optimizer.param_groups is client.param_groups
        assert all(p.dim() == 1 and p.dtype == torch.float32 for group in client.param_groups for p in group["params"])
        train(engine, STEPS)
        held = dict(engine.module.named_parameters())
        read = {
            name: {key: equigrad.utils.safe_get_full_optimizer_state(held[name], key) for key in keys}
            for name, keys in states.items()
        }
        seen[kind] = (parameters(engine), read, engine.get_lr(), engine.bytes_held()["optimizer_state"][0])
        engine.destroy()
    return seen


def on_whole_parameters(world: int, stage: int) -> dict:
    return {kind: optimizers.on_whole_parameters(kind, world, stage, STEPS, PASSES) for kind in optimizers.KINDS}


@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_slices_get_the_bits_of_whole_parameters(world: int, stage: int) -> None:
    want = ranks.alone(on_whole_parameters, world, stage)
    names = {kind: {name: list(states) for name, states in all_of.items()} for kind, (_, all_of) in want.items()}
    assert names["NAdam"]["norm.weight"] == ["exp_avg", "exp_avg_sq"] and names["Signs"]["norm.weight"] == ["mean"]
    by_rank = ranks.run(world, on_slices, stage, {kind: {n: s for n, s in of.items() if s} for kind, of in names.items()})
    for rank, seen in enumerate(by_rank):
        for kind, (whole, states) in want.items():
            got, read, lr, _ = seen[kind]
            what = f"{kind}, rank {rank}"
            assert_equal(got, whole, what)
            for name, of in read.items():
                assert_equal(of, states[name], f"{what}, states of {name}")
            assert lr == [optimizers.KINDS[kind](optimizers.groups(models.Mixed())).param_groups[0]["lr"], 0.003]
    numel = sum(one.numel() for of in want["Signs"][1].values() for one in of.values())
    assert sum(seen["Signs"][3] for seen in by_rank) == 4 * numel * (world if stage == 0 else 1)


def made_by_a_callable(given) -> tuple:
    model = models.Mixed()
    seen = []

    def call(given_parameters):
        seen.extend(given_parameters)
        return torch.optim.Adam(seen, lr=0.01)

    engine = equigrad.initialize(model=model, optimizer=call if given is None else given, config=configuration(1))[0]
    train(engine, 2)
    return [p.requires_grad for p in seen], engine.full_parameter("norm.weight")


def test_a_callable_or_a_class_makes_the_optimizer() -> None:
    lent, from_callable = ranks.alone(made_by_a_callable, None)
    assert len(lent) == 11 and all(lent)
    _, from_class = ranks.alone(made_by_a_callable, torch.optim.Adam)
    assert not twin.same_bits(from_callable, from_class)  # whose rate is 1e-3


def left_out() -> tuple:
    model = models.Mixed()
    client = torch.optim.SGD(model.second.parameters(), lr=0.1)
    engine = equigrad.initialize(model=model, optimizer=client, config=configuration(2))[0]
    train(engine, 1)
    first, second = model.first.weight, model.second.weight
    return first.detach().clone(), second.detach().clone(), first.grad is not None


def test_what_the_optimizer_has_not_is_not_trained() -> None:
    first, second, has_gradient = ranks.run(2, left_out)[0]
    assert torch.equal(first, models.Mixed().first.weight) and has_gradient
    assert not torch.equal(second, models.Mixed().second.weight)


class Tempered(models.Mixed):
    """With a parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = torch.nn.Parameter(torch.tensor(1.5))

    def forward(self, tokens: torch.Tensor, branch: bool = False) -> torch.Tensor:
        return super().forward(tokens, branch) * self.temperature


def stepped_before(stage: int, kind: type) -> dict:
    model = kind()
    client = torch.optim.AdamW(model.parameters(), lr=0.01)
    models.mixed_loss(model, 9, 0, 1).backward()
    client.step()
    client.zero_grad()
    engine = equigrad.initialize(model=model, optimizer=client, config=configuration(stage))[0]
    train(engine, 2)
    return parameters(engine)


def whole_and_stepped_before(stage: int, kind: type) -> dict:
    model = kind()
    client = torch.optim.AdamW(model.parameters(), lr=0.01)
    models.mixed_loss(model, 9, 0, 1).backward()
    client.step()
    for step in range(2):
        by_rank = [
            [twin.local_gradients(model, models.mixed_loss(model, step, rank, k)) for k in range(PASSES)]
            for rank in range(2)
        ]
        gradients = twin.averaged(by_rank, stage)
        for name, p in model.named_parameters():
            p.grad = gradients[name]
        client.step()
    return {name: p.detach() for name, p in model.named_parameters()}


@pytest.mark.parametrize("kind", [models.Mixed, Tempered])
@pytest.mark.parametrize("stage", [0, 3])
def test_states_of_whole_parameters_are_cut(stage: int, kind: type) -> None:
    want = ranks.alone(whole_and_stepped_before, stage, kind)
    for got in ranks.run(2, stepped_before, stage, kind):
        assert_equal(got, want, "from an optimizer that had stepped")


def saved(stage: int) -> tuple:
    engines = []
    for _ in range(2):
        model = models.Mixed()
        client = torch.optim.AdamW(model.parameters(), lr=0.01)
        engines.append(equigrad.initialize(model=model, optimizer=client, config=configuration(stage))[0])
    first, second = engines
    train(first, 2)
    second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict()))
    for p, q in zip(first.module.parameters(), second.module.parameters(), strict=True):
        if p.requires_grad:
            equigrad.utils.safe_set_full_fp32_param(q, equigrad.utils.safe_get_full_fp32_param(p))
    assert second.get_lr() == [0.01]
    second.optimizer.param_groups[0]["lr"] = 0.02
    first.optimizer.param_groups[0]["lr"] = 0.02
    train(first, 2, 2)
    train(second, 2, 2)
    return parameters(first), parameters(second)


@pytest.mark.parametrize("stage", [1, 3])
def test_states_of_slices_are_saved_and_loaded(stage: int) -> None:
    for first, second in ranks.run(2, saved, stage):
        assert_equal(second, first, "from loaded states")


# ---- Rates and schedulers --------------------------------------------------------------------------------------------


def one_cycle(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=[0.02, 0.05], total_steps=STEPS + 1)


def scheduled(stage: int, is_callable: bool) -> tuple:
    model = models.Mixed()
    client = optimizers.KINDS["AdamW"](optimizers.groups(model))
    given = one_cycle if is_callable else one_cycle(client)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine, _, _, scheduler = equigrad.initialize(
            model=model, optimizer=client, lr_scheduler=given, config=configuration(stage)
        )
        assert engine.lr_scheduler is scheduler and isinstance(scheduler, torch.optim.lr_scheduler.OneCycleLR)
        assert is_callable or scheduler is given
        train(engine, STEPS)
    return parameters(engine), scheduler.last_epoch, engine.get_lr() == scheduler.get_last_lr()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("is_callable", [False, True])
def test_a_scheduler_of_torch_steps_with_the_engine(stage: int, is_callable: bool) -> None:
    want, _ = ranks.alone(optimizers.on_whole_parameters, "AdamW", 2, stage, STEPS, PASSES, one_cycle)
    for got, epoch, same in ranks.run(2, scheduled, stage, is_callable):
        assert_equal(got, want, "OneCycleLR")
        assert epoch == STEPS and same


def scheduled_by_hand(stage: int, kind: str, params: dict) -> tuple:
    """A scheduler of torch on the configured optimizer, beside an engine whose values are set one by one."""
    engine = equigrad.initialize(model=models.Mixed(), config=configured(stage, kind, **params))[0]
    other = equigrad.initialize(model=models.Mixed(), config=configured(stage, kind, **params))[0]
    plain = (
        torch.optim.AdamW([torch.ones(1)], lr=0.01)
        if kind == "AdamW"
        else torch.optim.SGD([torch.ones(1)], lr=0.01, **params)
    )

    def make(optimizer):
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1)

    rates = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler, want = make(engine.optimizer), make(plain)
        for step in range(STEPS):
            values = other._core.hyper_parameters()
            for key in ("lr", "betas", "momentum"):
                if key in plain.param_groups[0]:
                    setattr(values[0], key, plain.param_groups[0][key])
            other._core.set_hyper_parameters(values)
            other.optimizer.pull()
            train(other, 1, step)
            train(engine, 1, step)
            rates.append((engine.get_lr(), [plain.param_groups[0]["lr"]]))
            plain.step()
            scheduler.step()
            want.step()
    return parameters(engine), parameters(other), rates, engine._core.get_lr()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("kind, params", [("AdamW", {}), ("SGD", {"momentum": 0.9})])
def test_a_scheduler_of_torch_sets_the_configured_optimizer(stage: int, kind: str, params: dict) -> None:
    for got, want, rates, last in ranks.run(2, scheduled_by_hand, stage, kind, params):
        assert_equal(got, want, "OneCycleLR on engine.optimizer")
        assert [one for one, _ in rates] == [other for _, other in rates]
        assert len({one[0] for one, _ in rates}) == STEPS and last == rates[-1][0]


def assigned(stage: int, kind: str, first: dict, then: dict) -> tuple:
    engine, optimizer, _, _ = equigrad.initialize(model=models.Mixed(), config=configured(stage, kind, **first))
    other = equigrad.initialize(model=models.Mixed(), config=configured(stage, kind, **{**first, **then}))[0]
    for key, value in then.items():
        optimizer.param_groups[0][key] = value
    shown = {key: optimizer.param_groups[0][key] for key in then}
    train(engine, 2)
    train(other, 2)
    kept = {key: optimizer.param_groups[0][key] for key in then}
    return parameters(engine), parameters(other), shown == then, kept


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize(
    "kind, first, then",
    [
        ("AdamW", {}, {"lr": 0.25}),
        ("AdamW", {"weight_decay": 0.5}, {"weight_decay": 0.0}),
        ("Adam", {"weight_decay": 0.5, "adam_w_mode": False}, {"betas": (0.5, 0.75), "eps": 0.125}),
        ("SGD", {"momentum": 0.9}, {"momentum": 0.5, "dampening": 0.25, "weight_decay": 0.125}),
        ("SGD", {"momentum": 0.9}, {"nesterov": True}),
    ],
)
def test_what_is_assigned_to_a_group_holds_from_the_next_update(stage: int, kind: str, first: dict, then: dict) -> None:
    for got, want, shown, kept in ranks.run(2, assigned, stage, kind, first, then):
        assert_equal(got, want, f"{then}")
        assert shown and kept == then


def set_lr(stage: int, has_client: bool) -> tuple:
    model = models.Mixed()
    client = torch.optim.AdamW(optimizers.groups(model), lr=torch.tensor(0.01)) if has_client else None
    given = configuration(stage) if has_client else configured(stage)
    groups = None if has_client else optimizers.groups(model)
    engine = equigrad.initialize(model=model, optimizer=client, model_parameters=groups, config=given)[0]
    train(engine, 1)
    before = parameters(engine)
    engine.set_lr(0)
    seen = [engine.get_lr()]
    engine.optimizer.param_groups[0]["weight_decay"] = 0.0
    train(engine, 1, 1)
    stood = parameters(engine)
    engine.set_lr([0.0, 0.5])
    seen.append(engine.get_lr())
    train(engine, 1, 2)
    told = []
    for bad in (-1, [0.1], float("nan")):
        try:
            engine.set_lr(bad)
        except equigrad.Error as error:
            told.append(str(error))
    return before, stood, parameters(engine), seen, told, engine.get_lr()


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("has_client", [False, True])
def test_set_lr(stage: int, has_client: bool) -> None:
    for before, stood, after, seen, told, last in ranks.run(2, set_lr, stage, has_client):
        assert_equal(stood, before, "a rate of 0")
        for name, value in after.items():
            moves = not name.startswith((*optimizers.LARGE, "unused", "scale"))
            assert twin.same_bits(value, stood[name]) != moves, name
        assert seen == [[0.0, 0.0], [0.0, 0.5]] and last == [0.0, 0.5]
        assert len(told) == 3 and "0 or more" in told[0] and "expected 2 rates" in told[1]


def on_one_rank_only(stage: int) -> list:
    engine = equigrad.initialize(model=models.Mixed(), config=configured(stage))[0]
    told = []
    for rate in (0.5, -1.0):
        if engine.global_rank == 0:
            engine.optimizer.param_groups[0]["lr"] = rate
        try:
            train(engine, 1)
            told.append("")
        except equigrad.Error as error:
            told.append(str(error))
        engine.optimizer.param_groups[0]["lr"] = 0.01
        engine.zero_grad()
    return told, torch.equal(engine.full_parameter("norm.weight"), torch.ones(24))


@pytest.mark.parametrize("stage", [0, 3])
def test_a_value_that_one_rank_assigns_is_an_error_on_all(stage: int) -> None:
    for told, untouched in ranks.run(2, on_one_rank_only, stage):
        assert all("set_hyper_parameters()" in one or "lr" in one for one in told) and all(told), told
        assert untouched


def configured_scheduler() -> tuple:
    scheduler = {
        "type": "WarmupLR",
        "params": {"warmup_min_lr": 0.0, "warmup_max_lr": 0.1, "warmup_num_steps": 4, "warmup_type": "linear"},
    }
    model = models.Mixed()
    client = torch.optim.SGD(model.parameters(), lr=0.3)
    engine, _, _, shown = equigrad.initialize(model=model, optimizer=client, config=configuration(1, scheduler=scheduler))
    other, optimizer, _, _ = equigrad.initialize(model=models.Mixed(), config={**configured(1), "scheduler": scheduler})
    rates = []
    for step in range(3):
        train(engine, 1, step)
        train(other, 1, step)
        rates.append(
            (
                client.param_groups[0]["lr"],
                engine.get_lr(),
                shown.get_last_lr(),
                other.get_lr(),
                optimizer.param_groups[0]["lr"],
            )
        )
    try:
        shown.step()
        told = ""
    except equigrad.Error as error:
        told = str(error)
    return rates, told


def test_a_configured_scheduler_sets_the_groups() -> None:
    rates, told = ranks.alone(configured_scheduler)
    assert [one[0] for one in rates] == [0.0, 0.025, 0.05]
    for own, engine, shown, other, group in rates:
        assert [own] == engine == shown == other == [group]
    assert "engine.step()" in told


def plateau() -> list:
    model = models.Mixed()
    client = torch.optim.SGD(model.parameters(), lr=0.5)
    engine = equigrad.initialize(
        model=model,
        optimizer=client,
        lr_scheduler=lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=0),
        config=configuration(1, gradient_accumulation_steps=1),
    )[0]
    seen = []
    for step in range(3):
        engine.backward(models.mixed_loss(engine, step, 0, 0))
        engine.step(lr_kwargs={"metrics": 1.0})
        seen += engine.get_lr()
    return seen


def test_lr_kwargs_go_to_the_scheduler() -> None:
    assert ranks.alone(plateau) == [0.5, 0.05, 0.005000000000000001]


# ---- Exceptions, skipped steps, who counts ---------------------------------------------------------------------------


class Mine(Exception):
    pass


class Raising(torch.optim.SGD):
    fails = False

    def step(self, closure=None):
        if self.fails:
            raise Mine("in the client's step")
        return super().step()


def raises(stage: int) -> tuple:
    model = models.Mixed()
    client = Raising(model.parameters(), lr=0.1)
    engine = equigrad.initialize(model=model, optimizer=client, config=configuration(stage))[0]
    train(engine, 1)
    client.fails = engine.global_rank == 1
    told, is_mine = "", False
    try:
        train(engine, 1, 1)
    except (Mine, equigrad.Error) as error:
        told, is_mine = "".join(traceback.format_exception(error)), isinstance(error, Mine)
    client.fails = False
    applied = engine.was_step_applied()
    train(engine, 1, 2)
    return told, is_mine, applied, engine.was_step_applied(), all(p.grad is None for p in client.param_groups[0]["params"])


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_exception_of_the_step_reaches_the_caller_and_the_other_ranks(stage: int) -> None:
    healthy, failed = ranks.run(2, raises, stage)
    assert failed[1] and "in the client's step" in failed[0] and "in step" in failed[0]
    assert not healthy[1] and "rank 1" in healthy[0]
    for seen in (healthy, failed):
        assert seen[2:] == (False, True, True)


def skipped() -> tuple:
    model = models.Mixed()
    client = optimizers.Signs(model.parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(client, 0.5)
    engine = equigrad.initialize(
        model=model, optimizer=client, lr_scheduler=scheduler, config=configuration(2, bf16={"enabled": True})
    )[0]
    for k in range(PASSES):
        engine.backward(models.mixed_loss(engine, 0, 0, k).float() * (float("inf") if k else 1.0))
        engine.step()
    seen = [client.steps, engine.get_lr(), len(client.state)]
    for k in range(PASSES):
        engine.backward(models.mixed_loss(engine, 0, 0, k).float())
        engine.step()
    return [*seen, client.steps, engine.get_lr(), model.norm.weight.dtype]


def test_a_skipped_step_is_none() -> None:
    assert ranks.alone(skipped) == [0, [0.01], 0, 1, [0.005], torch.bfloat16]


def counts_itself(stage: int, managed: bool) -> tuple:
    given = {**configured(stage), "managed_gradient_accumulation": managed}
    engine = equigrad.initialize(model=models.Mixed(), config=given)[0]
    seen = []
    for step in range(2):
        for k in range(PASSES):
            engine.backward(models.mixed_loss(engine, step, engine.global_rank, k))
            if managed:
                engine.step()
        seen.append(engine.is_gradient_accumulation_boundary())
        if not managed:
            engine.step()
    return parameters(engine), seen, engine.global_steps


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_every_step_acts_where_the_caller_counts(stage: int) -> None:
    managed = ranks.run(2, counts_itself, stage, True)
    for (want, never, steps), (got, always, own_steps) in zip(
        managed, ranks.run(2, counts_itself, stage, False), strict=True
    ):
        assert_equal(got, want, "managed_gradient_accumulation")
        assert (never, always) == ([False, False], [True, True]) and steps == own_steps == 2


# ---- What is refused -------------------------------------------------------------------------------------------------


def refusals() -> list:
    model = models.Mixed()
    matrices = [p for p in model.parameters() if p.dim() == 2]
    held = list(model.parameters())
    adam = torch.optim.Adam(held, lr=0.01)

    def initialize(client, lr_scheduler=None, **more):
        equigrad.initialize(model=model, optimizer=client, lr_scheduler=lr_scheduler, config=configuration(1, **more))

    halves = {"enabled": True, "bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
    factored = torch.optim.Adafactor(matrices, lr=0.01)
    warm = optimizers.LayerScaled(held)
    torch.optim.lr_scheduler.LambdaLR(warm, lambda step: 0.0)
    wrong = {
        "LBFGS": lambda: initialize(torch.optim.LBFGS(held)),
        "Adafactor, whose step 1 gives": lambda: initialize(factored),
        "Muon, which raised ValueError": lambda: initialize(torch.optim.Muon(matrices)),
        "LayerScaled, whose step": lambda: initialize(warm),
        "OneStep, whose step": lambda: initialize(optimizers.OneStep(held)),
        "Noisy, whose step 1 gives": lambda: initialize(optimizers.Noisy(held, lr=0.1)),
        "without fused=True": lambda: initialize(torch.optim.AdamW(held, lr=0.01, fused=True)),
        "leaves what its param_groups hold as it was": lambda: initialize(optimizers.Elsewhere(held)),
        "a callable that makes one of torch.optim.Optimizer, got a list": lambda: initialize(list),
        "expected one of torch.optim.Optimizer, got a str": lambda: initialize("AdamW"),
        "in the optimizer's groups, got a tensor of shape [3]": lambda: initialize(torch.optim.SGD([torch.ones(3)], lr=0.1)),
        "expected no optimizer beside the one": lambda: initialize(adam, optimizer={"type": "AdamW", "params": {"lr": 0.1}}),
        "got 16 bits": lambda: initialize(adam, bf16=halves),
        "of another Adam": lambda: initialize(
            adam, torch.optim.lr_scheduler.ConstantLR(torch.optim.Adam([torch.ones(1)], lr=0.1))
        ),
        "got a float": lambda: initialize(adam, 0.5),
        "expected one scheduler": lambda: initialize(
            adam, torch.optim.lr_scheduler.ConstantLR, scheduler={"type": "WarmupLR"}
        ),
    }
    told = []
    for word, call in wrong.items():
        try:
            call()
            told.append((word, "was taken"))
        except equigrad.Error as error:
            told.append((word, str(error)))
    engine = equigrad.initialize(model=model, optimizer=adam, config=configuration(1))[0]
    train(engine, 1)
    own = equigrad.initialize(model=models.Mixed(), config=configured(1))[0]
    for word, call in {
        "expected the groups": lambda: engine.optimizer.add_param_group({"params": []}),
        "got the configured one. engine.save_checkpoint()": own.optimizer.state_dict,
        "engine.step()": engine.optimizer.step,
    }.items():
        try:
            call()
            told.append((word, "was taken"))
        except equigrad.Error as error:
            told.append((word, str(error)))
    own.optimizer.param_groups[0]["amsgrad"] = True
    try:
        train(own, 1)
        told.append(("amsgrad", "was taken"))
    except equigrad.Error as error:
        told.append(('got "amsgrad"', str(error)))
    return told


def test_what_cannot_be_cut_is_refused_with_the_reason() -> None:
    for word, text in ranks.alone(refusals):
        assert word in text and "expected" in text, (word, text)


def before_and_after() -> list:
    model = models.Mixed()
    client = optimizers.Signs(model.parameters())
    state = torch.random.get_rng_state()
    equigrad.initialize(model=model, optimizer=client, config=configuration(0))
    return [client.steps, len(client.state), torch.equal(state, torch.random.get_rng_state()), client.param_groups[0]["lr"]]


def test_the_probe_leaves_the_optimizer_and_the_generator_alone() -> None:
    assert ranks.alone(before_and_after) == [0, 0, True, 0.01]


# ---- The drop-in -----------------------------------------------------------------------------------------------------


def overriding(folder: str) -> list:
    config = {**configured(1, lr=7.0), "scheduler": {"type": "WarmupLR"}}
    path = f"{folder}/config.json"
    with open(path, "w") as file:
        json.dump(config, file)
    seen = []
    for form in (config, json.dumps(config), path):
        model = models.Mixed()
        client = torch.optim.SGD(model.parameters(), lr=0.5)
        engine, _, _, scheduler = equigrad.deepspeed.initialize(
            model=model, optimizer=client, lr_scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.5), config=form
        )
        train(engine, 1)
        seen.append((engine.get_lr(), type(scheduler).__name__))
    return seen


def test_the_drop_in_takes_them_in_place_of_the_configured_ones(tmp_path) -> None:
    assert ranks.alone(overriding, str(tmp_path)) == [([0.25], "ExponentialLR")] * 3
