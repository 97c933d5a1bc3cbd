// The panel is the covering selection, the plainest cases first; the contract's cases follow.
#include "conformance/campaigns/fault_panel.hpp"

#include <gtest/gtest.h>

#include <set>

#include "conformance/campaigns/covering_selection.hpp"

namespace equigrad::conformance {
namespace {

TEST(FaultPanel, HasEveryCaseOfTheCoveringSelectionThePlainestFirst) {
  EXPECT_EQ(fault_panel().size(), covering_selection().cases.size());
  std::set<std::string> ids;
  for (std::size_t i = 0; i < fault_panel().size(); ++i) {
    EXPECT_TRUE(covering_selection().has(fault_panel()[i])) << fault_panel()[i].id();
    ids.insert(fault_panel()[i].id());
  }
  EXPECT_EQ(ids.size(), fault_panel().size());
  const auto& first = fault_panel().front();
  EXPECT_EQ(first.model, "irregular");
  EXPECT_TRUE(first.clip == Clip::Off || first.clip == Clip::Below) << word(first.clip);
  EXPECT_EQ(scaling_of(first.precision), Scaling::None);
  EXPECT_GT(first.world, 1);
}

TEST(FaultPanel, HasEveryCaseOfTheContractOnceTheCoveringOnesFirst) {
  const auto panel = contract_panel();
  std::set<std::string> ids;
  for (const auto& spec : panel.cases) EXPECT_TRUE(ids.insert(spec.id()).second) << spec.id();
  EXPECT_EQ(ids.size(), contract::default_specs().size());
  EXPECT_EQ(panel.covering, covering_selection().specs.size());
  for (std::size_t i = 0; i < panel.cases.size(); ++i)
    EXPECT_EQ(covering_selection().has(panel.cases[i]), i < panel.covering) << i;
}

}  // namespace
}  // namespace equigrad::conformance
