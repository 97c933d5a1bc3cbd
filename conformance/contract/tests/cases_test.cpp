// The contract's cases hold, and each of them has been seen to fail.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <iostream>
#include <iterator>
#include <set>

#include "conformance/campaigns/contract_runner.hpp"
#include "conformance/contract/contract_case.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "engine/error.hpp"
#include "equigrad_build_info.hpp"
#include "reports/text.hpp"

namespace equigrad::conformance::contract {
namespace {

using reports::Verdict;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

ContractOptions options(std::vector<Spec> specs, bool fault) {
  ContractOptions made;
  made.specs = std::move(specs);
  made.data = find_data("", false);
  made.quiet = true;
  made.fault = fault;
  return made;
}

// One place for each case; all stages, both precisions and every accumulation have their turn.
std::vector<Spec> one_place_each() {
  std::vector<Spec> specs;
  int turn = 0;
  for (const auto& one : cases()) {
    const auto accumulation =
        one.places.accumulations[static_cast<std::size_t>(turn) % one.places.accumulations.size()];
    const auto mode = static_cast<std::size_t>(turn / 4) % one.places.precisions.size();
    specs.push_back({.of = &one,
                     .stage = turn % 4,
                     .precision = one.places.precisions[mode],
                     .world = std::max(2, one.places.smallest_world),
                     .accumulation = accumulation});
    ++turn;
  }
  return specs;
}

TEST(ContractCases, HoldAtEveryStageAndPrecision) {
  const auto records = run_contract(options(default_specs(), false));
  double seconds = 0;
  for (const auto& record : records) {
    EXPECT_EQ(record.verdict, Verdict::Equal) << record.id << "\n" << record.message;
    EXPECT_FALSE(reports::vacuous(record)) << record.id;
    seconds += record.seconds;
  }
  std::cout << records.size() << " cases, " << seconds << " s in all slots\n";
}

TEST(ContractCases, FailWithTheirFaultPlanted) {
  for (const auto& record : run_contract(options(one_place_each(), true))) {
    EXPECT_EQ(record.verdict, Verdict::Failed) << record.id;
    ASSERT_FALSE(record.lanes.empty()) << record.id << " ended early: " << record.message;
    EXPECT_GT(record.lanes[0].differing, 0) << record.id;
    EXPECT_TRUE(record.message.starts_with("  first   step ")) << record.message;
  }
}

// The first line has the parameter, the call that gave it and its first element; the next ones have
// the cause, in the words of the matrix.
TEST(ContractCases, SayWhichCallAndParameterFailedAndWhatItLooksLike) {
  auto planted = options(
      {parse_contract_id("Contract.2.two_losses_on_one_forward.zero2.fp32.w2.accumulation1")},
      false);
  planted.plant = "averaged_twice";
  const auto record = run_contract(planted).at(0);
  EXPECT_EQ(record.acted, true);
  const auto& message = record.message;
  EXPECT_THAT(message, StartsWith("  first   step 1, gradient of "));
  EXPECT_THAT(reports::first_line(message),
              AllOf(HasSubstr(" on rank "), HasSubstr(", by on_step(): got "), HasSubstr(" want "),
                    HasSubstr(" ulp)")));
  EXPECT_THAT(message, HasSubstr("averaged twice over 2 ranks"));
}

// An element counts from the beginning of the parameter, wherever the slice that differs begins.
TEST(ContractCases, SayTheElementOfTheWholeParameter) {
  auto planted = options(
      {parse_contract_id("Contract.2.two_losses_on_one_forward.zero2.fp32.w2.accumulation1")},
      false);
  const auto first = [&](const char* fault) {
    planted.plant = fault;
    return reports::first_line(run_contract(planted).at(0).message);
  };
  EXPECT_THAT(
      first("partition.border_owned_once"),
      HasSubstr("step 1, master of head.bias, element 3 on rank 1, by local_shards(): got "));
  EXPECT_THAT(first("gather_stale"), HasSubstr("step 2, parameter of encode.weight, element 46 on "
                                               "rank 0, by full_parameter(\"encode.weight\"): "));
}

TEST(ContractCases, HaveIdsThatAreUniqueAndParsed) {
  std::set<std::string> ids;
  for (const auto& spec : full_specs()) {
    EXPECT_TRUE(ids.insert(spec.id()).second) << spec.id();
    EXPECT_FALSE(spec.of->fault.empty() || spec.of->sentence.empty()) << spec.id();
  }
  for (const auto& spec : default_specs()) EXPECT_TRUE(ids.contains(spec.id())) << spec.id();
  EXPECT_EQ(parse_contract_id(default_specs().back().id()).id(), default_specs().back().id());
  EXPECT_THROW(parse_contract_id("Contract.2.no_such_case.zero1.fp32.w1.accumulation1"), Error);
}

TEST(ContractCases, AnswerEveryKnownMistakeUnderItsName) {
  std::set<std::string> known, want;
  for (int i = 1; i <= 7; ++i) want.insert("misbehaviour " + std::to_string(i));
  for (int i = 1; i <= 20; ++i) want.insert("trap " + std::to_string(i));
  for (const auto& mistake : known_mistakes()) {
    known.insert(mistake.id);
    std::string number = mistake.id.substr(mistake.id.find(' ') + 1);
    if (mistake.id[0] == 't' && number.size() == 1) number = "0" + number;
    const auto prefix = mistake.id.substr(0, mistake.id.find(' ')) + "-" + number + "-";
    EXPECT_EQ(mistake.name.substr(0, prefix.size()), prefix);
    const auto selected = selected_specs({.filters = {"Contract." + mistake.name + "."}}, false);
    EXPECT_FALSE(selected.empty()) << mistake.name;
    for (const auto& spec : selected)
      EXPECT_EQ(std::count(spec.of->answers.begin(), spec.of->answers.end(), mistake.id), 1)
          << spec.id() << " " << mistake.name;
  }
  EXPECT_EQ(known, want);
  for (const auto& one : cases())
    for (const auto& id : one.answers) EXPECT_TRUE(known.contains(id)) << one.name << " " << id;
}

TEST(ContractCases, CanBeAskedForByEveryNameTheyHave) {
  std::set<std::string> names;
  for (const auto& spec : full_specs())
    for (const auto& alias : aliases(spec)) EXPECT_TRUE(names.insert(alias).second) << alias;
  const auto with_names = [](const Spec& one) { return !aliases(one).empty(); };
  const auto all = default_specs();
  const auto found = std::find_if(all.begin(), all.end(), with_names);
  ASSERT_NE(found, all.end());
  const auto selected = selected_specs({.filters = {aliases(*found)[0]}}, false);
  ASSERT_EQ(selected.size(), 1u);
  EXPECT_EQ(selected[0].id(), found->id());
}

TEST(ContractCases, AndTheirKnownMistakesAreTheTableOfTheReadMe) {
  std::ifstream file(std::string(build_info::source_directory()) +
                     "/conformance/contract/README.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(text.find(known_mistakes_table()), std::string::npos)
      << "expected this table in README.md:\n"
      << known_mistakes_table();
}

TEST(ContractCases, HaveASectionEach) {
  std::set<std::string> numbers;
  for (const auto& section : sections()) numbers.insert(section.number);
  for (const auto& one : cases()) EXPECT_TRUE(numbers.contains(one.section)) << one.name;
  EXPECT_EQ(statements().size(), sections().size() + cases().size());
}

}  // namespace
}  // namespace equigrad::conformance::contract
