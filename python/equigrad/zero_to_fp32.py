#!/usr/bin/env python3
"""Makes one model in fp32 of a checkpoint of Equigrad's, without ranks and without a GPU.

    python zero_to_fp32.py . output_dir                        pytorch_model.bin, for torch.load()
    python zero_to_fp32.py . output_dir --safe_serialization   model.safetensors, for from_pretrained()

A save puts this file beside its tags. It needs Python alone, and holds a part of one tensor at a time; torch makes
pytorch_model.bin (of which a file is held), and xxhash checks what is read against the digests of the save. Arguments and
functions have the names of DeepSpeed's script. `equigrad checkpoint export` does the same, and bf16 and fp16 too.
"""

from __future__ import annotations

import argparse
import array
import importlib
import json
import math
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Dict, List, NamedTuple, Optional, Union

_SCHEMA, _VERSION = "equigrad.checkpoint", 2
_WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "I16": 2, "I32": 4, "I64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}
_TORCH_NAMES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}
_PART_BYTES = 1 << 23  # that are read at once; a multiple of every width


class CheckpointError(RuntimeError):
    """A folder that holds no checkpoint, or one that is not as it was saved."""


def _module(name: str) -> Any:
    """None where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


# ---- Reading --------------------------------------------------------------------------------------------------------------


class _Stream:
    """Bytes that come in parts, taken in others."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._left = parts, memoryview(b"")

    def take(self, count: int) -> Iterator[bytes]:
        while count > 0:
            if not self._left:
                self._left = memoryview(next(self._parts))
            yield bytes(self._left[:count])
            taken = min(count, len(self._left))
            self._left, count = self._left[taken:], count - taken


class _Tensor(NamedTuple):
    """As it will be written."""

    name: str
    entry: Dict[str, Any]  # of the manifest
    dtype: str
    aliases: List[str]

    @property
    def shape(self) -> List[int]:
        return list(self.entry["shape"])

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numel * _WIDTHS[self.dtype]


def _read_latest(file: Path) -> str:
    lines = file.read_text().splitlines()
    return lines[0].strip() if lines else ""


def _folder_of(checkpoint_dir: Union[str, Path], tag: Optional[str]) -> Path:
    directory = Path(checkpoint_dir)
    if not directory.is_dir():
        raise CheckpointError(f"expected a folder with checkpoints, got {directory}. Look for its name.")
    if tag is None and (directory / "manifest.json").is_file():
        return directory
    latest = directory / "latest"
    if tag is None:
        if not latest.is_file():
            raise CheckpointError(f"expected {latest}, which names the newest tag, got none. Give the tag: --tag.")
        tag = _read_latest(latest)
    if not tag or tag in (".", "..") or re.search(r"[/\\\x00-\x1f]", tag):
        raise CheckpointError(f"expected a tag that is the plain name of a folder in {directory}, got {tag!r}.")
    return directory / tag


def _check_digest(what: str, digest: Any, expected: str) -> None:
    if digest is not None and digest.hexdigest() != expected:
        raise CheckpointError(
            f"expected the bytes that were saved of {what}, got others: it has been changed. Take another tag or copy."
        )


