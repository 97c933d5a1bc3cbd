// A run in two parts: the covering selection's cases first, each case once, each twin once.
#include "conformance/campaigns/suite.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "conformance/campaigns/covering_selection.hpp"
#include "conformance/cases/covering.hpp"

namespace equigrad::conformance {
namespace {

using reports::Verdict;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<std::string> ids(const std::vector<reports::Case>& cases) {
  std::vector<std::string> names;
  for (const auto& one : cases) names.push_back(one.id);
  return names;
}

// Two small cases of the covering selection, others that share a twin with them, and three of the
// contract, of which one is of the covering selection; those of the covering selection last.
SuiteOptions options() {
  SuiteOptions chosen;
  for (const auto& spec : covering_selection().cases)
    if (spec.model == "irregular" && spec.world == 2 && chosen.matrix.cases.size() < 2)
      chosen.matrix.cases.push_back(spec);
  auto& cases = chosen.matrix.cases;
  const auto covering = cases;
  for (const auto& spec : covering) {
    auto other = spec;
    other.stage = spec.stage == 3 ? 2 : 3;
    cases.insert(cases.begin(), other);
  }
  chosen.matrix.data = chosen.contract.data = find_data("", false);
  chosen.matrix.quiet = chosen.contract.quiet = true;
  chosen.matrix.slots = 2;
  chosen.matrix.replay_prefix = "equigrad run";
  const auto specs = contract::default_specs();
  for (const auto& spec : specs)
    if (!covering_selection().has(spec) && chosen.contract.specs.size() < 2)
      chosen.contract.specs.push_back(spec);
  chosen.contract.specs.push_back(covering_selection().specs.front());
  chosen.in_parts = true;
  return chosen;
}

TEST(Suite, TheCoveringSelectionsCasesEndBeforeTheOthersBegin) {
  auto chosen = options();
  const auto cases = chosen.matrix.cases;
  std::vector<reports::Run> told;
  chosen.covering_ended = [&](const reports::Run& part) { told.push_back(part); };
  const auto run = run_suite(chosen);
  ASSERT_THAT(told, SizeIs(1));
  const auto& specs = chosen.contract.specs;
  EXPECT_THAT(ids(told[0].cases), ElementsAre(cases[2].id(), cases[3].id(), specs[2].id()));
  for (const auto& one : told[0].cases) EXPECT_TRUE(reports::passed(one.verdict)) << one.message;
  EXPECT_EQ(told[0].self_checks.size(), run.self_checks.size()) << "a void part says so";
  EXPECT_THAT(ids(run.cases),
              ElementsAre(cases[2].id(), cases[3].id(), specs[2].id(), cases[0].id(), cases[1].id(),
                          specs[0].id(), specs[1].id()));
  for (const auto& one : run.cases) EXPECT_TRUE(reports::passed(one.verdict)) << one.message;
  ASSERT_THAT(run.parts, SizeIs(2));
  EXPECT_EQ(run.parts[0].name, "covering");
  EXPECT_EQ(run.parts[0].cases, 3);
  EXPECT_EQ(run.parts[1].cases, 4);
  EXPECT_EQ(reports::exit_code(run), 0);
}

TEST(Suite, TheCasesThatHaveEveryValueAreToldFirstWithTheirTime) {
  auto chosen = options();
  chosen.contract.specs.clear();
  chosen.matrix.cases.clear();
  for (const auto& spec : covering_selection().cases)
    if (spec.model.ends_with("2") && spec.world == 2) chosen.matrix.cases.push_back(spec);
  const auto cases = static_cast<int64_t>(chosen.matrix.cases.size());
  std::vector<reports::Run> told;
  chosen.first_ended = [&](const reports::Run& part) { told.push_back(part); };
  const auto run = run_suite(chosen);
  ASSERT_THAT(told, SizeIs(1));
  const auto& part = told[0].parts.at(0);
  EXPECT_EQ(part.name, "every value");
  EXPECT_GT(part.cases, 0);
  EXPECT_LT(part.cases, cases);
  EXPECT_THAT(told[0].cases, SizeIs(static_cast<std::size_t>(part.cases)));
  EXPECT_GT(part.wall_s, 0);
  EXPECT_LT(part.wall_s, run.parts.at(0).wall_s);
}

TEST(Suite, EveryCaseIsAskedForOnceAndATwinServesBothParts) {
  std::string log = testing::TempDir() + "suite-XXXXXX";
  close(mkstemp(log.data()));
  auto chosen = options();
  chosen.contract.specs.clear();
  chosen.matrix.serve = [log](const nlohmann::json& request, ranks::RankContext& context) {
    if (context.rank() == 0)
      std::ofstream(log, std::ios::app) << request.at("do").get<std::string>() +
                                               (request.contains("fault") ? "+fault" : "") + "\n";
    return serve(request, context);
  };
  run_suite(chosen);
  std::ifstream file(log);
  std::vector<std::string> asked;
  for (std::string line; std::getline(file, line);) asked.push_back(line);
  unlink(log.c_str());
  const auto last_fault = std::find(asked.rbegin(), asked.rend(), "case+fault");
  const auto count = [&](const char* what) { return std::count(asked.rbegin(), last_fault, what); };
  EXPECT_EQ(count("case"), 4) << "after the planted faults";
  EXPECT_EQ(count("twin"), 2);
}

TEST(Suite, OfASelectionThereAreNoParts) {
  auto chosen = options();
  const auto cases = chosen.matrix.cases;
  chosen.contract.specs.clear();
  chosen.in_parts = false;
  chosen.covering_ended = [](const reports::Run&) { ADD_FAILURE() << "there are no parts"; };
  const auto run = run_suite(chosen);
  EXPECT_THAT(run.parts, IsEmpty());
  EXPECT_EQ(run.cases.front().id, cases.front().id());
}

TEST(Suite, AfterAFailureNoOtherCaseIsBegunIfThatIsAsked) {
  auto chosen = options();
  chosen.matrix.fault = "averaged_twice";
  chosen.matrix.fail_fast = chosen.contract.fail_fast = true;
  chosen.matrix.slots = 1;
  chosen.generated = GeneratedOptions{.count = 1, .quiet = true};
  chosen.covering_ended = [](const reports::Run&) { ADD_FAILURE() << "a part was not run"; };
  const auto run = run_suite(chosen);
  ASSERT_THAT(run.cases, SizeIs(7));
  EXPECT_EQ(run.cases[0].verdict, Verdict::Failed) << run.cases[0].message;
  for (std::size_t i = 1; i < run.cases.size(); ++i) {
    EXPECT_EQ(run.cases[i].verdict, Verdict::NotRun) << run.cases[i].id;
    EXPECT_EQ(run.cases[i].message, kNotAfterAFailure) << run.cases[i].id;
  }
  EXPECT_FALSE(run.generated.has_value());
  EXPECT_EQ(reports::exit_code(run), 1);
}

TEST(Suite, WithoutARestNothingIsToldBeforeTheEnd) {
  auto chosen = options();
  chosen.matrix.cases.erase(chosen.matrix.cases.begin(), chosen.matrix.cases.begin() + 2);
  chosen.contract.specs.clear();
  chosen.covering_ended = [](const reports::Run&) { ADD_FAILURE() << "there is no rest"; };
  EXPECT_THAT(run_suite(chosen).parts, SizeIs(1));
}

}  // namespace
}  // namespace equigrad::conformance
