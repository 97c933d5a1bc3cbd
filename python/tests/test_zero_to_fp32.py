"""zero_to_fp32.py: checkpoints of a writer of this file's own, in every way in which a user makes a model of them."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from equigrad import zero_to_fp32

SCRIPT = Path(importlib.util.find_spec("equigrad").origin).with_name("zero_to_fp32.py")
NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def xxh3_128(data: bytes = b"") -> Any:
    """In an environment without it another digest stands in, which the script then has no way to ask for."""
    if importlib.util.find_spec("xxhash") is None:
        return hashlib.md5(data)
    return importlib.import_module("xxhash").xxh3_128(data)


def digest(data: bytes) -> str:
    return xxh3_128(data).hexdigest()


def raw(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().reshape(-1).view(torch.uint8).tolist()) if tensor.numel() else b""


def rank_file(tensors: dict[str, torch.Tensor]) -> tuple[bytes, bytes]:
    header, offset = {}, 0
    for name, tensor in tensors.items():
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": [tensor.numel()], "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, b"".join(raw(one) for one in tensors.values())


def flat_part(value: torch.Tensor, cut: dict, part: int) -> torch.Tensor:
    segments = value.split(cut["segments"], cut["dimension"])
    return torch.cat([one.chunk(cut["parts"], cut["dimension"])[part] for one in segments], cut["dimension"]).reshape(-1)


def write_checkpoint(
    folder: Path, tensors: dict[str, torch.Tensor], parameters: list[dict], ranks: int, cuts: dict[str, dict] | None = None
) -> None:
    """Each rank writes an equal part of every tensor; what begins with rank0/ is rank 0's. Of one with a cut rank r has some of part
    r % parts."""
    cuts = cuts or {}
    folder.mkdir(parents=True)
    pieces, files = {name: [] for name in tensors}, []
    for rank in range(ranks):
        mine, name = {}, f"rank-{rank:05d}-of-{ranks:05d}-abc.safetensors"
        for tensor, value in tensors.items():
            place, places, flat = rank, ranks, value.reshape(-1)
            if tensor in cuts:
                parts = cuts[tensor]["parts"]
                place, places, flat = rank // parts, ranks // parts, flat_part(value, cuts[tensor], rank % parts)
            begin, end = flat.numel() * place // places, flat.numel() * (place + 1) // places
            if tensor.startswith("rank0/"):
                begin, end = 0, value.numel() if rank == 0 else 0
            if begin != end:
                mine[tensor] = (begin, end, flat[begin:end])
        front, data = rank_file({tensor: value for tensor, (_, _, value) in mine.items()})
        offset = 0
        for tensor, (begin, end, value) in mine.items():
            part = data[offset : offset + value.numel() * value.element_size()]
            piece = {"file": rank, "begin": begin, "end": end, "offset_bytes": offset, "xxh3_128": digest(part)}
            if tensor in cuts:
                piece["part"] = rank % cuts[tensor]["parts"]
            pieces[tensor].append(piece)
            offset += len(part)
        (folder / name).write_bytes(front + data)
        sizes = {"bytes": len(front) + len(data), "header_bytes": len(front)}
        files.append({"name": name, **sizes, "header_xxh3_128": digest(front)})
    manifest = {
        "schema": "equigrad.checkpoint",
        "version": 2 if cuts else 1,
        "xxh3_128": "0" * 32,
        "id": "abc",
        "world_size": ranks,
        "engine": {"stage": 3, "param_type": "BF16", "parameters": parameters},
        "client_state": None,
        "files": files,
        "tensors": [
            {
                "name": name,
                "type": NAMES[one.dtype],
                "shape": list(one.shape),
                "pieces": sorted(pieces[name], key=lambda piece: (piece.get("part", 0), piece["begin"])),
                **({"cut": cuts[name]} if name in cuts else {}),
            }
            for name, one in sorted(tensors.items())
        ],
    }
    text = json.dumps(manifest)
    (folder / "manifest.json").write_text(text.replace("0" * 32, digest(text.encode()), 1))
    (folder.parent / "latest").write_text(f"{folder.name}\nxxh3_128 {digest(folder.name.encode())}\n")


TRAINED = {
    "layer.weight": torch.linspace(-3, 3, 35).reshape(7, 5),
    "layer.bias": torch.tensor([1.0, -0.0, 1e-42, float("inf"), 0.1]),
    "double": torch.tensor([0.1, 1 + 2**-24, 1 + 2**-24 + 2**-50, 1e300, -1e-50], dtype=torch.float64),
    "scalar": torch.tensor(2.5),
    "nothing": torch.empty(0, 3),
}
FROZEN = {
    "halves": torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.float16),
    "brain": torch.arange(-32768, 32768, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).reshape(256, 256),
}
BUFFERS = {"norm.count": torch.tensor(42), "mask": torch.tensor([True, False, True]), "norm.mean": torch.rand(3)}
ALIASES = {"head.weight": "layer.weight", "head2.weight": "layer.weight"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    tensors = {f"master/{name}": one for name, one in TRAINED.items() if one.numel()}  # as an engine does
    tensors |= {f"parameter/{name}": one for name, one in FROZEN.items()}
    tensors |= {f"rank0/buffer/{name}": one for name, one in BUFFERS.items()}
    tensors |= {f"exp_avg/{name}": torch.full_like(one, 9) for name, one in TRAINED.items()}
    parameters = [
        {
            "name": name,
            "trainable": name in TRAINED,
            "aliases": [alias for alias, of in ALIASES.items() if of == name],
            "shape": list(one.shape),
        }
        for name, one in (TRAINED | FROZEN).items()
    ]
    write_checkpoint(tmp_path / "saved" / "step7", tensors, parameters, ranks=3)
    return tmp_path / "saved"


def expected() -> dict[str, torch.Tensor]:
    every = {name: one.to(torch.float32) for name, one in (TRAINED | FROZEN).items()}
    every |= BUFFERS
    return every


def expect_equal(got: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    assert sorted(got) == sorted(wanted)
    for name, one in wanted.items():
        assert got[name].dtype == one.dtype and got[name].shape == one.shape, name
        nan = torch.isnan(one)
        assert torch.equal(torch.isnan(got[name]), nan), name
        assert raw(got[name][~nan]) == raw(one[~nan]), name


def read_safetensors(*files: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, str]]]:
    types = {name: dtype for dtype, name in NAMES.items()}
    tensors, metadata = {}, []
    for file in files:
        data = file.read_bytes()
        length = struct.unpack("<Q", data[:8])[0]
        header, covered = json.loads(data[8 : 8 + length]), 8 + length
        metadata.append(header.pop("__metadata__"))
        for name, about in header.items():
            begin, end = about["data_offsets"]
            dtype = types[about["dtype"]]
            part = data[8 + length + begin : 8 + length + end]
            assert (8 + length + begin) % torch.empty(0, dtype=dtype).element_size() == 0, name
            tensors[name] = torch.frombuffer(bytearray(part), dtype=dtype) if part else torch.empty(0, dtype=dtype)
            tensors[name] = tensors[name].reshape(about["shape"])
            covered += end - begin
        assert covered == len(data)
    return tensors, metadata


def run(*words: str | Path, bare: bool = False) -> subprocess.CompletedProcess:
    flags = ["-I", "-S"] if bare else []  # without anything that is installed
    command = [sys.executable, *flags, SCRIPT, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_the_script_writes_what_torch_loads(saved: Path, tmp_path: Path) -> None:
    done = run(saved, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["pytorch_model.bin"]
    state = torch.load(tmp_path / "out" / "pytorch_model.bin", weights_only=True)
    assert all(state[name].data_ptr() == state[of].data_ptr() for name, of in ALIASES.items())
    expect_equal(state, expected() | {name: TRAINED[of] for name, of in ALIASES.items()})


@pytest.mark.parametrize("bare", [False, True])
def test_the_script_writes_safetensors_with_python_alone(saved: Path, tmp_path: Path, bare: bool) -> None:
    done = run(saved / "step7", tmp_path / "out", "--safe_serialization", bare=bare)
    assert done.returncode == 0, done.stderr
    tensors, metadata = read_safetensors(tmp_path / "out" / "model.safetensors")
    expect_equal(tensors, expected())
    assert metadata == [{"format": "pt", **ALIASES}]


def test_without_torch_it_is_safetensors_and_that_is_said(saved: Path, tmp_path: Path) -> None:
    done = run(saved, tmp_path / "out", bare=True)
    assert done.returncode == 0 and "torch is not installed" in done.stdout, done.stderr
    expect_equal(read_safetensors(tmp_path / "out" / "model.safetensors")[0], expected())


@pytest.mark.parametrize("is_safe", [False, True])
def test_a_large_model_is_cut_into_files_with_an_index(saved: Path, tmp_path: Path, is_safe: bool) -> None:
    out = tmp_path / "out"
    words = ["--safe_serialization"] if is_safe else []
    assert run(saved, out, "--max_shard_size", "200B", *words).returncode == 0
    stem, end = ("model", "safetensors") if is_safe else ("pytorch_model", "bin")
    index = json.loads((out / f"{stem}.{end}.index.json").read_text())
    files = sorted(out.glob(f"{stem}-*.{end}"))
    assert [file.name for file in files] == [f"{stem}-{i:05d}-of-00004.{end}" for i in range(1, 5)]
    assert index["metadata"] == {"total_size": sum(one.numel() * one.element_size() for one in expected().values())}
    wanted = expected() | ({} if is_safe else {name: TRAINED[of] for name, of in ALIASES.items()})
    found = {}
    for file in files:
        state = read_safetensors(file)[0] if is_safe else torch.load(file, weights_only=True)
        assert all(index["weight_map"][name] == file.name for name in state)
        found |= state
    assert sorted(index["weight_map"]) == sorted(wanted)
    expect_equal(found, wanted)


def test_frozen_parameters_may_be_left_out(saved: Path, tmp_path: Path) -> None:
    assert run(saved, tmp_path, "--safe_serialization", "--exclude_frozen_parameters", "-t", "step7").returncode == 0
    tensors, _ = read_safetensors(tmp_path / "model.safetensors")
    expect_equal(tensors, {name: one for name, one in expected().items() if name not in FROZEN})


def test_deepspeeds_functions(saved: Path) -> None:
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    expect_equal(state, expected() | {name: TRAINED[of] for name, of in ALIASES.items()})
    lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(str(saved), tag="step7", lazy_mode=True)
    assert lazy["layer.weight"].shape == torch.Size([7, 5]) and lazy["double"].dtype == torch.float32
    expect_equal({name: one.contiguous() for name, one in lazy.items()}, state)
    model = torch.nn.Sequential()
    model.layer = torch.nn.Linear(5, 7, bias=False)
    assert zero_to_fp32.load_state_dict_from_zero_checkpoint(model, saved) is model
    assert torch.equal(model.layer.weight, TRAINED["layer.weight"])


@pytest.mark.parametrize(
    ("size", "wanted"), [("5GB", 5 * 10**9), ("1.5KB", 1500), ("2MiB", 2 << 20), ("10", 10), (7, 7), ("3 TB", 3 * 10**12)]
)
def test_sizes(size: str | int, wanted: int) -> None:
    assert zero_to_fp32._bytes_in(size) == wanted


def expect_refused(said: str, saved: Path, *words: str | Path, bare: bool = True) -> None:
    done = run(saved, saved.parent / "refused", *words, bare=bare)
    assert done.returncode == 1 and "zero_to_fp32.py: expected " in done.stderr, done.stderr
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr
    assert not list(saved.parent.glob("refused/*"))


CUTS = {
    "master/rows": {"dimension": 1, "segments": [8], "parts": 2},
    "master/packed": {"dimension": 0, "segments": [4, 8], "parts": 2},
    "master/deep": {"dimension": 1, "segments": [2, 4], "parts": 2},
}
OF_GROUP = {
    "rows": torch.rand(3, 8),
    "packed": torch.rand(12, 5).bfloat16(),
    "deep": torch.rand(2, 6, 3, dtype=torch.float64),
    "shared": torch.rand(7),
}


@pytest.fixture
def of_group(tmp_path: Path) -> Path:
    parameters = [{"name": name, "trainable": True, "aliases": [], "shape": list(one.shape)} for name, one in OF_GROUP.items()]
    tensors = {f"master/{name}": one for name, one in OF_GROUP.items()}
    write_checkpoint(tmp_path / "saved" / "step7", tensors, parameters, ranks=4, cuts=CUTS)
    return tmp_path / "saved"


@pytest.mark.parametrize("part_bytes", [8, 24, 1 << 23])
def test_parts_of_a_tensor_group_are_put_together(of_group: Path, monkeypatch: pytest.MonkeyPatch, part_bytes: int) -> None:
    monkeypatch.setattr(zero_to_fp32, "_PART_BYTES", part_bytes)
    state = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(of_group)
    for name, want in OF_GROUP.items():
        assert state[name].shape == want.shape and torch.equal(state[name], want.float()), name


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"segments": [4, 8]', '"segments": [4, 4]', "a cut of master/packed in equal parts"),
        ('"segments": [4, 8]', '"segments": [3, 9]', "a cut of master/packed in equal parts"),
        ('"part": 1', '"part": 0', "a piece of part 1 of master/deep"),
        ('"parts": 2', '"parts": 0', "a cut of master/deep in equal parts"),
        ('"version": 2', '"version": 3', "got version 3"),
    ],
)
def test_parts_that_make_up_no_whole_are_refused(of_group: Path, old: str, new: str, said: str) -> None:
    change(of_group / "step7" / "manifest.json", old, new)
    expect_refused(said, of_group)


def change(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def test_what_is_no_checkpoint_is_refused_by_name(saved: Path) -> None:
    expect_refused("a folder with checkpoints, got", saved / "nowhere")
    expect_refused("no such folder", saved, "--tag", "step8")
    expect_refused("the plain name of a folder", saved, "--tag", "../saved/step7")
    expect_refused("a size such as 5GB", saved, "--max_shard_size", "much")
    (saved / "step9").mkdir()
    expect_refused("this save did not come to its end", saved, "--tag", "step9")
    (saved / "latest").unlink()
    expect_refused("which names the newest tag, got none. Give the tag", saved)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"version": 1', '"version": 3', "got version 3 of 'equigrad.checkpoint'. Use the script that was saved"),
        ('"equigrad.checkpoint"', '"another"', "of 'another'"),
        ("{", "", "a manifest, got"),
    ],
)
def test_other_manifests_are_refused(saved: Path, old: str, new: str, said: str) -> None:
    change(saved / "step7" / "manifest.json", old, new)
    expect_refused(said, saved)


def test_files_that_are_not_whole_are_refused(saved: Path) -> None:
    file = next((saved / "step7").glob("rank-00001-*"))
    file.write_bytes(file.read_bytes()[:-1])
    expect_refused(f"bytes in {file}", saved)
    file.unlink()
    expect_refused(f"the file {file}, got none", saved)


def test_a_parameter_that_was_not_saved_is_named(saved: Path) -> None:
    change(saved / "step7" / "manifest.json", '"parameter/halves"', '"parameter/others"')
    expect_refused("parameter/halves", saved)
    assert run(saved, saved.parent / "out", "--exclude_frozen_parameters", bare=True).returncode == 0


@pytest.mark.parametrize(("changed", "at"), [("rank-00002-*", 20), ("rank-00002-*", 60_000), ("manifest.json", -20)])
def test_changed_bytes_are_seen_where_xxhash_is(
    saved: Path, monkeypatch: pytest.MonkeyPatch, changed: str, at: int
) -> None:
    import_module = importlib.import_module
    standing_in = SimpleNamespace(xxh3_128=xxh3_128)
    monkeypatch.setattr(importlib, "import_module", lambda name: standing_in if name == "xxhash" else import_module(name))
    zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    file = next((saved / "step7").glob(changed))
    data = bytearray(file.read_bytes())
    data[at] ^= 1
    file.write_bytes(data)
    with pytest.raises(zero_to_fp32.CheckpointError, match="expected the bytes that were saved of .*changed") as caught:
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(saved)
    assert str(file) in str(caught.value)


def test_changed_bytes_of_a_part_are_seen(of_group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_module = importlib.import_module
    standing_in = SimpleNamespace(xxh3_128=xxh3_128)
    monkeypatch.setattr(importlib, "import_module", lambda name: standing_in if name == "xxhash" else import_module(name))
    zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(of_group)
    file = next((of_group / "step7").glob("rank-00003-*"))
    data = bytearray(file.read_bytes())
    data[json.loads((of_group / "step7" / "manifest.json").read_text())["files"][3]["header_bytes"]] ^= 1
    file.write_bytes(data)
    with pytest.raises(zero_to_fp32.CheckpointError, match="expected the bytes that were saved of .*changed"):
        zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(of_group)


def test_without_xxhash_it_is_said_that_nothing_is_checked(saved: Path) -> None:
    assert "digests are not checked" in run(saved, saved.parent / "out", bare=True).stdout


def test_a_model_that_is_there_is_not_touched(saved: Path, tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"):
        out = tmp_path / name.replace(".", "-")
        out.mkdir()
        (out / name).write_text("mine")
        done = run(saved, out, bare=True)
        assert done.returncode == 1 and f"got {out / name}" in done.stderr
        assert [file.read_text() for file in out.iterdir()] == ["mine"]
