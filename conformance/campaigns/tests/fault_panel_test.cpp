// The panel has every value of every dimension of the matrix, and no case twice.
#include "conformance/campaigns/fault_panel.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace equigrad::conformance {
namespace {

using Values = std::map<std::string, std::set<std::string>>;

Values values_of(const std::vector<CaseSpec>& cases) {
  Values values;
  for (const auto& spec : cases)
    for (const auto& [dimension, value] : spec.dimensions()) values[dimension].insert(value);
  return values;
}

TEST(FaultPanel, HasEveryValueOfEveryDimension) {
  EXPECT_EQ(values_of(fault_panel()), values_of(full_matrix()));
  EXPECT_LE(fault_panel().size(), 30u);
}

TEST(FaultPanel, NoTwoCasesShareATwinAndNoneIsRefused) {
  std::set<std::string> tuples;
  for (const auto& spec : fault_panel()) {
    EXPECT_TRUE(tuples.insert(spec.tuple()).second) << spec.id();
    EXPECT_FALSE(spec.is_refused()) << spec.id();
  }
}

TEST(FaultPanel, HasEveryCaseOfTheContractOnceTheTellingOnesFirst) {
  const auto panel = contract_panel();
  std::set<std::string> ids;
  for (const auto& spec : panel.cases) EXPECT_TRUE(ids.insert(spec.id()).second) << spec.id();
  EXPECT_EQ(ids.size(), contract::default_specs().size());
  std::set<std::string> families;
  for (std::size_t i = 0; i < panel.telling; ++i) families.insert(panel.cases[i].of->family());
  EXPECT_EQ(families.size(), 4u);
  EXPECT_FALSE(families.contains(panel.cases[panel.telling].of->family()));
}

}  // namespace
}  // namespace equigrad::conformance
