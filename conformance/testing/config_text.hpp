// Config text: JSON texts for the tests of the configuration, and what the parser says of them.
//
// Invariants: with() has nothing wrong with it but what `keys` adds; all of it is for two ranks.
// Errors: setting() fails the test for a key that is not listed.
// Depends on: engine/config/config.hpp, GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/config/config.hpp"

namespace equigrad::conformance {

inline std::string with(const std::string& keys, const std::string& optimizer = "AdamW") {
  return R"({"train_batch_size": 2, "optimizer": {"type": ")" + optimizer + "\"}, " + keys + "}";
}

inline std::vector<std::string> problems(const std::string& text) {
  try {
    explain_config(text, 2);
  } catch (const ConfigError& error) {
    return error.problems();
  }
  return {};
}

inline Setting setting(const std::string& text, const std::string& key) {
  for (const Setting& one : explain_config(text, 2).settings)
    if (one.key == key) return one;
  ADD_FAILURE() << "no setting " << key;
  return {};
}

}  // namespace equigrad::conformance
