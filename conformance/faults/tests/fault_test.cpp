// The catalogue is complete: every row of README.md's tables has faults of that name, or a reason.
#include "conformance/faults/fault.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "conformance/faults/survivors.hpp"
#include "engine/error.hpp"
#include "equigrad_build_info.hpp"

namespace equigrad::conformance::faults {
namespace {

using ::testing::Contains;

TEST(Catalogue, HasNamesOfItsOwnSeamsAndPhases) {
  std::set<std::string> names;
  for (const auto& fault : catalogue()) {
    EXPECT_TRUE(names.insert(fault.name).second) << fault.name;
    EXPECT_THAT(kSeams, Contains(fault.seam)) << fault.name;
    EXPECT_THAT(kPhases, Contains(fault.phase)) << fault.name;
    EXPECT_FALSE(fault.what.empty()) << fault.name;
    EXPECT_TRUE(fault.plant || fault.wrap) << fault.name;
    EXPECT_EQ(&fault_named(fault.name), &fault);
  }
  for (const auto& seam : kSeams)
    EXPECT_TRUE(std::any_of(catalogue().begin(), catalogue().end(), [&](const Fault& fault) {
      return fault.seam == seam;
    })) << seam;
  EXPECT_THROW(fault_named("none"), Error);
}

TEST(Catalogue, HasSixtyHistoricalFaultsAndThreeHundredInAll) {
  const auto historical = std::count_if(catalogue().begin(), catalogue().end(),
                                        [](const Fault& fault) { return !fault.bugs.empty(); });
  EXPECT_GE(historical, 60);
  EXPECT_GE(catalogue().size(), 300u);
}

// By the bug's id: what the last column has to say.
std::map<std::string, std::string> expected_rows() {
  std::map<std::string, std::vector<std::string>> by_bug;
  for (const auto& fault : catalogue())
    for (const auto& bug : fault.bugs) by_bug[bug].push_back(fault.name);
  std::map<std::string, std::string> rows;
  for (auto& [bug, names] : by_bug) {
    std::sort(names.begin(), names.end());
    for (const auto& name : names) rows[bug] += (rows[bug].empty() ? "`" : ", `") + name + "`";
  }
  for (const auto& open : open_bugs()) {
    EXPECT_FALSE(rows.contains(open.id)) << open.id << " is open, and has a fault";
    rows[open.id] = "open: " + open.why;
  }
  return rows;
}

TEST(Catalogue, AndItsOpenBugsAreTheTablesOfTheReadMe) {
  std::ifstream file(std::string(build_info::source_directory()) + "/conformance/faults/README.md");
  auto rows = expected_rows();
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| ") || line.size() < 8 || line[4] != '-') continue;
    const auto id = line.substr(2, line.find(' ', 2) - 2);
    const auto last = line.rfind(" | ", line.size() - 3) + 3;
    EXPECT_EQ(line.substr(last, line.size() - 2 - last), rows[id]) << id;
    rows.erase(id);
  }
  for (const auto& [id, text] : rows) ADD_FAILURE() << id << " is not in README.md: " << text;
}

// A proof of a fault that is no more says nothing.
TEST(Survivors, AreFaultsOfTheCatalogueEachOnceAndWithAProof) {
  const auto names = fault_names();
  std::set<std::string> seen;
  for (const auto& survivor : survivors()) {
    EXPECT_THAT(names, Contains(survivor.fault));
    EXPECT_TRUE(seen.insert(survivor.fault).second) << survivor.fault;
    EXPECT_FALSE(survivor.proof.empty()) << survivor.fault;
  }
}

TEST(FaultContext, RemembersTheFirstActOnly) {
  const auto moment = std::make_shared<Moment>(Moment{1, 2, 3});
  FaultContext context(0, 2, moment, {"a", "b"});
  context.acted_on(1);
  *moment = {2, 0, 3};
  context.acted_on(0);
  EXPECT_EQ(context.act().times, 2);
  EXPECT_EQ(context.act().first.step, 1);
  EXPECT_EQ(context.act().first.micro_batch, 2);
  EXPECT_EQ(context.act().parameters, std::set<std::string>{"b"});
}

}  // namespace
}  // namespace equigrad::conformance::faults
