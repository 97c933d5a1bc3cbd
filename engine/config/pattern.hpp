// Pattern: a regular expression of a configuration, as Python's `re` would read it, matched against
// names from their beginning (re.match): the rest of a name is free unless $ ends the pattern.
//
// Invariants: a pattern that both Python and ECMAScript take, and take differently, is refused.
// Errors: equigrad::Error for a pattern that problem_of_pattern finds something wrong with.
// Depends on: engine/error.hpp.
#pragma once

#include <cstddef>
#include <regex>
#include <string>

namespace equigrad {

inline constexpr std::size_t kLongestPattern = 1000;  // the library reads and matches by recursion

// "expected X, got Y. Remedy.", or empty.
std::string problem_of_pattern(const std::string& text);

class Pattern {
 public:
  explicit Pattern(const std::string& text);
  bool matches(const std::string& name) const;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  std::regex regex_;
};

}  // namespace equigrad
