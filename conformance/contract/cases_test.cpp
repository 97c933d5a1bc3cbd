// The contract's cases hold, and each of them has been seen to fail.
#include <gtest/gtest.h>

#include <iostream>
#include <set>

#include "conformance/contract/contract_case.hpp"
#include "conformance/contract/contract_runner.hpp"
#include "conformance/contract/known_mistakes.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance::contract {
namespace {

using reports::Verdict;

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
    const auto gas = one.accumulations[static_cast<std::size_t>(turn) % one.accumulations.size()];
    specs.push_back({&one, turn % 4, turn / 4 % 2 == 1, 2, gas});
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
  std::cout << records.size() << " cases, " << seconds << " s in all lanes\n";
}

TEST(ContractCases, FailWithTheirFaultPlanted) {
  for (const auto& record : run_contract(options(one_place_each(), true))) {
    EXPECT_EQ(record.verdict, Verdict::Failed) << record.id;
    ASSERT_FALSE(record.lanes.empty()) << record.id << " ended early: " << record.message;
    EXPECT_GT(record.lanes[0].differing, 0) << record.id;
  }
}

TEST(ContractCases, HaveIdsThatAreUniqueAndParsed) {
  std::set<std::string> ids;
  for (const auto& spec : full_specs()) {
    EXPECT_TRUE(ids.insert(spec.id()).second) << spec.id();
    EXPECT_FALSE(spec.of->fault.empty() || spec.of->sentence.empty()) << spec.id();
  }
  for (const auto& spec : default_specs()) EXPECT_TRUE(ids.contains(spec.id())) << spec.id();
  EXPECT_EQ(parse_contract_id(default_specs().back().id()).id(), default_specs().back().id());
  EXPECT_THROW(parse_contract_id("Contract.2.no_such_case.zero1.fp32.w1.gas1"), Error);
}

TEST(ContractCases, AnswerEveryKnownMistakeThatFp32AndBf16CanMake) {
  std::set<std::string> answered, known;
  for (const auto& one : cases()) answered.insert(one.answers.begin(), one.answers.end());
  for (const auto& mistake : known_mistakes()) {
    known.insert(mistake.id);
    EXPECT_NE(answered.contains(mistake.id), mistake.of_loss_scale) << mistake.id;
  }
  EXPECT_EQ(known.size(), 27u);
  for (const auto& id : answered) EXPECT_TRUE(known.contains(id)) << id;
}

TEST(ContractCases, HaveASectionEach) {
  std::set<std::string> numbers;
  for (const auto& section : sections()) numbers.insert(section.number);
  for (const auto& one : cases()) EXPECT_TRUE(numbers.contains(one.section)) << one.name;
  EXPECT_EQ(statements().size(), sections().size() + cases().size());
}

}  // namespace
}  // namespace equigrad::conformance::contract