class _Checkpoint:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.xxhash = _module("xxhash")
        self.manifest = self._read_manifest(folder / "manifest.json")
        try:
            self.tensors = {one["name"]: one for one in self.manifest["tensors"]}
            for file in self.manifest["files"]:
                self._check_file(file)
            for tensor in self.manifest["tensors"]:
                self._check_pieces(tensor)
        except (KeyError, IndexError, TypeError) as error:
            raise CheckpointError(f"expected a manifest in {folder}, got one without {error!r}. Take another tag.") from None

    def _digest(self) -> Any:
        return None if self.xxhash is None else self.xxhash.xxh3_128()

    def _read_manifest(self, file: Path) -> Dict[str, Any]:
        if not self.folder.is_dir():
            raise CheckpointError(f"expected a checkpoint at {self.folder}, got no such folder. Look for the tag.")
        if not file.is_file():
            raise CheckpointError(
                f"expected {file}, got none: this save did not come to its end, or it is no checkpoint of Equigrad's. "
                "Take an earlier tag."
            )
        text = file.read_bytes()
        try:
            manifest: Dict[str, Any] = json.loads(text)
            schema, version, own = manifest["schema"], manifest["version"], str(manifest["xxh3_128"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"expected a manifest, got {file}, which is none: {error!r}. Take another tag.") from None
        if schema != _SCHEMA or version not in range(1, _VERSION + 1):
            raise CheckpointError(
                f"expected version {_VERSION} of {_SCHEMA} or an earlier one in {file}, got version {version!r} of {schema!r}. Use the script "
                "that was saved beside it."
            )
        digest = self._digest()
        if digest is not None:
            digest.update(text.replace(own.encode(), b"0" * 32, 1))
            _check_digest(str(file), digest, own)
        return manifest

    def _check_file(self, entry: Dict[str, Any]) -> None:
        file = self.folder / entry["name"]
        if Path(entry["name"]).name != entry["name"] or not file.is_file():
            raise CheckpointError(f"expected the file {file}, got none. Copy the folder whole.")
        if file.stat().st_size != entry["bytes"]:
            raise CheckpointError(f"expected {entry['bytes']} bytes in {file}, got {file.stat().st_size}. Copy it whole.")
        digest = self._digest()
        if digest is not None:
            with file.open("rb") as stream:
                digest.update(stream.read(entry["header_bytes"]))
            _check_digest(f"the header of {file}", digest, entry["header_xxh3_128"])

    def _check_pieces(self, tensor: Dict[str, Any]) -> None:
        end, width = 0, _WIDTHS[tensor["type"]]
        cut = tensor.get("cut", {"parts": 1, "segments": [0]})
        part, parts, numel = 0, cut["parts"], math.prod(tensor["shape"])
        along = tensor["shape"][cut["dimension"]] if "cut" in tensor else 0
        if parts < 1 or sum(cut["segments"]) != along or any(segment % parts for segment in cut["segments"]):
            raise CheckpointError(f"expected a cut of {tensor['name']} in equal parts, got {cut}.")
        for piece in tensor["pieces"]:
            if end * parts == numel and part + 1 < parts:  # those of the next part of a cut tensor
                part, end = part + 1, 0
            if piece.get("part", 0) != part:
                raise CheckpointError(f"expected a piece of part {part} of {tensor['name']}, got {piece}.")
            file = self.manifest["files"][piece["file"]]
            last = file["header_bytes"] + piece["offset_bytes"] + (piece["end"] - piece["begin"]) * width
            if piece["begin"] != end or piece["end"] < end or piece["offset_bytes"] < 0 or last > file["bytes"]:
                raise CheckpointError(f"expected pieces of {tensor['name']} that follow each other, got {piece}.")
            end = piece["end"]
        if part * numel // parts + end != numel:
            raise CheckpointError(f"expected pieces of all of {tensor['name']}, got {end} elements of part {part}.")

    def _parts_of(self, piece: Dict[str, Any], width: int) -> Iterator[bytes]:
        entry = self.manifest["files"][piece["file"]]
        left = (piece["end"] - piece["begin"]) * width
        with (self.folder / entry["name"]).open("rb") as stream:
            stream.seek(entry["header_bytes"] + piece["offset_bytes"])
            while left > 0:
                part = stream.read(min(left, _PART_BYTES))
                if not part:
                    raise CheckpointError(f"expected {left} more bytes in {self.folder / entry['name']}, got its end.")
                left -= len(part)
                yield part

    def _check_piece(self, entry: Dict[str, Any], piece: Dict[str, Any]) -> None:
        digest = self._digest()
        if digest is not None:
            for part in self._parts_of(piece, _WIDTHS[entry["type"]]):
                digest.update(part)
            file = self.folder / self.manifest["files"][piece["file"]]["name"]
            _check_digest(f"{entry['name']} in {file}", digest, piece["xxh3_128"])

    def parts(self, entry: Dict[str, Any]) -> Iterator[bytes]:
        """The tensor's bytes in order; each piece was checked before its first."""
        if "cut" in entry:
            yield from self._parts_of_cut(entry)
            return
        for piece in entry["pieces"]:
            self._check_piece(entry, piece)
            yield from self._parts_of(piece, _WIDTHS[entry["type"]])

    def _parts_of_cut(self, entry: Dict[str, Any]) -> Iterator[bytes]:
        """Of one that a tensor group saved in parts: from each in turn what follows in the whole."""
        for piece in entry["pieces"]:
            self._check_piece(entry, piece)
        cut, shape, width = entry["cut"], entry["shape"], _WIDTHS[entry["type"]]
        inner = math.prod(shape[cut["dimension"] + 1 :]) * width
        streams = [_Stream(self._bytes_of_part(entry, part)) for part in range(cut["parts"])]
        for _ in range(math.prod(shape[: cut["dimension"]])):
            for segment in cut["segments"]:
                for stream in streams:
                    yield from stream.take(segment // cut["parts"] * inner)

    def _bytes_of_part(self, entry: Dict[str, Any], part: int) -> Iterator[bytes]:
        for piece in entry["pieces"]:
            if piece["part"] == part:
                yield from self._parts_of(piece, _WIDTHS[entry["type"]])


def _in_fp32(part: bytes, dtype: str) -> bytes:
    """Exact from 16 bits; from F64 rounded once, to nearest, ties to even."""
    if dtype == "F64":
        return array.array("f", array.array("d", part)).tobytes()
    if dtype == "F16":
        return array.array("f", struct.unpack(f"<{len(part) // 2}e", part)).tobytes()
    if dtype == "BF16":  # the upper half of an fp32
        wide = bytearray(2 * len(part))
        wide[2::4], wide[3::4] = part[0::2], part[1::2]
        return bytes(wide)
    return part


def _tensors_of(checkpoint: _Checkpoint, exclude_frozen_parameters: bool) -> List[_Tensor]:
    """Masters, frozen parameters and rank 0's buffers, in the order of the model."""
    found = []

    def add(name: str, saved_as: str, aliases: List[str], shape: List[int]) -> None:
        entry = checkpoint.tensors.get(saved_as)
        if entry is None and 0 in shape:  # what has no elements is not saved
            entry = {"name": saved_as, "type": "F32", "shape": shape, "pieces": []}
        if entry is None:
            raise CheckpointError(
                f"expected {saved_as} in {checkpoint.folder}, got a checkpoint without it. If frozen parameters were not "
                "saved, leave them out: --exclude_frozen_parameters."
            )
        dtype = "F32" if entry["type"] in ("F16", "BF16", "F64") else entry["type"]
        found.append(_Tensor(name, entry, dtype, aliases))

    for parameter in checkpoint.manifest["engine"]["parameters"]:
        name, aliases, shape = parameter["name"], list(parameter.get("aliases", [])), list(parameter.get("shape", []))
        if parameter["trainable"]:
            add(name, f"master/{name}", aliases, shape)
        elif not exclude_frozen_parameters:
            add(name, f"parameter/{name}", aliases, shape)
    for saved_as in checkpoint.tensors:
        if saved_as.startswith("rank0/buffer/"):
            add(saved_as[len("rank0/buffer/") :], saved_as, [], [])
    return found


# ---- Writing --------------------------------------------------------------------------------------------------------------


def _bytes_in(size: Union[int, str, None]) -> int:
    """Of "5GB", "500MiB" or a number; None is without end."""
    if size is None:
        return sys.maxsize
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(I?)B)?\s*", str(size).upper())
    if match is None:
        raise CheckpointError(f"expected a size such as 5GB, 500MB or 1GiB, got {size!r}.")
    base = 1024 if match[3] else 1000
    return int(float(match[1]) * base ** " KMGT".index(match[2] or " "))


def _in_files(tensors: List[_Tensor], most_bytes: int) -> List[List[_Tensor]]:
    """As many to a file as it holds, at least one."""
    files: List[List[_Tensor]] = [[]]
    held = 0
    for tensor in tensors:
        if files[-1] and held + tensor.bytes > most_bytes:
            files.append([])
            held = 0
        files[-1].append(tensor)
        held += tensor.bytes
    return files


def _as_safetensors(checkpoint: _Checkpoint, tensors: List[_Tensor], path: Path) -> None:
    # The widest first: so all are aligned, as safetensors has them.
    tensors = sorted(tensors, key=lambda tensor: -_WIDTHS[tensor.dtype])
    aliases = {alias: tensor.name for tensor in tensors for alias in tensor.aliases}
    header: Dict[str, Any] = {"__metadata__": {**aliases, "format": "pt"}}
    offset = 0
    for tensor in tensors:
        offsets = [offset, offset + tensor.bytes]
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets}
        offset = offsets[1]
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors:
            for part in checkpoint.parts(tensor.entry):
                stream.write(part if tensor.dtype == tensor.entry["type"] else _in_fp32(part, tensor.entry["type"]))
        stream.flush()
        os.fsync(stream.fileno())


