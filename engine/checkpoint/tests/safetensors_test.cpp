// Safetensors headers: the official layout, and every claim that a file does not keep refused.
#include "engine/checkpoint/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

SafetensorsHeader read(const std::string& bytes, std::int64_t tensor_bytes) {
  return read_header(std::as_bytes(std::span(bytes)),
                     static_cast<std::int64_t>(bytes.size()) + tensor_bytes, "a.safetensors");
}

TEST(SafetensorsHeader, IsReadAsItWasMade) {
  SafetensorsHeader header;
  header.tensors = {{"z", ElementType::F32, {2, 3}, 0}, {"a", ElementType::BF16, {}, 0}};
  header.metadata = {{"format", "pt"}};
  const std::string bytes = make_header(header);
  EXPECT_EQ(header.header_bytes, static_cast<std::int64_t>(bytes.size()));
  EXPECT_EQ(header.tensor_bytes, 26);
  EXPECT_EQ(header.tensors[1].offset_bytes, 24);
  const SafetensorsHeader again = read(bytes, 26);
  EXPECT_EQ(again.tensors, header.tensors);
  EXPECT_EQ(again.metadata, header.metadata);
  EXPECT_EQ(again.header_bytes, header.header_bytes);
  EXPECT_EQ(again.tensor_bytes, 26);
  EXPECT_THROW(read(bytes, 25), Error);
}

}  // namespace
}  // namespace equigrad::checkpoint
