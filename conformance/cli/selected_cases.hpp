// SelectedCases: what of the catalogue `equigrad run` and `equigrad list` are
// about.
//
// Invariants: a case is selected once. Where a filter or a word of it selects
// nothing, nothing is selected, and stderr says what is near. Units: none.
// Errors: ConfigError for fewer cases than shards.
// Depends on: cli.hpp, contract/contract_case.hpp, generator/workload.hpp. No
// torch.
#pragma once

#include <string>
#include <vector>

#include "conformance/cli/cli.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/generator/workload.hpp"

namespace equigrad::conformance::cli {

struct SelectedCases {
  std::vector<CaseSpec> matrix = {};
  std::vector<contract::Spec> contract = {};
  std::vector<GeneratedCase> generated = {};  // of RunCommand::only
  int64_t in_other_shards = 0;
  std::size_t size() const { return matrix.size() + contract.size() + generated.size(); }
  // Of the catalogue, which what is drawn is not.
  std::size_t listed() const { return matrix.size() + contract.size(); }
};

// By filters, --stages, --dtypes, --world; or those that RunCommand::only
// names, of these; then the shard.
SelectedCases selected_cases(const RunCommand& command);
// The cases whose ids the filters are, in their order; none where one is no id.
SelectedCases cases_in_order(const RunCommand& command);
bool is_narrowed(const RunCommand& command);

struct OneCase {
  std::string id;
  std::string problem;            // why it is none; empty: it is one
  std::vector<std::string> near;  // ids of all cases, where the words select none
};
// The case whose id the words are, also one that no selection has; or which they alone select, as a
// filter of `equigrad run` does: of the default selection, and of all where that has none.
OneCase one_case(const std::string& words);
// What ids of the matrix are made of, and what selects the other cases: for filters.
std::vector<std::string> filter_words();

}  // namespace equigrad::conformance::cli