def _as_torch(checkpoint: _Checkpoint, tensor: _Tensor) -> Any:
    torch = _module("torch")
    if torch is None:
        raise CheckpointError("expected torch, got none. Install it, or write safetensors: --safe_serialization.")
    dtype = getattr(torch, _TORCH_NAMES[tensor.dtype])
    if tensor.numel == 0:
        return torch.empty(tensor.shape, dtype=dtype)
    whole = bytearray()
    for part in checkpoint.parts(tensor.entry):
        whole += part if tensor.dtype == tensor.entry["type"] else _in_fp32(part, tensor.entry["type"])
    return torch.frombuffer(whole, dtype=dtype).reshape(tensor.shape)


def _with_aliases(tensors: List[_Tensor], value: Any) -> Dict[str, Any]:
    state = {}
    for tensor in tensors:
        one = value(tensor)
        for name in (tensor.name, *tensor.aliases):
            state[name] = one
    return state


def _as_pickle(checkpoint: _Checkpoint, tensors: List[_Tensor], path: Path) -> None:
    _module("torch").save(_with_aliases(tensors, lambda tensor: _as_torch(checkpoint, tensor)), path)


def _expect_no_model(output: Path) -> None:
    for file in sorted(output.iterdir()):
        if re.fullmatch(r"(model.*\.safetensors|pytorch_model.*\.bin)(\.index\.json)?", file.name):
            raise CheckpointError(f"expected a folder without a model, got {file}. Name another one, or remove that file.")


