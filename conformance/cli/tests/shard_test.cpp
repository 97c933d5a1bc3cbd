#include "conformance/cli/shard.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "conformance/cli/tests/command_result.hpp"
#include "engine/config/config.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::HasSubstr;

// 30 twins of 16 cases, a fourth of which costs four times as much, and 100 cases of their own.
std::vector<ShardCase> some_cases() {
  std::vector<ShardCase> cases;
  for (int twin = 0; twin < 30; ++twin)
    for (int i = 0; i < 16; ++i)
      cases.push_back({"twin" + std::to_string(twin) + "." + std::to_string(i),
                       "twin" + std::to_string(twin), twin % 4 == 0 ? 8 : 2});
  for (int i = 0; i < 100; ++i)
    cases.push_back({"alone" + std::to_string(i), "alone" + std::to_string(i), 1 + i % 4});
  return cases;
}

std::vector<std::set<std::string>> all_shards(const std::vector<ShardCase>& cases, int count) {
  std::vector<std::set<std::string>> shards;
  for (int index = 1; index <= count; ++index)
    shards.push_back(ids_of_shard(cases, {index, count}));
  return shards;
}

TEST(Shard, TheyAreDisjointAndTogetherAllOfIt) {
  const auto cases = some_cases();
  for (const int count : {1, 2, 3, 5, 7, 64, 580}) {
    std::multiset<std::string> together;
    for (const auto& shard : all_shards(cases, count)) {
      EXPECT_FALSE(shard.empty()) << count;
      together.insert(shard.begin(), shard.end());
    }
    EXPECT_EQ(together.size(), cases.size()) << count;
    for (const auto& one : cases) EXPECT_EQ(together.count(one.id), 1u) << one.id;
  }
}

// A twin is taken apart where there would be too little for a shard otherwise.
TEST(Shard, NoneIsEmpty) {
  for (const auto& shard : all_shards({{"a", "a", 100}, {"b.1", "b", 1}, {"b.2", "b", 1}}, 3))
    EXPECT_EQ(shard.size(), 1u);
}

TEST(Shard, TheyDependOnTheCasesAloneNotOnTheirOrder) {
  auto cases = some_cases();
  const auto before = all_shards(cases, 5);
  std::mt19937 random(1);
  std::shuffle(cases.begin(), cases.end(), random);
  EXPECT_EQ(all_shards(cases, 5), before);
}

TEST(Shard, TheirWorkDiffersByLessThanAnEighthOfOne) {
  const auto cases = some_cases();
  const auto all =
      std::accumulate(cases.begin(), cases.end(), int64_t{0},
                      [](int64_t sum, const ShardCase& one) { return sum + one.cost; });
  for (const int count : {2, 3, 5, 7}) {
    std::vector<int64_t> work;
    for (const auto& shard : all_shards(cases, count)) {
      work.push_back(0);
      for (const auto& one : cases)
        if (shard.contains(one.id)) work.back() += one.cost;
    }
    const auto [least, most] = std::minmax_element(work.begin(), work.end());
    EXPECT_LE(*most - *least, all / (8 * count)) << count;
  }
}

// Each twin has to be made once, by the shard that has its cases.
TEST(Shard, CasesOfATwinStayTogetherWhereThatIsPossible) {
  const auto shards = all_shards(some_cases(), 2);
  for (int twin = 0; twin < 30; ++twin) {
    const auto id = "twin" + std::to_string(twin) + ".";
    for (const auto& shard : shards)
      for (int i = 1; i < 16; ++i)
        EXPECT_EQ(shard.contains(id + std::to_string(i)), shard.contains(id + "0")) << id << i;
  }
}

TEST(Shard, ATextThatIsNoneIsRefused) {
  for (const char* text : {"1/1", "2/5", "5/5"}) EXPECT_EQ(shard_problem(text), "") << text;
  for (const char* text :
       {"", "2", "0/5", "6/5", "2/5/6", "a/5", "2/", "/5", "-1/5", "2/5 ", "1/0"})
    EXPECT_THAT(shard_problem(text), HasSubstr("such as 2/5")) << text;
  EXPECT_THROW(ids_of_shard({{"a", "a", 1}}, {1, 2}), ConfigError);
}

TEST(Shard, TheListsOfTheCommandArePartsOfTheWholeList) {
  const auto list = [](const std::string& shard) {
    const auto said = result_of_words({"list", "conv and not world3", "--shard", shard});
    EXPECT_EQ(said.code, kHeld) << said.err;
    std::istringstream stream(said.out);
    std::set<std::string> ids;
    for (std::string id; std::getline(stream, id);) EXPECT_TRUE(ids.insert(id).second) << id;
    return ids;
  };
  auto together = list("1/3");
  const auto first = together.size();
  for (const char* other : {"2/3", "3/3"})
    for (const auto& id : list(other)) EXPECT_TRUE(together.insert(id).second) << id;
  EXPECT_EQ(together, list("1/1"));
  EXPECT_LT(first, together.size());
  EXPECT_EQ(result_of_words({"list", "--shard", "4/3"}).code, kUsage);
  const auto few = result_of_words({"list", *together.begin(), "--shard", "1/2"});
  EXPECT_EQ(few.code, kUsage);
  EXPECT_THAT(few.err, HasSubstr("at least as many cases as shards, got 1 and --shard 1/2"));
}

}  // namespace
}  // namespace equigrad::conformance::cli
