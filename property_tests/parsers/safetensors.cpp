#include "engine/checkpoint/safetensors.hpp"

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>

#include "engine/error.hpp"
#include "property_tests/parsers/parsers.hpp"

namespace equigrad::property_tests {
namespace {

using checkpoint::SafetensorsHeader;

bool takes(std::string_view front, std::int64_t file_bytes) {
  SafetensorsHeader header;
  try {
    header = checkpoint::read_header(std::as_bytes(std::span(front)), file_bytes, "fuzz");
  } catch (const Error&) {
    return false;
  }
  std::int64_t bytes = 0;
  for (const checkpoint::TensorHeader& tensor : header.tensors) {
    if (tensor.offset_bytes < 0 || bytes_of(tensor) > header.tensor_bytes - tensor.offset_bytes)
      throw std::logic_error("a tensor outside of its file");
    bytes += bytes_of(tensor);
  }
  if (bytes != header.tensor_bytes || header.header_bytes != file_bytes - bytes)
    throw std::logic_error("bytes of a file that belong to nothing");
  SafetensorsHeader made = header;
  const std::string text = make_header(made);
  const SafetensorsHeader again =
      checkpoint::read_header(std::as_bytes(std::span(text)), made.header_bytes + bytes, "fuzz");
  if (again.tensors != made.tensors || again.metadata != header.metadata ||
      again.tensors.size() != header.tensors.size() || again.tensor_bytes != bytes)
    throw std::logic_error("a header that is another one when it is read again");
  return true;
}

}  // namespace

bool takes_safetensors(std::string_view bytes) {
  takes(bytes, static_cast<std::int64_t>(bytes.size()));
  const std::size_t line = std::min(bytes.find('\n'), bytes.size());
  std::int64_t tensor_bytes = 0;
  std::from_chars(bytes.data(), bytes.data() + line, tensor_bytes);
  const std::string_view json = bytes.substr(std::min(line + 1, bytes.size()));
  std::string front;
  for (int i = 0; i < 8; ++i) front += static_cast<char>(json.size() >> (8 * i) & 255);
  front += json;
  std::int64_t file_bytes = 0;
  if (__builtin_add_overflow(tensor_bytes, static_cast<std::int64_t>(front.size()), &file_bytes))
    return false;
  return takes(front, file_bytes);
}

}  // namespace equigrad::property_tests
