"""What runs in the environment of an engine under test: protocol, files, models, reference, loop, plain PyTorch and DDP."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from small_cases import SGD, small_case

from equigrad.judge.on_rank import loop, models, protocol, reference, tensors
from equigrad.judge.on_rank.protocol import (
    Absent,
    Answer,
    Case,
    Clip,
    Group,
    LossScale,
    Model,
    Optimizer,
    Precision,
    ProtocolError,
    Refused,
    StepAnswer,
    from_json,
    local_key,
    tensor_key,
    to_json,
)

ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((Path(protocol.__file__).parents[1] / "protocol.schema.json").read_text())
DOCUMENT = (ROOT / "docs/judge-protocol.md").read_text()
ON_RANK = Path(protocol.__file__).parent
LATTICES = [
    Model("lattice-mlp"),
    Model("lattice-mlp", {"branch": True, "gain": False, "unused": False, "wide": 5}),
    Model("lattice-mlp", {"frozen": True}),
    Model("lattice-embedding"),
    Model("lattice-embedding", {"tied": False}),
    Model("lattice-convolution"),
    Model("lattice-pair"),
]
ALL_MODELS = [*LATTICES, Model("gpt")]


def id_of(model: Any) -> str:
    return "-".join([model.name, *model.arguments]) if isinstance(model, Model) else str(model)


def full_case() -> Case:
    """With a value of its own in every field."""
    return Case(
        id="a/b",
        world=2,
        model=Model("lattice-mlp", {"wide": 5, "unused": False}, factor=3),
        steps=4,
        accumulation=3,
        precision=Precision("fp16", "", "fp32", "bf16", LossScale(True, 16.0, 2, 3, 0.5)),
        optimizer=Optimizer("adamw", 0.5, 0.25, 0.125, (0.5, 0.75), 1e-3),
        weights="/w",
        batches="/b",
        stage=2,
        style="tensor_backward",
        groups=(Group(("first.weight",), 0.5, 0.25),),
        schedule=(1.0, 0.5),
        clip=Clip(2.0, "inf"),
        options={"overflow": "1:0", "bucket_bytes": 7, "no_sync": True},
    )


def is_valid(part: str, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator({**SCHEMA, "anyOf": [{"$ref": f"#/$defs/{part}"}]}).is_valid(value))


# --- protocol


def test_a_case_comes_back_as_it_was_written(tmp_path: Path) -> None:
    case = full_case()
    protocol.write_case(case, str(tmp_path / "case.json"))
    assert protocol.read_case(str(tmp_path / "case.json")) == case
    written = json.loads((tmp_path / "case.json").read_text())
    assert is_valid("case", written)
    assert set(written) == {field.name for field in dataclasses.fields(Case)}, "every field is written"


def changed(path: str, value: Any) -> Any:
    """The full case as JSON with one place changed; None takes it out."""
    whole = json.loads(json.dumps(to_json(full_case())))
    *outer, last = path.split(".")
    inner = whole
    for name in outer:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("steps", None),
        ("steps", 0),
        ("steps", 1.5),
        ("steps", True),
        ("world", "2"),
        ("id", 3),
        ("colour", "red"),
        ("precision.model", "int8"),
        ("precision.loss_scale", {"dynamic": True}),
        ("style", "sideways"),
        ("optimizer.name", "lion"),
        ("optimizer.betas", [0.5]),
        ("optimizer.lr", "fast"),
        ("clip.norm_type", "1"),
        ("groups", {"parameters": []}),
        ("options.turbo", True),
        ("options.bucket_bytes", "7"),
        ("options.no_sync", 1),
        ("model.factor", 0),
    ],
)
def test_what_is_no_case_is_refused_by_the_program_and_by_the_schema(path: str, value: Any) -> None:
    wrong = changed(path, value)
    assert not is_valid("case", wrong)
    with pytest.raises(ProtocolError, match=r"^\[judge\] expected .*, got .*\. .*\.$"):
        from_json(Case, wrong)


@pytest.mark.parametrize(
    ("answer", "valid"),
    [
        ({"steps": [{"losses": [1.0, "inf"], "norm": "nan"}]}, True),
        (
            {"steps": [{"losses": [1], "applied": None, "lrs": [1.0], "loss_scale": 2.0}], "engine": "e", "notes": ["n"]},
            True,
        ),
        ({"absent": "no"}, True),
        ({"refused": "no", "engine": "e"}, True),
        ({"failed": "no", "steps": []}, True),
        ({}, False),
        ({"steps": []}, False),
        ({"absent": "no", "refused": "no"}, False),
        ({"absent": "no", "steps": [{"losses": []}]}, False),
        ({"steps": [{}]}, False),
        ({"steps": [{"losses": ["much"]}]}, False),
        ({"steps": [{"losses": [1.0], "applied": 1}]}, False),
        ({"verdict": "held"}, False),
    ],
)
def test_an_answer_is_steps_or_one_reason(answer: dict[str, Any], valid: bool) -> None:
    assert is_valid("answer", answer) == valid
    if valid:
        assert is_valid("answer", json.loads(json.dumps(to_json(from_json(Answer, answer)), allow_nan=False)))
    else:
        with pytest.raises(ProtocolError):
            from_json(Answer, answer)


def test_numbers_that_json_has_not_come_back() -> None:
    losses = (math.inf, -math.inf, math.nan, 0.5)
    back = from_json(Answer, json.loads(json.dumps(to_json(Answer(steps=(StepAnswer(losses),))), allow_nan=False)))
    assert str(back.steps[0].losses) == str(losses)


def test_schema_document_and_program_have_the_same_fields_options_and_models() -> None:
    parts = {
        "case": Case,
        "model": Model,
        "precision": Precision,
        "loss_scale": LossScale,
        "optimizer": Optimizer,
        "group": Group,
    }
    for name, kind in {**parts, "clip": Clip, "answer": Answer, "step": StepAnswer}.items():
        fields = {field.name for field in dataclasses.fields(kind)}
        assert set(SCHEMA["$defs"][name]["properties"]) == fields, name
        assert [field for field in fields if not re.search(rf'[`".]{field}[`".]', DOCUMENT)] == [], name
    types = {"boolean": bool, "integer": int, "string": str}
    options = {name: types[one["type"]] for name, one in SCHEMA["$defs"]["options"]["properties"].items()}
    assert options == protocol.OPTIONS
    table = DOCUMENT.split("| option | |")[1].split("## ")[0]
    assert set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if "|" in line))) == set(
        options
    )
    assert set(re.findall(r"\*\*`([\w-]+)`\*\*", DOCUMENT)) == set(models.BUILT_IN)
    assert SCHEMA["$defs"]["hello_line"]["properties"]["hello"]["properties"]["protocol"]["const"] == protocol.PROTOCOL


# --- files of tensors


@pytest.mark.parametrize("dtype", list(tensors._NAMES), ids=str)
def test_tensors_come_back_bit_by_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    whole = (torch.randn(4, 6) * 100).to(dtype)
    given = {"whole": whole, "turned": whole.t(), "part": whole[1:, ::2], "none": whole[:0], "scalar": whole[0, 0]}
    given["byte"] = torch.arange(3, dtype=torch.uint8)  # so that what follows is aligned by its order only
    tensors.write(tmp_path / "file", given)
    back = tensors.read(tmp_path / "file")
    assert set(back) == set(given) == set(tensors.names(tmp_path / "file"))
    for name, one in given.items():
        assert back[name].dtype == one.dtype
        assert back[name].shape == one.shape
        assert torch.equal(back[name], one), name
    assert set(tensors.read(tmp_path / "file", lambda name: name == "part")) == {"part"}


def test_the_format_is_that_of_safetensors(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    given = {"a": torch.randn(3, 5), "b": torch.tensor(7), "c": torch.zeros(0, 2), "d": torch.randn(3).bfloat16()}
    tensors.write(tmp_path / "ours", given)
    library.save_file(given, tmp_path / "theirs", metadata={"made": "by hand"})
    for back in (library.load_file(tmp_path / "ours"), tensors.read(tmp_path / "theirs")):
        assert set(back) == set(given)
        assert all(torch.equal(back[name], one) and back[name].dtype == one.dtype for name, one in given.items())


def test_a_type_that_the_format_has_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(tensors.TensorFileError, match="complex64"):
        tensors.write(tmp_path / "file", {"a": torch.zeros(2, dtype=torch.complex64)})


def damaged(entry: dict[str, Any]) -> bytes:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **entry}}).encode()
    return len(header).to_bytes(8, "little") + header + bytes(8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x01\x02",
        (1 << 60).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (2).to_bytes(8, "little") + b"{x",
        damaged({"dtype": "F33"}),
        damaged({"shape": [3]}),
        damaged({"shape": [-2]}),
        damaged({"shape": 2}),
        damaged({"data_offsets": [4, 12]}),
        damaged({"data_offsets": [-8, 0]}),
        damaged({"data_offsets": [0]}),
        damaged({})[:-1],
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(tensors.TensorFileError, match=r"^\[judge\] expected a whole safetensors file"):
        tensors.read(tmp_path / "file")


# --- models


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_a_model_is_as_it_is_described(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, model, accumulation=4)
    described = models.describe(model.name, model.arguments)
    _, named = reference.local(case, 0, tensors.read(case.weights))
    names = {name for name, _ in models.build(model).module.named_parameters()}
    got = [{name for name in names if local_key(0, micro, name) in named} for micro in range(4)]
    always, sometimes = set.intersection(*got), set.union(*got)
    assert names - sometimes == {*described.unused, *described.frozen}
    assert sometimes - always == set(described.conditional)
    assert set(described.tied) <= names


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("model", LATTICES, ids=id_of)
def test_small_integers_are_exact(model: Model, precision: str, tmp_path: Path) -> None:
    case = small_case(tmp_path, model, world=2, precision=Precision(precision))
    losses, named = reference.local(case, 0, tensors.read(case.weights))
    low = {name: one for name, one in named.items() if not name.startswith("fp64/")}
    assert any(bool(one.any()) for one in low.values())
    for name, one in low.items():
        assert torch.equal(one, named[f"fp64/{name}"]), name
    assert all(one == losses[f"fp64/{place}"] for place, one in losses.items() if not place.startswith("fp64/"))


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_styles_and_checkpointing_give_the_same_gradients(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, model)
    values = tensors.read(case.weights)
    _, want = reference.local(case, 0, values)
    for change in ({"style": "tensor_backward"}, {"options": {"activation_checkpointing": True}}):
        _, got = reference.local(dataclasses.replace(case, **change), 0, values)
        assert set(got) == set(want)
        assert all(torch.equal(one, want[name]) for name, one in got.items()), change


@pytest.mark.parametrize("model", ALL_MODELS, ids=id_of)
def test_activations_are_computed_again_where_they_are_to_be(model: Model, tmp_path: Path) -> None:
    case = small_case(tmp_path, model)
    built = loop.plain_module(case)
    called: list[str] = []
    for name, layer in built.module.named_modules():
        if not list(layer.children()):
            layer.register_forward_hook(lambda *_, name=name: called.append(name))
    batch = loop.batch_of(loop.read_batches(case, 0), loop.Place(0, 0, 0, True, True), 0, torch.float32, torch.device("cpu"))
    for checkpointed in (False, True):
        if checkpointed:
            assert models.checkpoint_activations(built.module)
        called.clear()
        loss = built.loss(built.module, batch, 1)[0]
        forward = len(called)
        loss.backward()  # type: ignore[no-untyped-call]
        assert (len(called) > forward) == checkpointed


def test_a_model_without_checkpointing_says_so() -> None:
    assert not models.checkpoint_activations(torch.nn.Linear(2, 2))


def test_the_document_has_every_parameter_and_its_shape() -> None:
    text = DOCUMENT.split("## Models")[1].split("## Call styles")[0]
    sizes = {"wide": 131}
    stated = {}
    for names, shapes in re.findall(r"\| ((?:`[\w.]+`(?:, )?)+) \| ((?:\([\w, ]+\)(?:, )?)+) \|", text):
        for name, shape in zip(re.findall(r"`([\w.]+)`", names), re.findall(r"\(([\w, ]+)\)", shapes), strict=True):
            stated[name] = tuple(sizes.get(one) or int(one) for one in shape.split(", "))
    module = models.LatticeMlp(branch=True)
    assert stated == {name: tuple(one.shape) for name, one in module.named_parameters()}
    for model in ("lattice-embedding", "lattice-convolution"):
        part = text.split(f"**`{model}`**")[1].split("```")[0]
        stated = {
            name: tuple(map(int, shape.split(", "))) for name, shape in re.findall(r"`(\w+\.\w+)` \(([\d, ]+)\)", part)
        }
        module = models.make(model, {"tied": False} if model == "lattice-embedding" else {})
        assert stated == {name: tuple(one.shape) for name, one in module.named_parameters()}


def test_models_that_are_not_there_are_refused() -> None:
    for model in (Model("mlp"), Model("lattice-mlp", {"deep": 3})):
        with pytest.raises(ProtocolError, match=r"^\[judge\] expected "):
            models.build(model)


# --- the reference


def test_the_reference_is_autograd(tmp_path: Path) -> None:
    """Against a computation by hand of the whole model, with its factor and scale."""
    case = small_case(tmp_path, Model("lattice-mlp", {"wide": 5}, factor=3), world=2)
    values, batches = tensors.read(case.weights), tensors.read(case.batches)
    losses, named = reference.local(case, 0, values, scale=8.0)
    for rank in range(2):
        for micro in range(2):
            leaves = {name: one.double().requires_grad_() for name, one in values.items()}
            out = batches[f"s0.r{rank}.m{micro}.b0.input"].double()
            for layer in ("first", "second", "second", "wide"):
                out = out @ leaves[f"{layer}.weight"].t() + leaves.get(f"{layer}.bias", torch.zeros(1))
                out = out.clamp(0, 6) * ((out > 0) & (out < 6)) + 6.0 * (out >= 6).double()
            out = (out @ leaves["last.weight"].t() + leaves["last.bias"]) * leaves["gain"]
            loss = (out * batches[f"s0.r{rank}.m{micro}.b0.gradient"]).sum() * 3
            loss.backward()
            assert losses[f"r{rank}.m{micro}"] == losses[f"fp64/r{rank}.m{micro}"] == [loss.item()]
            for name, leaf in leaves.items():
                got = named.get(local_key(rank, micro, name))
                assert (got is None) == (leaf.grad is None)
                if got is not None and leaf.grad is not None:
                    assert torch.equal(got, leaf.grad), name


def test_the_reference_adds_backwards_and_overflows_where_the_case_does(tmp_path: Path) -> None:
    case = small_case(tmp_path, world=2, options={"backwards": 2, "overflow": "0:1"})
    losses, named = reference.local(case, 0, tensors.read(case.weights))
    assert len(losses["r0.m0"]) == 2
    infinite = {place for place, some in losses.items() if not all(map(math.isfinite, some))}
    assert infinite <= {"r1.m0", "fp64/r1.m0"}
    bad = {name.split("/")[-2] for name, one in named.items() if not one.isfinite().all()}
    assert bad == {"r1.m0"}
    alone = small_case(tmp_path / "alone", world=2, accumulation=4)
    batches = tensors.read(case.batches)
    flat = {
        f"s0.r{r}.m{m}.b0.{key}": batches[f"s0.r{r}.m{m // 2}.b{m % 2}.{key}"]
        for r in range(2)
        for m in range(4)
        for key in ("input", "gradient")
    }
    tensors.write(alone.batches, flat)
    _, parts = reference.local(alone, 0, tensors.read(case.weights))
    for name in ("first.weight", "gain"):
        assert torch.equal(named[local_key(0, 1, name)], parts[local_key(0, 2, name)] + parts[local_key(0, 3, name)])


def test_the_reference_has_the_rounding_of_the_precision(tmp_path: Path) -> None:
    case = small_case(tmp_path, Model("gpt"), precision=Precision("bf16"))
    cast = dataclasses.replace(case, precision=Precision("fp32", autocast="bf16"))
    values = tensors.read(case.weights)
    for one in (case, cast):
        _, named = reference.local(one, 0, values)
        low, exact = named[local_key(0, 0, "norm.weight")], named[local_key(0, 0, "norm.weight", exact=True)]
        far = ((low - exact).norm() / exact.norm()).item()
        assert 2**-12 < far < 2**-4, far


# --- the loop


class OneProcess(loop.Engine):
    """An engine without ranks, that notes what is asked of it. faults: what it does wrong."""

    def __init__(self, case: Case, module: torch.nn.Module, noted: list[Any]) -> None:
        super().__init__(module)
        self.case, self.noted = case, noted
        self.named = dict(module.named_parameters())
        self.rate = case.optimizer.lr

    @contextlib.contextmanager
    def at(self, place: loop.Place) -> Iterator[None]:
        self.noted.append(place)
        yield

    def gradients(self) -> loop.Named:
        self.noted.append("gradients")
        return {name: one.grad for name, one in self.named.items() if one.grad is not None}

    def step(self) -> loop.Stepped:
        self.noted.append("step")
        with torch.no_grad():
            for one in self.named.values():
                if one.grad is not None:
                    one -= self.rate * one.grad
                one.grad = None
        return loop.Stepped(applied=True, lrs=(self.rate,))

    def values(self) -> tuple[loop.Named, loop.Named]:
        self.noted.append("values")
        return dict(self.named), {}

    def save(self, folder: str) -> None:
        tensors.write(Path(folder) / "saved", self.named)

    def load(self, folder: str) -> None:
        loop.load_weights(self.module, tensors.read(Path(folder) / "saved"))

    def close(self) -> None:
        self.noted.append("close")


class OneProcessAdapter(loop.Adapter):
    name = "one"
    options = frozenset({"save_after", "scale_wrt_gas"})

    def __init__(self, error: Exception | None = None) -> None:
        self.noted: list[Any] = []
        self.error = error

    def version(self) -> str:
        return "1"

    def start(self) -> None:
        pass

    def make(self, case: Case, module: torch.nn.Module) -> loop.Engine:
        if self.error is not None:
            raise self.error
        return OneProcess(case, module, self.noted)


def trained(case: Case, tmp_path: Path, adapter: loop.Adapter | None = None) -> tuple[Answer, loop.Named]:
    return loop.run_case(adapter or OneProcessAdapter(), case, 0, str(tmp_path))


@pytest.mark.parametrize("style", protocol.STYLES)
@pytest.mark.parametrize("backwards", [1, 2])
def test_the_loop_gives_what_the_reference_says(tmp_path: Path, style: str, backwards: int) -> None:
    """Every step from the values that the step before gave."""
    case = small_case(tmp_path, steps=3, style=style, options={"backwards": backwards})
    answer, named = trained(case, tmp_path)
    values = tensors.read(case.weights)
    assert (answer.engine, answer.version, answer.torch) == ("one", "1", torch.__version__)
    for step in range(3):
        losses, local = reference.local(case, step, values)
        assert list(answer.steps[step].losses) == losses["r0.m0"] + losses["r0.m1"]
        for name in values:
            parts = [local[key] for micro in range(2) if (key := local_key(0, micro, name)) in local]
            got = named.get(tensor_key(step, "gradient", name))
            assert (got is None) == (not parts)
            if got is not None:
                assert torch.equal(got, (torch.stack(parts).sum(0) / 2).float()), (step, name)
                assert torch.equal(named[tensor_key(step, "parameter", name)], values[name] - SGD.lr * got)
        values = {name: named[tensor_key(step, "parameter", name)] for name in values}


def test_places_are_told_and_things_are_read_in_their_order(tmp_path: Path) -> None:
    adapter = OneProcessAdapter()
    trained(small_case(tmp_path, options={"backwards": 2}), tmp_path, adapter)
    place = loop.Place
    assert adapter.noted == [
        place(0, 0, 0, False, False),
        place(0, 0, 1, True, False),
        place(0, 1, 0, False, False),
        place(0, 1, 1, True, True),
        "gradients",
        "step",
        "values",
        "close",
    ]


def test_a_resumed_training_is_the_same_and_its_engine_another(tmp_path: Path) -> None:
    case = small_case(tmp_path, steps=3)
    _, want = trained(case, tmp_path)
    adapter = OneProcessAdapter()
    answer, got = trained(dataclasses.replace(case, options={"save_after": 1}), tmp_path, adapter)
    assert len(answer.steps) == 3
    assert adapter.noted.count("close") == 2
    assert set(got) == set(want)
    assert all(torch.equal(one, want[name]) for name, one in got.items())
    OneProcess.load, real = (lambda self, folder: None), OneProcess.load  # type: ignore[method-assign]
    try:
        _, forgotten = trained(dataclasses.replace(case, options={"save_after": 1}), tmp_path)
    finally:
        OneProcess.load = real  # type: ignore[method-assign]
    key = tensor_key(2, "parameter", "unused.weight")
    assert torch.equal(forgotten[key], want[key] + 1), (
        "what load() does not bring back shows: the new engine has other weights"
    )


def test_two_engines_are_one_model(tmp_path: Path) -> None:
    case = small_case(tmp_path, Model("lattice-pair"), steps=2)
    adapter = OneProcessAdapter()
    _, want = trained(case, tmp_path)
    _, got = trained(dataclasses.replace(case, options={"engines": 2}), tmp_path, adapter)
    assert adapter.noted.count("step") == 4
    assert set(got) == set(want)
    assert all(torch.equal(one, want[name]) for name, one in got.items())


def test_the_loss_is_divided_once(tmp_path: Path) -> None:
    case = small_case(tmp_path)
    key = tensor_key(0, "gradient", "last.weight")
    want = trained(case, tmp_path)[1][key]
    assert want.any()
    for divides, options, times in ((False, {}, 1), (True, {}, 2), (True, {"scale_wrt_gas": False}, 1)):
        OneProcess.divides = divides  # and does not, so that what the loop leaves to it is missing
        try:
            got = trained(dataclasses.replace(case, options=options), tmp_path)[1][key]
        finally:
            OneProcess.divides = False
        assert torch.equal(got, times * want)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Absent("it has none"), "absent"),
        (Refused("it says no"), "refused"),
        (NotImplementedError("stage 3"), "refused"),
        (ValueError("bf16 is not supported with offload"), "refused"),
        (RuntimeError("Half is not yet supported"), "refused"),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "failed"),
        (KeyError("first.weight"), "failed"),
    ],
)
def test_what_an_engine_raises_is_an_answer(tmp_path: Path, error: Exception, kind: str) -> None:
    answer, named = trained(small_case(tmp_path), tmp_path, OneProcessAdapter(error))
    assert named == {}
    text = getattr(answer, kind)
    assert str(error.args[0]) in text
    assert is_valid("answer", to_json(answer))
    assert [one for one in ("absent", "refused", "failed") if getattr(answer, one) is not None] == [kind]


@pytest.mark.parametrize(
    "change",
    [
        {"options": {"find_unused": True}},
        {"options": {"engines": 2}},
        {"options": {"engines": 3}, "model": Model("lattice-pair")},
        {"options": {"engines": 2}, "model": Model("lattice-pair"), "clip": Clip(1.0, "2")},
    ],
)
def test_what_the_loop_cannot_do_is_absent(tmp_path: Path, change: dict[str, Any]) -> None:
    model = change.pop("model", None)
    answer, _ = trained(small_case(tmp_path, model, **change), tmp_path)
    assert answer.absent


class Dropping(torch.nn.Module):
    """Of a user: it draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(5, 64)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        value: torch.Tensor = torch.nn.functional.dropout(self.layer(input), 0.5)
        return value


