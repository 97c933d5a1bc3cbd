// Texts: what a configuration is read as, said to be, and refused for, by tables of keys.
//
// Invariants: what is wanted is written by hand; what a text does not change must stay as it is.
// Units: none.   Errors: none; a text that is refused where it is wanted to be read is a finding.
// Depends on: play.hpp, engine/config/config.hpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conformance/contract/players/play.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::contract {

// "zero_optimization.stage", and a value as JSON.
struct Key {
  std::string path;
  std::string value;
};

std::string text_of_keys(const std::vector<Key>& keys);

std::vector<std::string> words(const std::string& text);

// Of "gradient_clipping=1 zero_optimization.stage=2".
std::vector<Key> keys_of(const std::string& text);

// One sample a rank and pass, and that optimizer.
std::vector<Key> usual_keys(const std::string& optimizer);

// The latter in the place of those of the same path.
std::vector<Key> with_keys(std::vector<Key> keys, const std::vector<Key>& more);

// Of a text, each whole; none: it is read.
std::vector<std::string> problems_of(const std::string& text, int world);

// It has these problems and no others.
void check_problems(Play& play, const std::string& text, std::vector<std::string> wanted);

// Beside usual_keys(optimizer); without problems it is read.
struct Relation {
  std::string optimizer;
  std::string keys;
  std::vector<std::string> problems;
};
void check_relations(Play& play, const std::vector<Relation>& all);

// Ends of what is refused.
inline const std::string kUnsupported = ", which is not supported by this version. ";

// Lines of explain_config that differ from those of `usual`, "key = value (origin) note", and with
// a minus in front those that only `usual` has.
struct Told {
  std::string keys;  // for keys_of
  std::vector<std::string> lines;
  std::function<void(EngineConfig&)> make;  // from what `usual` is read as
};
void check_told(Play& play, const std::vector<Key>& usual, const Told& told);

}  // namespace equigrad::conformance::contract
