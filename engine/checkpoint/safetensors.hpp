// Safetensors: names, types and shapes in front of raw little-endian bytes; nothing runs when it is
// read. 8 bytes: the length of the header; a header of JSON, padded with spaces to a multiple of 8;
// the tensors, one after the other without gaps.
//
// Invariants: a header that was read names every byte behind it exactly once, and no tensor lies
// outside of the file; tensors keep the order in which they were given.
// Units: offsets in bytes from the end of the header.
// Errors: equigrad::Error for a header that is too long (100 MB), no JSON, of unknown types, with
// gaps, overlaps, sizes that overflow or do not fit the shape, or names that are given twice.
// Nothing is allocated for what a header only claims.
// Depends on: nlohmann-json, in the source.
// Page: https://huggingface.co/docs/safetensors/index
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace equigrad::checkpoint {

enum class ElementType { Bool, U8, I8, I16, I32, I64, F16, BF16, F32, F64 };

std::int64_t element_bytes(ElementType type);
std::string_view to_text(ElementType type);  // "BF16"
// An error for another text; `where` names it there, and below.
ElementType element_type_from(std::string_view text, const std::string& where = "checkpoint");

struct TensorHeader {
  std::string name;
  ElementType type = ElementType::F32;
  std::vector<std::int64_t> shape;
  std::int64_t offset_bytes = 0;
  bool operator==(const TensorHeader&) const = default;
};

inline constexpr std::size_t kMostDimensions = 64;

// The product of a shape; an error if a size is negative, if there are more dimensions, or if the
// product overflows, of which a size of 0 is left out.
std::int64_t numel_of(const std::vector<std::int64_t>& shape,
                      const std::string& where = "checkpoint");
std::int64_t bytes_of(const TensorHeader& tensor, const std::string& where = "checkpoint");

struct SafetensorsHeader {
  std::vector<TensorHeader> tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"
  std::int64_t header_bytes = 0;                // what lies in front of the first tensor
  std::int64_t tensor_bytes = 0;                // of all tensors
};

// Sets offsets, one tensor after the other, header_bytes and tensor_bytes; returns the bytes of the
// header.
std::string make_header(SafetensorsHeader& header, const std::string& where = "checkpoint");

// `file` is its bytes, or its front; `file_bytes` its whole length; `where` names it in errors.
SafetensorsHeader read_header(std::span<const std::byte> file, std::int64_t file_bytes,
                              const std::string& where);

}  // namespace equigrad::checkpoint
