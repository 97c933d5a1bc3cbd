// TensorFile: tensors by name in one file, in the safetensors format.
//
//   | u64 length of header, little endian | header: JSON, padded with spaces to 8 | data |
//   header = {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ...,
//             "__metadata__": {"key": "text"}}                  offsets count from the data's start
//
// Invariants: what is read has the bits, dtype and shape of what was written. A reader never sees
//   half a file: the writer writes beside it and renames. Data has no holes and no overlap; every
//   tensor starts at a multiple of its element size.
// Units: offsets and lengths are bytes.
// Errors: std::runtime_error naming the file and what is wrong with it; every number in a header
//   is checked before it is used.
// Depends on: ATen, nlohmann json. Dtypes: F64 F32 F16 BF16 I64 U8.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace equigrad::conformance::oracle {

struct TensorFile {
  std::map<std::string, at::Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

// Replaces `path` in one move.
void write_tensors(const std::string& path, const std::map<std::string, at::Tensor>& tensors,
                   const std::map<std::string, std::string>& metadata = {});

// The tensors look into a private mapping of the file, which lives as long as any of them does:
// reading is free until an element is touched, and writing to one changes neither file nor others.
TensorFile read_tensors(const std::string& path);

}  // namespace equigrad::conformance::oracle
