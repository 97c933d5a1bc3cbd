// Tied, scalar, empty and frozen parameters; names that are doubled, empty or unknown.
#include "engine/layout/parameter_table.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "engine/error.hpp"

namespace equigrad::layout {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Six tensors to have addresses.
const std::array<char, 6> kTensors{};
const void* tensor(std::size_t index) { return &kTensors[index]; }

std::string error_of(const std::vector<Registration>& registrations) {
  try {
    const ParameterTable table(registrations);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(ParameterTable, KeepsRegistrationOrderAndCountsElements) {
  const ParameterTable table({{"weight", tensor(0), {3, 5}, true, 0},
                              {"scale", tensor(1), {}, true, 1},
                              {"empty", tensor(2), {4, 0}, true, 0},
                              {"frozen", tensor(3), {7}, false, 0}});
  ASSERT_EQ(table.size(), 4u);
  EXPECT_EQ(table[0], (Entry{.name = "weight",
                             .numel = 15,
                             .shape = {3, 5},
                             .trainable = true,
                             .group = 0,
                             .lower_precision = false,
                             .aliases = {}}));
  EXPECT_EQ(table[1], (Entry{.name = "scale",
                             .numel = 1,
                             .shape = {},
                             .trainable = true,
                             .group = 1,
                             .lower_precision = false,
                             .aliases = {}}));
  EXPECT_EQ(table[2], (Entry{.name = "empty",
                             .numel = 0,
                             .shape = {4, 0},
                             .trainable = true,
                             .group = 0,
                             .lower_precision = false,
                             .aliases = {}}));
  EXPECT_EQ(table[3], (Entry{.name = "frozen",
                             .numel = 7,
                             .shape = {7},
                             .trainable = false,
                             .group = 0,
                             .lower_precision = false,
                             .aliases = {}}));
}

TEST(ParameterTable, ATiedParameterHasOneEntryAndEveryNameFindsIt) {
  const ParameterTable table({{"embed", tensor(0), {4}, true, 0},
                              {"bias", tensor(1), {2}, true, 0},
                              {"head", tensor(0), {4}, true, 0},
                              {"last", tensor(0), {4}, true, 0}});
  ASSERT_EQ(table.size(), 2u);
  EXPECT_THAT(table[0].aliases, ElementsAre("head", "last"));
  EXPECT_EQ(table.index_of("embed"), 0u);
  EXPECT_EQ(table.index_of("last"), 0u);
  EXPECT_EQ(table.index_of("bias"), 1u);
  EXPECT_TRUE(table.contains("head"));
  EXPECT_FALSE(table.contains("heads"));
}

TEST(ParameterTable, ATiedParameterIsOfLowerPrecisionIfEveryNameIs) {
  const ParameterTable table({{"linear", tensor(0), {4}, true, 0, true},
                              {"embed", tensor(1), {2}, true, 0, false},
                              {"head", tensor(1), {2}, true, 0, true},
                              {"again", tensor(0), {4}, true, 0, true}});
  EXPECT_TRUE(table[0].lower_precision);
  EXPECT_FALSE(table[1].lower_precision);
}

TEST(ParameterTable, ATiedParameterInTwoGroupsIsAnError) {
  EXPECT_THAT(error_of({{"embed", tensor(0), {4}, true, 0}, {"head", tensor(0), {4}, true, 1}}),
              HasSubstr("\"embed\" and \"head\" in groups 0 and 1"));
}

TEST(ParameterTable, TiedNamesThatDisagreeAreAnError) {
  EXPECT_THAT(error_of({{"a", tensor(0), {4}, true, 0}, {"b", tensor(0), {2, 2}, true, 0}}),
              HasSubstr("different shapes"));
  EXPECT_THAT(error_of({{"a", tensor(0), {4}, true, 0}, {"b", tensor(0), {4}, false, 0}}),
              HasSubstr("requires_grad"));
  EXPECT_THAT(
      error_of({{"a", tensor(0), {4}, false, 0, false, 8}, {"b", tensor(0), {4}, false, 0}}),
      HasSubstr("different shapes, types"));
}

TEST(ParameterTable, DoubledEmptyAndUnaddressedNamesAreErrors) {
  EXPECT_THAT(error_of({{"a", tensor(0), {4}, true, 0}, {"a", tensor(1), {4}, true, 0}}),
              HasSubstr("got \"a\" twice"));
  EXPECT_THAT(error_of({{"a", tensor(0), {4}, true, 0}, {"a", tensor(0), {4}, true, 0}}),
              HasSubstr("got \"a\" twice"));
  EXPECT_THAT(error_of({{"", tensor(0), {4}, true, 0}}), HasSubstr("got an empty one"));
  EXPECT_THAT(error_of({{"a", nullptr, {4}, true, 0}}), HasSubstr("got null"));
}

TEST(ParameterTable, ShapesThatAreNegativeOrOverflowAreErrors) {
  EXPECT_THAT(error_of({{"a", tensor(0), {-1}, true, 0}}), HasSubstr("got size -1"));
  const std::int64_t half = std::numeric_limits<std::int64_t>::max() / 2;
  EXPECT_THAT(error_of({{"a", tensor(0), {half, 3}, true, 0}}), HasSubstr("64 bits"));
}

TEST(ParameterTable, AnUnknownNameGetsASuggestion) {
  const ParameterTable table({{"blocks.0.weight", tensor(0), {4}, true, 0}});
  try {
    table.index_of("block.0.weight");
    ADD_FAILURE() << "expected an error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("Did you mean \"blocks.0.weight\"?"));
  }
}

}  // namespace
}  // namespace equigrad::layout
