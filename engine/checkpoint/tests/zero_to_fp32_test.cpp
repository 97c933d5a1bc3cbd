#include "engine/checkpoint/zero_to_fp32.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

namespace equigrad::checkpoint {
namespace {

TEST(ZeroToFp32, ItsTextIsThatOfThePackagesModule) {
  std::ifstream file(EQUIGRAD_SOURCE_DIR "/python/equigrad/" + std::string(kZeroToFp32Name));
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_EQ(zero_to_fp32_script(), text);
  EXPECT_TRUE(text.starts_with("#!/usr/bin/env python3\n"));
}

}  // namespace
}  // namespace equigrad::checkpoint
