"""Tensors by name in one file, in the safetensors format: conformance/oracle/tensor_file.hpp in Python."""
import ctypes
import json
import os
import struct

import torch

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "U8": torch.uint8}
NAMES = {dtype: name for name, dtype in DTYPES.items()}


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = bytearray(file.read())
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data[begin:end], dtype=DTYPES[entry["dtype"]]) if end > begin else torch.empty(0)
        tensors[name] = flat.to(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write(path, tensors):
    header, parts, offset = {}, [], 0
    # Larger elements first, so that every tensor starts at a multiple of its element size.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        whole = tensor.detach().contiguous()
        part = ctypes.string_at(whole.data_ptr(), whole.nbytes)
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [offset, offset + len(part)]}
        parts.append(part)
        offset += len(part)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path + ".part", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for part in parts:
            file.write(part)
    os.replace(path + ".part", path)
