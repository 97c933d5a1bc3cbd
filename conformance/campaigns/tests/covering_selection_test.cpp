// The covering selection: of default cases, and all that is in it beside the pairs says why.
#include "conformance/campaigns/covering_selection.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "conformance/cases/covering.hpp"

namespace equigrad::conformance {
namespace {

TEST(CoveringSelection, ItsCasesAreThoseOfTheDefaultSelectionInItsOrder) {
  const auto matrix = default_matrix();
  auto at = matrix.begin();
  for (const auto& spec : covering_selection().cases) {
    at = std::find(at, matrix.end(), spec);
    ASSERT_NE(at, matrix.end()) << spec.id();
  }
  std::set<std::string> contract;
  for (const auto& spec : contract::default_specs()) contract.insert(spec.id());
  for (const auto& spec : covering_selection().specs)
    EXPECT_EQ(contract.count(spec.id()), 1u) << spec.id();
}

TEST(CoveringSelection, ItHasWhatIsChosenForThePairsAndWhatIsThereForAReason) {
  const auto& selection = covering_selection();
  std::vector<CaseSpec> given;
  for (const auto& [id, why] : beyond_pairs()) {
    EXPECT_GT(std::string(why).size(), 20u) << id;
    if (std::string(id).rfind("Contract.", 0) == 0) {
      EXPECT_TRUE(selection.has(contract::parse_contract_id(id))) << id;
    } else {
      given.push_back(parse_id(id));
      EXPECT_TRUE(selection.has(given.back())) << id;
    }
  }
  const auto chosen = covering_of(default_matrix(), given);
  EXPECT_EQ(selection.cases.size(), chosen.size());
  for (const auto& spec : chosen) EXPECT_TRUE(selection.has(spec)) << spec.id();
  EXPECT_EQ(selection.specs.size() + given.size(), beyond_pairs().size());
}

TEST(CoveringSelection, WhatIsNotInItIsNot) {
  EXPECT_FALSE(covering_selection().has(parse_id(
      "Required.grad.zero3.fp32.w2.accumulation3.clip-above.sgd.irregular.tensor_backward")));
}

}  // namespace
}  // namespace equigrad::conformance