def _write_files(checkpoint: _Checkpoint, files: List[List[_Tensor]], output: Path, is_safe: bool) -> List[Path]:
    stem, end = ("model", ".safetensors") if is_safe else ("pytorch_model", ".bin")
    written, weight_map, total = [], {}, 0
    for number, tensors in enumerate(files, start=1):
        part = "" if len(files) == 1 else f"-{number:05d}-of-{len(files):05d}"
        path = output / f"{stem}{part}{end}"
        unfinished = path.with_name(path.name + ".saving")
        (_as_safetensors if is_safe else _as_pickle)(checkpoint, tensors, unfinished)
        unfinished.replace(path)
        written.append(path)
        total += sum(tensor.bytes for tensor in tensors)
        for tensor in tensors:
            for name in (tensor.name, *([] if is_safe else tensor.aliases)):
                weight_map[name] = path.name
    if len(files) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        written.append(output / f"{stem}{end}.index.json")
        written[-1].write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
    return written


# ---- DeepSpeed's names ----------------------------------------------------------------------------------------------------


class LazyTensor:
    """A tensor that is not read before contiguous() gives it."""

    def __init__(self, checkpoint: _Checkpoint, tensor: _Tensor) -> None:
        self._checkpoint, self._tensor = checkpoint, tensor

    @property
    def shape(self) -> Any:
        return _module("torch").Size(self._tensor.shape)

    @property
    def dtype(self) -> Any:
        return getattr(_module("torch"), _TORCH_NAMES[self._tensor.dtype])

    def contiguous(self) -> Any:
        return _as_torch(self._checkpoint, self._tensor)


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Union[str, Path],
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> Dict[str, Any]:
    """The state dict of the whole model in fp32, on the CPU. In lazy_mode its tensors are read by their contiguous()."""
    checkpoint = _Checkpoint(_folder_of(checkpoint_dir, tag))
    tensors = _tensors_of(checkpoint, exclude_frozen_parameters)
    if lazy_mode:
        return _with_aliases(tensors, lambda tensor: LazyTensor(checkpoint, tensor))
    return _with_aliases(tensors, lambda tensor: _as_torch(checkpoint, tensor))


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: Union[str, Path],
    output_dir: Union[str, Path],
    max_shard_size: Union[int, str, None] = "5GB",
    safe_serialization: bool = False,
    tag: Optional[str] = None,
    exclude_frozen_parameters: bool = False,
) -> List[Path]:
    """Writes the model in fp32 into a folder, and gives the files. Without torch they are safetensors."""
    most_bytes = _bytes_in(max_shard_size)
    checkpoint = _Checkpoint(_folder_of(checkpoint_dir, tag))
    if checkpoint.xxhash is None:
        print("xxhash is not installed: digests are not checked (`equigrad checkpoint verify` checks them)")
    if not safe_serialization and _module("torch") is None:
        print("torch is not installed: the model is written as safetensors")
        safe_serialization = True
    files = _in_files(_tensors_of(checkpoint, exclude_frozen_parameters), most_bytes)
    output = Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    _expect_no_model(output)
    return _write_files(checkpoint, files, output, safe_serialization)


