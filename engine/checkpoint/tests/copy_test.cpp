#include "engine/checkpoint/copy.hpp"

#include <gtest/gtest.h>

#include <cstddef>
#include <vector>

namespace equigrad::checkpoint {
namespace {

constexpr std::byte kUntouched{0xEE};

std::vector<std::byte> different_bytes(std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(std::byte(i * 131 + i / 251));
  return bytes;
}

// Whatever the alignment of both ends, below and above the length from which lines are streamed.
TEST(CopyPastCache, EveryByteComesAndNoOtherIsTouched) {
  const auto source = different_bytes(70'000 + 200);
  for (const auto bytes : {0U, 1U, 63U, 64U, 65'535U, 65'536U, 65'537U, 65'599U, 70'000U}) {
    for (const auto to : {0U, 1U, 4U, 63U, 64U}) {
      for (const auto from : {0U, 1U, 16U, 100U}) {
        std::vector<std::byte> target(bytes + 200, kUntouched);
        copy_past_cache(target.data() + to, source.data() + from, bytes);
        for (std::size_t i = 0; i < target.size(); ++i) {
          const bool is_copied = to <= i && i < to + bytes;
          ASSERT_EQ(target[i], is_copied ? source[from + i - to] : kUntouched)
              << bytes << " bytes from " << from << " to " << to << ", byte " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace equigrad::checkpoint
