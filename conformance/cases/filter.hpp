// Filter: which cases are meant, in words: 'zero3 and bf16 and not world4'.
//
//   or   of   and   of   not   of   a word, or brackets; "zero3 bf16" means zero3 and bf16
//
// A word is a part of a name or a glob (* ? [ ]). In a word, worldN may stand for an id's wN, and
// stageN for its zeroN.
//
// Invariants: `not` binds before `and`, `and` before `or`; upper and lower case are one. A word
// alone means what it means in a larger filter. The same in the filter box of a report's page:
// reports/templates/filter.js, which a test plays against this.
// Units: none.
// Errors: equigrad::Error for a text that is no filter: a bracket or an operator without its words.
// Depends on: engine/error.hpp (source only). No torch.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace equigrad::conformance {

class Filter {
 public:
  explicit Filter(const std::string& text);
  // Whether a case with these names, one of which a word has to meet, is meant.
  bool matches(const std::vector<std::string>& names) const;
  const std::vector<std::string>& words() const { return words_; }

 private:
  enum class Kind { Word, Not, And, Or, Open };
  struct Step {
    Kind kind;
    std::size_t word;
  };
  void end_operators(std::vector<Kind>& waiting, Kind kind);

  std::vector<std::string> words_;
  std::vector<Step> steps_;  // an operator follows what it is about
};

// What is wrong with a filter's text; empty: nothing.
std::string filter_problem(const std::string& text);

// Several filters mean one of them; none mean every case.
class Filters {
 public:
  explicit Filters(const std::vector<std::string>& texts);
  bool match(const std::vector<std::string>& names) const;

 private:
  std::vector<Filter> filters_;
};

}  // namespace equigrad::conformance
