// Golden: a writer's output against the file that was agreed on.
//
// A change of format is a change of a file under reports/golden, visible in its diff. To accept a
// new format, run the test with EQUIGRAD_UPDATE_GOLDEN=1 and read that diff.
//
// Errors: a difference fails the test with the first line that differs.
// Depends on: GoogleTest, equigrad_build_info.hpp (the tree it was built from).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "equigrad_build_info.hpp"

namespace equigrad::conformance {

inline std::string golden_path(const std::string& name) {
  return std::string(build_info::source_directory()) + "/reports/golden/" + name;
}

inline std::string contents_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void expect_golden(const std::string& got, const std::string& name) {
  if (std::getenv("EQUIGRAD_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(golden_path(name), std::ios::binary) << got;
  }
  const std::string want = contents_of(golden_path(name));
  ASSERT_FALSE(want.empty()) << golden_path(name) << " is missing or empty";
  std::istringstream got_lines(got);
  std::istringstream want_lines(want);
  std::string got_line;
  std::string want_line;
  for (int line = 1; std::getline(want_lines, want_line); ++line) {
    ASSERT_TRUE(std::getline(got_lines, got_line)) << name << " ends before line " << line;
    ASSERT_EQ(got_line, want_line) << name << " line " << line;
  }
  EXPECT_EQ(got, want) << "lines were added at the end of " << name;
}

}  // namespace equigrad::conformance
