// Random configurations: the same from the same seed, of many kinds, right as they are and an alarm
// when something is wrong.
#include "conformance/campaigns/clean_runs.hpp"

#include <gmock/gmock.h>

#include <set>

#include "conformance/cases/recipe.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

CleanOptions options(int64_t count) {
  CleanOptions chosen;
  chosen.count = count;
  chosen.seed = 5;
  chosen.data = find_data("", false);
  chosen.replay_prefix = "equigrad run";
  chosen.quiet = true;
  return chosen;
}

TEST(CleanRuns, NothingRaisesAnAlarm) {
  TaskSlots slots(2, 4, serve);
  const auto runs = clean_runs(options(40), slots);
  EXPECT_EQ(runs.run, 40);
  EXPECT_GT(runs.compared, 0);
  for (const auto& alarm : runs.alarms) ADD_FAILURE() << alarm.replay << "\n" << alarm.message;
}

TEST(CleanRuns, WhatIsNotCleanRaisesAnAlarmWithItsReplay) {
  const auto faulty = [](const nlohmann::json& request, ranks::RankContext& context) {
    auto with_fault = request;
    if (request.at("do") == "case") with_fault["fault"] = "averaged_twice";
    return serve(with_fault, context);
  };
  TaskSlots slots(2, 4, faulty);
  const auto runs = clean_runs(options(20), slots);
  EXPECT_EQ(runs.run, 20);
  ASSERT_FALSE(runs.alarms.empty());
  const auto& alarm = runs.alarms.front();
  EXPECT_THAT(alarm.replay, HasSubstr("equigrad run " + alarm.id + " --seed "));
  EXPECT_THAT(alarm.message, HasSubstr("first: step 1"));
}

// What has nothing to compare, as where every step overflows, gives way to others; if there is no
// end of it, it is an alarm after all.
TEST(CleanRuns, WhatHasNothingToCompareIsReplacedButNotWithoutEnd) {
  const auto empty = [](const nlohmann::json& request, ranks::RankContext& context) {
    auto answer = serve(request, context);
    if (request.at("do") == "case") answer.at("compared").erase("norm");
    return answer;
  };
  TaskSlots slots(2, 4, empty);
  const auto runs = clean_runs(options(20), slots);
  EXPECT_EQ(runs.run, 20);
  ASSERT_EQ(runs.alarms.size(), 20u);
  EXPECT_THAT(runs.alarms[0].message, HasSubstr("nothing was compared of the kind norm"));
  const auto once = [times = std::make_shared<int>(0)](const nlohmann::json& request,
                                                       ranks::RankContext& context) {
    auto answer = serve(request, context);
    if (request.at("do") == "case" && ++*times <= 3) answer.at("compared").erase("norm");
    return answer;
  };
  TaskSlots others(1, 4, once);
  EXPECT_THAT(clean_runs(options(20), others).alarms, IsEmpty());
}

TEST(CleanRuns, TheEndOfTimeEndsThem) {
  TaskSlots slots(1, 4, serve);
  auto late = options(20);
  late.is_late = [] { return true; };
  const auto runs = clean_runs(late, slots);
  EXPECT_EQ(runs.run, 0);
  EXPECT_EQ(runs.asked, 20);
}

TEST(CleanRuns, AGroupIsOfItsSeedAndItsNumber) {
  const auto one = clean_group(1, 7, true), same = clean_group(1, 7, true);
  EXPECT_EQ(one.seed, same.seed);
  EXPECT_EQ(one.cases, same.cases);
  EXPECT_EQ(one.knobs, same.knobs);
  EXPECT_NE(one.seed, clean_group(2, 7, true).seed);
  EXPECT_NE(one.seed, clean_group(1, 8, true).seed);
}

TEST(CleanRuns, GroupsHaveEveryValueOfEveryDimensionAndOneTwinEach) {
  std::map<std::string, std::set<std::string>> values;
  std::set<std::string> knobs;
  for (int64_t index = 0; index < 400; ++index) {
    const auto group = clean_group(3, index, true);
    for (const auto& spec : group.cases) {
      EXPECT_EQ(spec.tuple(), group.cases[0].tuple());
      EXPECT_FALSE(spec.is_refused()) << spec.id();
      for (const auto& [dimension, value] : spec.dimensions()) values[dimension].insert(value);
    }
    for (const auto& one : group.knobs) {
      const auto flat = one.flatten();
      for (const auto& [key, value] : flat.items()) knobs.insert(key);
    }
  }
  for (const auto& spec : full_matrix())
    for (const auto& [dimension, value] : spec.dimensions())
      EXPECT_TRUE(values[dimension].contains(value)) << dimension << " " << value;
  EXPECT_TRUE(values["accumulate"].contains("2") && values["accumulate"].contains("5"));
  EXPECT_GE(knobs.size(), 14u);
}

TEST(CleanRuns, KnobsReachTheEnginesConfigurationAndNothingElseDoes) {
  const CaseSpec spec;
  const auto model = reference::make_model(spec.model, 1);
  const auto text = config_text(spec, 0, *model);
  const auto plain = parse_config(text, 1);
  EXPECT_EQ(parse_config(with_knobs(text, nlohmann::json::object()), 1), plain);
  auto turned =
      parse_config(with_knobs(text, {{"zero_optimization", {{"reduce_bucket_size", 7}}}}), 1);
  EXPECT_EQ(turned.zero.reduce_bucket_size, 7);
  turned.zero.reduce_bucket_size = plain.zero.reduce_bucket_size;
  EXPECT_EQ(turned, plain);
}

}  // namespace
}  // namespace equigrad::conformance
