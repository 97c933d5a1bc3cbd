// CommandResult: what a command prints and its exit code, for tests of the command line; each in a
// folder of its own.
//
// Invariants: the folder is there before a test begins, and gone when it has ended.
// Units: none.   Errors: a test that cannot make its folder fails.
// Depends on: cli.hpp, GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "conformance/cli/cli.hpp"

namespace equigrad::conformance::cli {

struct CommandResult {
  int code;
  std::string out, err;
};

template <class Fn>
CommandResult result_of(const Fn& fn) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = fn();
  return {code, testing::internal::GetCapturedStdout(), testing::internal::GetCapturedStderr()};
}

// Of `equigrad WORDS...`.
inline CommandResult result_of_words(std::vector<std::string> words) {
  words.insert(words.begin(), "equigrad");
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  return result_of([&] { return run_cli(static_cast<int>(argv.size()), argv.data()); });
}

inline std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

class InAFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "equigrad-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override {
    if (std::system(("rm -rf '" + folder_ + "'").c_str()) != 0) ADD_FAILURE() << folder_;
  }
  std::string folder_;
};

}  // namespace equigrad::conformance::cli
