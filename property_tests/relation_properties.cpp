// The table of relations: each holds wherever its guard does, and each has been seen to fail.
//
//   EQUIGRAD_TRIALS=200 relation_properties          that many random settings; 4 without it
//   EQUIGRAD_FAULTS=word_lost,clip.twice relation_properties --gtest_filter='*Which*'
//                                                    prints which relations catch these faults,
//                                                    or which of EQUIGRAD_RELATIONS=39,30
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <sstream>

#include "conformance/ranks/pool.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

// RapidCheck reads its settings before main.
const bool kTrialsAreSet = [] {
  const char* wanted = std::getenv("EQUIGRAD_TRIALS");
  const char* given = std::getenv("RC_PARAMS");
  const std::string most = "max_success=" + std::string(wanted != nullptr ? wanted : "4");
  return setenv("RC_PARAMS", (most + " " + (given != nullptr ? given : "")).c_str(), 1) == 0;
}();

// The relations "numbers" whose guards hold -> "", kDoesNotApply, or what is wrong, by number.
json serve(const json& one, RankContext& context) {
  Runs runs(one, context);
  json found = json::object();
  const auto numbers = one.at("numbers").get<std::set<int>>();
  for (const auto& relation : table()) {
    if (!numbers.contains(relation.number) || !relation.guard(one)) continue;
    context.note("relation " + std::to_string(relation.number));
    found[std::to_string(relation.number)] = relation.check(one, runs);
  }
  return found;
}

using Found = std::map<int, std::string>;

// What the ranks found; under 0 what kept them from answering.
Found run(json one, const std::set<int>& numbers) {
  static conformance::ranks::Pool pool(4, serve, {.grace = std::chrono::milliseconds{300}});
  one["numbers"] = numbers;
  std::vector<int> ranks(one.at("world").get<std::size_t>());
  for (std::size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
  const auto outcomes = pool.run(ranks, one);
  const auto failed = conformance::ranks::failures(outcomes);
  if (!failed.empty()) return {{0, failed}};
  Found found;
  for (const auto& outcome : outcomes)
    for (const auto& [number, wrong] : outcome.answer.items()) {
      auto& all = found[std::stoi(number)];
      if (all.empty() || all == kDoesNotApply) all = wrong.get<std::string>();
    }
  return found;
}

bool is_broken(const std::string& wrong) { return !wrong.empty() && wrong != kDoesNotApply; }

std::string broken(const Found& found, const json& one) {
  for (const auto& [number, wrong] : found)
    if (is_broken(wrong))
      return "relation " + std::to_string(number) + ": " + wrong + " in " + one.dump();
  return "";
}

std::set<int> all_numbers() {
  std::set<int> numbers;
  for (const auto& relation : table()) numbers.insert(relation.number);
  return numbers;
}

TEST(Relations, AreFortyAtLeastAndEachIsThereOnce) {
  EXPECT_EQ(all_numbers().size(), table().size());
  EXPECT_GE(table().size(), 40u);
  for (const auto& relation : table()) EXPECT_FALSE(relation.catches.empty()) << relation.name;
}

TEST(Relations, HoldOnTheGridAndEveryGuardHoldsSomewhere) {
  std::map<int, int> applied;
  for (const auto& one : grid()) {
    const auto found = run(one, all_numbers());
    EXPECT_EQ(broken(found, one), "");
    for (const auto& [number, wrong] : found) applied[number] += wrong == kDoesNotApply ? 0 : 1;
  }
  for (const auto& relation : table())
    EXPECT_GT(applied[relation.number], 0) << relation.number << ": " << relation.name;
}

// Whether the relation is broken in one of these settings, or ranks fail. A hang tells nothing.
bool sees(const Relation& relation, const std::string& fault, const std::vector<json>& settings) {
  for (auto one : settings) {
    one["fault"] = fault;
    for (const auto& [number, wrong] : run(one, {relation.number}))
      if (is_broken(wrong) && wrong.find(" timed out: ") == std::string::npos) return true;
  }
  return false;
}

TEST(Relations, EachCatchesItsFaults) {
  for (const auto& relation : table())
    for (const auto& fault : relation.catches)
      EXPECT_TRUE(sees(relation, fault, grid()))
          << relation.number << " (" << relation.name << ") does not see " << fault;
}

std::vector<std::string> words_of(const char* variable) {
  const char* given = std::getenv(variable);
  std::stringstream all(given == nullptr ? "" : given);
  std::vector<std::string> words;
  for (std::string word; std::getline(all, word, ',');) words.push_back(word);
  return words;
}

TEST(Relations, WhichCatchTheFaultsThatAreAskedFor) {
  const auto all = grid();  // of which four have every stage and type
  std::set<int> asked;
  for (const auto& word : words_of("EQUIGRAD_RELATIONS")) asked.insert(std::stoi(word));
  for (const auto& fault : words_of("EQUIGRAD_FAULTS")) {
    std::printf("%s:", fault.c_str());
    for (const auto& relation : table())
      if ((asked.empty() || asked.contains(relation.number)) &&
          sees(relation, fault, {all[0], all[5], all[7], all[10]}))
        std::printf(" %d", relation.number);
    std::printf("\n");
    std::fflush(stdout);
  }
}

json any_setting() {
  const int dtype = *rc::gen::inRange(0, 3), rule = *rc::gen::inRange(0, 3);
  const auto size = [] { return *rc::gen::inRange<int64_t>(1, 120); };
  return {{"world", *rc::gen::inRange(1, 5)},
          {"stage", *rc::gen::inRange(0, 4)},
          {"accumulation", *rc::gen::inRange(1, 5)},
          {"dtype", dtype},
          {"wide_sums", dtype == kFp32 || *rc::gen::arbitrary<bool>()},
          {"model", *rc::gen::inRange(0, 3)},
          {"rule", rule},
          {"clip", *rc::gen::element(0.0, 0.05, 1e6)},
          {"decay", *rc::gen::element(0.0, 0.1)},
          {"momentum", *rc::gen::element(0.0, 0.9)},
          {"schedule", {size(), size(), size(), size() / 2, size() * 5, size() * 5}},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 20))}};
}

RC_GTEST_PROP(Relations, HoldInRandomSettings, ()) {
  const json one = any_setting();
  RC_ASSERT(broken(run(one, all_numbers()), one) == "");
}

}  // namespace
}  // namespace equigrad::property_tests::relations
