"""Cases, answers and files of tensors: what is no such thing is refused; program, schema and document have the same."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from small_cases import DOCUMENT, SCHEMA, full_case, is_valid

from equigrad.judge.on_rank import models, protocol, tensors
from equigrad.judge.on_rank.protocol import (
    Answer,
    Case,
    Clip,
    Group,
    LossScale,
    Model,
    Optimizer,
    Precision,
    ProtocolError,
    StepAnswer,
    from_json,
    to_json,
)


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
