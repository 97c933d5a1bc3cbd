// Config JSON: a JSON text read strictly, and look-ups by dotted path ("zero_optimization.stage")
// that collect problems as they go, so that one pass finds every problem.
//
// parse_json accepts comments and finds what a plain parser hides: a key that is given twice, a
// number that overflows.
//
// Invariants: a problem text is "path: expected X, got Y. Remedy."; a section that is null is
// absent.
// Errors: none are thrown for bad input; problems() is the result.
// Depends on: nlohmann-json. For the sources of the configuration only.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace equigrad {

using Json = nlohmann::json;

struct JsonDocument {
  Json root;
  std::vector<std::string> problems;  // when not empty, root may be null
};

JsonDocument parse_json(const std::string& text);

// The value as JSON, cut to a length that fits an error.
std::string shown(const Json& value);

// A Hugging Face placeholder, which its Trainer replaces.
bool is_auto(const Json& value);

class ConfigReader {
 public:
  explicit ConfigReader(const Json& root) : root_(root) {}

  // Null if absent (or null in the file).
  const Json* find(const std::string& path) const;
  // Present and not known to be wrong.
  bool has(const std::string& path) const { return find(path) != nullptr && !is_bad(path); }
  bool is_bad(const std::string& path) const { return bad_paths_.count(path) != 0; }

  // An empty text is none.
  void problem(const std::string& path, const std::string& text);
  const std::vector<std::string>& problems() const { return problems_; }

 private:
  const Json& root_;
  std::set<std::string> bad_paths_;
  std::vector<std::string> problems_;
};

}  // namespace equigrad