def test_random_numbers_are_those_of_the_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = small_case(tmp_path, steps=2)
    tensors.write(case.weights, dict(Dropping().named_parameters()))
    inputs = {name: one for name, one in tensors.read(case.batches).items() if name.endswith("input")}
    tensors.write(case.batches, inputs)
    monkeypatch.setitem(
        sys.modules, "mine", type("mine", (), {"make": lambda: (Dropping(), lambda one, batch: one(**batch).sum())})
    )
    case = dataclasses.replace(case, model=Model("mine:make"))
    answer, named = trained(case, tmp_path)
    assert answer.steps, answer
    local: loop.Named = {}
    for step in range(2):
        values = (
            tensors.read(case.weights)
            if not step
            else {name: named[tensor_key(0, "parameter", name)] for name in ("layer.weight", "layer.bias")}
        )
        losses, local = reference.local(case, step, values)
        assert list(answer.steps[step].losses) == losses["r0.m0"] + losses["r0.m1"]
        assert losses["r0.m0"] != losses["r0.m1"]
    masks = [local[local_key(0, micro, "layer.bias")] for micro in range(2)]
    assert not torch.equal(*masks), "every micro-batch draws its own"


# --- processes


def test_nothing_of_the_engine_is_imported_and_no_name_of_a_users_is_hidden(tmp_path: Path) -> None:
    """A user's modules `models` and `loop` in the working directory, in a process that runs on_rank as the judge starts it."""
    (tmp_path / "models.py").write_text(
        "import sys, torch, loop\n"
        "assert loop.MINE\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('equigrad', 'numpy', 'safetensors')))\n"
        "def make(size):\n"
        "    module = torch.nn.Linear(size, 1)\n"
        "    return module, lambda called, batch: called(batch['x']).mean()\n"
    )
    (tmp_path / "loop.py").write_text("MINE = True\n")
    program = textwrap.dedent(f"""
        import runpy, sys
        sys.argv = ["on_rank", "--reference"]
        try:
            runpy.run_path({str(ON_RANK)!r}, run_name="__main__")
        except SystemExit:
            import on_rank.models, on_rank.protocol
        on_rank.models.build(on_rank.protocol.Model("models:make", {{"size": 2}}))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.splitlines()[-1]
    assert "equigrad" not in imported
    assert "safetensors" not in imported