def load_state_dict_from_zero_checkpoint(
    model: Any, checkpoint_dir: Union[str, Path], tag: Optional[str] = None
) -> Any:
    """Loads the weights in fp32 into a model, which it moves to the CPU, and gives the model."""
    state = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model = model.cpu()
    model.load_state_dict(state, strict=False)
    return model


def main(words: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="zero_to_fp32.py", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint_dir", help="the folder with the file `latest`, or one of its tags")
    parser.add_argument("output_dir", help="a folder without a model in it; it is made")
    parser.add_argument("--max_shard_size", default="5GB", help="bytes of a file at most, but one tensor (default: 5GB)")
    parser.add_argument("--safe_serialization", action="store_true", help="safetensors, and not torch's own format")
    parser.add_argument("-t", "--tag", default=None, help="a folder below checkpoint_dir (default: what `latest` names)")
    parser.add_argument("--exclude_frozen_parameters", action="store_true", help="without parameters that are frozen")
    parser.add_argument("-d", "--debug", action="store_true", help="errors with the lines that they come from")
    given = parser.parse_args(words)
    try:
        written = convert_zero_checkpoint_to_fp32_state_dict(
            given.checkpoint_dir,
            given.output_dir,
            given.max_shard_size,
            given.safe_serialization,
            given.tag,
            given.exclude_frozen_parameters,
        )
    except (CheckpointError, OSError) as error:
        if given.debug:
            raise
        print(f"zero_to_fp32.py: {error}", file=sys.stderr)
        return 1
    for file in written:
        print(f"{file}  {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
