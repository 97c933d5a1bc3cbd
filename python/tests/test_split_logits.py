"""Logits of a split head: the loss that a model computes of parts has the bits of the twin, and of the unsplit model where sums
are exact; what needs whole logits has them, or is refused by name; planted faults are seen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import equigrad
import ranks
import tensor_models as models
import twin
from equigrad import _core, deepspeed
from equigrad._split_logits import SplitLogits
from tensor_runs import LR, PASSES, STEPS, configuration, digest, disturbed, errors_of, trained
from tensor_twin import Cut, Group

IGNORED, VOCABULARY = -100, models.VOCABULARY
HEAD = {"vocab_parallel_lm_head": True}


def causal_loss(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, num_items_in_batch: Any = None, **_: Any
) -> torch.Tensor:
    """As transformers computes it."""
    targets = F.pad(labels, (0, 1), value=IGNORED)[..., 1:].contiguous().view(-1).to(logits.device)
    rows = logits.float().view(-1, vocab_size)
    reduction = "mean" if num_items_in_batch is None else "sum"
    loss = F.cross_entropy(rows, targets, ignore_index=IGNORED, reduction=reduction)
    return loss if num_items_in_batch is None else loss / num_items_in_batch


# What models do with their logits before the loss.
BEFORE: dict[str, Callable[[Any, Any], Any]] = {
    "nothing": lambda _, logits: logits,
    "soft cap": lambda _, logits: 3.0 * torch.tanh(logits / 3.0),
    "scale": lambda _, logits: logits[..., :, :].contiguous() * torch.tensor(0.25),
    "trained scale": lambda model, logits: logits * model.temperature,
    "a banned entry": lambda _, logits: logits.masked_fill(torch.arange(VOCABULARY) == 5, -1e4),
    "whole norm": lambda _, logits: logits - logits.logsumexp(-1, keepdim=True),
}


class Causal(models.Decoder):
    loss_function = staticmethod(causal_loss)

    def __init__(self, before: str = "nothing") -> None:
        super().__init__()
        self.before = before
        if before == "trained scale":
            self.temperature = torch.nn.Parameter(torch.tensor(0.75))

    def forward(self, tokens: torch.Tensor, labels: Any = None, **more: Any) -> Any:  # type: ignore[override]
        logits = BEFORE[self.before](self, super().forward(tokens))
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=VOCABULARY, **more)
        return SimpleNamespace(loss=loss, logits=logits)


def batch_of(step: int, rank: int, micro_batch: int) -> dict[str, Any]:
    """Some labels do not count; of every second micro-batch the caller says how many do."""
    tokens = models.tokens(step, rank, micro_batch)
    labels = tokens.clone()
    labels[0, 2:4] = labels[1, :3] = IGNORED
    return {"tokens": tokens, "labels": labels, **({"num_items_in_batch": torch.tensor(5)} if micro_batch else {})}


def loss_of(model: torch.nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    return model(**batch_of(step, rank, micro_batch)).loss


def assert_same(played: dict[str, Any], want: tuple[Any, Any]) -> None:
    for step, gradients in enumerate(want[0]):
        for name, value in gradients.items():
            if value is not None:
                twin.assert_same_bits(played["history"][step][name], value, f"step {step + 1}, gradient of {name}")
    for name, value in want[1].items():
        twin.assert_same_bits(played["parameters"][name], value, name)


# ---- Bits ------------------------------------------------------------------------------------------------------------


def play(before: str, tensor: int, stage: int) -> dict[str, Any]:
    engine = equigrad.initialize(model=disturbed(Causal(before)), config=configuration(tensor, stage, HEAD))[0]
    widths: list[int] = []
    own = _core.cross_entropy_by_row

    def noted(logits: torch.Tensor, *more: Any) -> torch.Tensor:
        widths.append(logits.shape[1])
        return own(logits, *more)

    _core.cross_entropy_by_row = noted
    played = trained(engine, loss_of)
    assert set(widths) <= {VOCABULARY // tensor}
    return {**played, "by part": len(widths)}


def play_twin(before: str, data: int, tensor: int, stage: int, is_by_part: bool) -> Any:
    def make() -> torch.nn.Module:
        model, group = Causal(before), Group(tensor)
        models.split_decoder(model, group)
        group.column(model.lm_head, Cut(0))
        if is_by_part:
            model.loss_function = group.causal_loss
        return model

    return twin.train(make, loss_of, data, stage, STEPS, PASSES, LR)


@pytest.mark.parametrize(
    ("before", "data", "tensor", "stage"),
    [
        ("nothing", 1, 2, 0),
        ("nothing", 1, 4, 1),
        ("nothing", 2, 2, 2),
        ("soft cap", 1, 2, 1),
        ("scale", 1, 4, 0),
        ("trained scale", 1, 2, 0),
        ("a banned entry", 1, 2, 2),
        ("whole norm", 1, 4, 1),
    ],
)
def test_a_loss_of_parts_has_the_bits_of_its_twin(before: str, data: int, tensor: int, stage: int) -> None:
    is_by_part = before in ("nothing", "soft cap", "scale")
    played = ranks.run(data * tensor, play, before, tensor, stage)
    assert len({one["digest"] for one in played}) == 1, "ranks differ"
    assert played[0]["by part"] == (STEPS * PASSES if is_by_part else 0)
    assert_same(played[0], ranks.alone(play_twin, before, data, tensor, stage, is_by_part))


class WholeNumbers(models.Lattice):
    """Of each row one logit is larger than all others by so much that nothing of theirs is left: every sum is exact."""

    loss_function = staticmethod(causal_loss)

    def __init__(self) -> None:
        super().__init__()
        self.lm_head = torch.nn.Linear(8, VOCABULARY, bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(512.0 * (torch.arange(8 * VOCABULARY).view(VOCABULARY, 8) * 7 % 23 - 11))

    def forward(self, tokens: torch.Tensor, labels: Any = None, **more: Any) -> Any:  # type: ignore[override]
        logits = self.lm_head(super().forward(tokens))
        loss = None if labels is None else self.loss_function(logits, labels, vocab_size=VOCABULARY, **more)
        return SimpleNamespace(loss=loss, logits=logits)


def whole_numbers_batch(step: int, rank: int, micro_batch: int) -> dict[str, Any]:
    """Means over a power of two, so that they are exact."""
    given = batch_of(step, rank, micro_batch)
    return {**given, "num_items_in_batch": 4}


def whole_numbers_loss(model: torch.nn.Module, step: int, rank: int, micro_batch: int) -> torch.Tensor:
    return model(**whole_numbers_batch(step, rank, micro_batch)).loss


def play_whole_numbers(tensor: int) -> dict[str, Any]:
    engine = equigrad.initialize(model=disturbed(WholeNumbers()), config=configuration(tensor, 1, HEAD))[0]
    return trained(engine, whole_numbers_loss, 1)


def unsplit_whole_numbers(data: int) -> Any:
    return twin.train(WholeNumbers, whole_numbers_loss, data, 1, 1, PASSES, LR)


@pytest.mark.parametrize(("data", "tensor"), [(1, 2), (2, 2), (1, 4)])
def test_sums_that_are_exact_have_the_bits_of_the_unsplit_model(data: int, tensor: int) -> None:
    want = ranks.alone(unsplit_whole_numbers, data)
    assert any(one.abs().max() > 0 for one in want[0][0].values())
    assert_same(ranks.run(data * tensor, play_whole_numbers, tensor)[0], want)


def play_bf16() -> dict[str, Any]:
    config = configuration(2, 2, HEAD, bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"})
    return trained(deepspeed.initialize(model=disturbed(Causal()), config=config)[0], loss_of, 1)


def twin_bf16() -> Any:
    model, group = Causal().bfloat16(), Group(2)
    models.split_decoder(model, group)
    group.column(model.lm_head, Cut(0))
    model.loss_function = group.causal_loss
    passes = [twin.local_gradients(model, loss_of(model, 0, 0, k)) for k in range(PASSES)]
    return twin.averaged([[{n: None if g is None else g.float() for n, g in one.items()} for one in passes]], 2)


def test_in_bf16_the_loss_is_computed_in_fp32() -> None:
    got, want = ranks.run(2, play_bf16)[0]["history"][0], ranks.alone(twin_bf16)
    for name, value in want.items():
        if value is not None:
            twin.assert_same_bits(got[name].float(), value, name)


# ---- Faults: each is seen --------------------------------------------------------------------------------------------


def by_the_size_of_the_group(own: Any) -> Any:
    return lambda logits, targets, group, ignored: own(logits, targets, group, ignored) / group.world_size


def ignored_ones_count(own: Any) -> Any:
    return lambda logits, targets, group, ignored: own(logits, targets.masked_fill(targets == ignored, 0), group, ignored)


def of_the_next_part(own: Any) -> Any:
    def call(logits: Any, targets: Any, group: Any, ignored: int) -> torch.Tensor:
        entries = logits.shape[1] * group.world_size
        return own(logits, ((targets + logits.shape[1]) % entries).masked_fill(targets == ignored, ignored), group, ignored)

    return call


def softmax_of_a_part(own: Any) -> Any:
    def call(logits: Any, targets: Any, group: Any, ignored: int) -> torch.Tensor:
        local = targets - group.rank * logits.shape[1]
        is_own = (local >= 0) & (local < logits.shape[1])
        return _core.reduce_from(own(logits, local.masked_fill(~is_own, ignored), None, ignored), group)

    return call


def play_planted(plant: Any, kind: type) -> dict[str, Any]:
    if plant is not None:
        _core.cross_entropy_by_row = plant(_core.cross_entropy_by_row)
    engine = equigrad.initialize(model=disturbed(kind()), config=configuration(2, 1, HEAD))[0]
    losses = {Causal: loss_of, WholeNumbers: whole_numbers_loss}
    return trained(engine, losses[kind], 1)


@pytest.mark.parametrize("plant", [by_the_size_of_the_group, ignored_ones_count, of_the_next_part, softmax_of_a_part])
def test_planted_faults_differ(plant: Any) -> None:
    want = ranks.alone(unsplit_whole_numbers, 1)
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same(ranks.run(2, play_planted, plant, WholeNumbers)[0], want)


# ---- What the output is ----------------------------------------------------------------------------------------------


def outputs() -> Any:
    engine = equigrad.initialize(model=disturbed(Causal()), config=configuration(2, 0, HEAD))[0]
    batch = batch_of(0, 0, 0)
    split, plain = engine(**batch).logits, engine(batch["tokens"]).logits
    assert isinstance(split, SplitLogits) and type(plain) is torch.Tensor
    assert list(split.shape) == list(plain.shape) and split.size(-1) == VOCABULARY == plain.shape[-1]
    part = equigrad.parallel.part_of_logits(split)
    twin.assert_same_bits(part, plain.chunk(2, -1)[engine.global_rank].contiguous(), "part")
    twin.assert_same_bits(equigrad.parallel.whole_logits(split), plain, "whole")
    twin.assert_same_bits(equigrad.parallel.whole_logits(split.float() / 2.0), plain / 2, "half")
    assert equigrad.parallel.whole_logits(plain) is plain
    errors = errors_of(
        lambda: split.argmax(-1),
        lambda: torch.softmax(split, -1),
        lambda: split + torch.ones(VOCABULARY),
        lambda: split[..., 0],
        lambda: split[0, 0, 3],
        lambda: split[..., :5],
        lambda: torch.softmax(input=split, dim=-1),
        lambda: split.__setitem__((..., 3), 0.0),
        lambda: split.register_hook(print),
        lambda: split.backward(plain),
        lambda: torch.cat([split, plain]),
        lambda: split.data,
        lambda: split.add_(1),
        lambda: split.tolist(),
        lambda: engine(**{**batch, "labels": torch.full_like(batch["tokens"], VOCABULARY)}),
    )
    for labels in ({}, {"labels": None}):
        whole = engine(batch["tokens"], **labels).logits
        assert type(whole) is torch.Tensor, "without labels, behind a pass that raised"
        twin.assert_same_bits(whole, plain, "whole")
    equigrad.parallel.whole_logits(split).sum().backward()
    return errors, repr(split), digest([one.grad for one in engine.module.parameters()])


REFUSED = [
    "argmax",
    "softmax",
    "add",
    "__getitem__",
    "__getitem__",
    "__getitem__",
    "softmax",
    "__setitem__",
    "register_hook",
    "backward",
    "cat",
    "data",
]


def test_logits_beside_a_loss_are_parts_and_say_so() -> None:
    for rank, (errors, shown, _) in enumerate(ranks.run(2, outputs)):
        for name, said in zip([*REFUSED, "add_", "tolist"], errors[:-1], strict=True):
            assert f"expected whole logits for {name}, got" in said and "whole_logits(output.logits)" in said, said
        assert "from 0 to 15, or -100 for one that is ignored, got 16" in errors[-1]
        assert shown.endswith(f"the entries {8 * rank} to {8 * rank + 7})"), shown


ASKED: list[dict[str, Any]] = [
    {"ignore_index": 5},
    {"ignore_index": 5, "reduction": "sum"},
    {"ignore_index": 5, "reduction": "none"},
    {"label_smoothing": 0.25},
]


class Asking(WholeNumbers):
    asked: dict[str, Any]

    def loss_function(self, logits: torch.Tensor, labels: torch.Tensor, **_: Any) -> torch.Tensor:  # type: ignore[override]
        return F.cross_entropy(logits.view(-1, VOCABULARY), labels.view(-1), **self.asked)


def asked() -> None:
    engine = equigrad.initialize(model=disturbed(Asking()), config=configuration(2, 0, HEAD))[0]
    batch = batch_of(0, 0, 0)
    plain, labels = engine(batch["tokens"]).logits, batch["tokens"].clone()
    labels[1, 1:3] = 5
    for one in ASKED:
        engine.module.asked = one
        output = engine(batch["tokens"], labels=labels)
        want = F.cross_entropy(plain.view(-1, VOCABULARY), labels.view(-1), **one)
        assert isinstance(output.logits, SplitLogits)
        twin.assert_same_bits(output.loss + 0.0, want + 0.0, str(one))  # a loss of 0 has no sign
    got, want = (equigrad.parallel.cross_entropy(logits, labels, None, 5) for logits in (output.logits, plain))
    twin.assert_same_bits(got, want, "over a sequence")


def test_a_loss_has_what_it_is_asked_for() -> None:
    ranks.run(2, asked)


class Around(torch.nn.Module):
    """Computes the loss itself, of what a model that has labels, too, gives without them."""

    loss_function = staticmethod(causal_loss)

    def __init__(self) -> None:
        super().__init__()
        self.inner = Causal()
        self.config = self.inner.config

    def forward(self, tokens: torch.Tensor, labels: Any = None) -> Any:
        logits = self.inner(tokens).logits
        loss = None if labels is None else self.loss_function(logits, labels, VOCABULARY)
        return SimpleNamespace(loss=loss, logits=logits)


def around() -> list[type]:
    engine = equigrad.initialize(model=Around(), config=configuration(2, 0, HEAD))[0]
    batch = batch_of(0, 0, 0)
    return [type(engine(**batch).logits), type(engine(batch["tokens"]).logits)]


def test_the_model_around_may_have_the_labels() -> None:
    assert ranks.run(2, around) == [[SplitLogits, torch.Tensor]] * 2


def compiled() -> type:
    engine = equigrad.initialize(model=disturbed(Causal()), config=configuration(2, 0, HEAD))[0]
    engine.module.compile(backend="eager")
    with torch.compiler.set_stance("force_eager"):
        return type(engine(**batch_of(0, 0, 0)).logits)


def test_a_compiled_model_has_whole_logits_also_where_its_compiler_is_off() -> None:
    assert ranks.run(2, compiled) == [torch.Tensor] * 2


class InPlace(Causal):
    """Writes to its logits, which would be lost in a copy."""

    def forward(self, tokens: torch.Tensor, labels: Any = None, **more: Any) -> Any:  # type: ignore[override]
        logits = models.Decoder.forward(self, tokens)
        logits[..., 5] = -1e4
        return SimpleNamespace(loss=self.loss_function(logits, labels, vocab_size=VOCABULARY, **more), logits=logits)


def writes() -> list[str]:
    engine = equigrad.initialize(model=InPlace(), config=configuration(2, 0, HEAD))[0]
    return errors_of(lambda: engine(**batch_of(0, 0, 0)))


def test_a_write_to_logits_is_refused_by_name() -> None:
    for (said,) in ranks.run(2, writes):
        assert "expected whole logits for __setitem__" in said, said
