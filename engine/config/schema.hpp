// Config keys: every key of DeepSpeed's configuration that this engine knows, and what it does
// here.
//
// Invariants: a key is Section (looked into), Read (honoured), NoEffect (accepted, with the reason
// why it changes nothing here) or Unsupported (refused unless it says what is true here anyway). A
// key that is not in the table is unknown, and an error.
// Errors: none thrown; problems go to the reader.
// Depends on: engine/config/config.hpp, engine/config/json.hpp. For the sources of the
// configuration only.
#pragma once

#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/config/json.hpp"

namespace equigrad {

enum class KeyTreatment { Section, Read, NoEffect, Unsupported };

struct KeyRule {
  const char* path;  // "section.key"
  KeyTreatment treatment;
  const char* accepted;  // Unsupported: the values that are accepted, as a JSON array
  const char* reason;    // NoEffect: why not. Unsupported: what to do instead, or empty
};

// In the order in which they are printed.
const std::vector<KeyRule>& key_rules();

// Walks the whole file against the table. Notes a problem for every unknown, unsupported or "auto"
// key, and a setting for every key that was accepted without effect.
void check_keys(const Json& root, ConfigReader& reader, std::vector<Setting>& settings);

}  // namespace equigrad
