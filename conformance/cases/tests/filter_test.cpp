#include "conformance/cases/filter.hpp"

#include <gmock/gmock.h>

#include "conformance/cases/matrix.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool matches(const std::string& filter, const std::string& name) {
  return Filter(filter).matches({name});
}

// Every truth of a, b and c that an expression has: "abc" are the letters of those that hold.
std::string truths(const std::string& filter) {
  std::string table;
  for (const char* name : {"-", "a", "b", "ab", "c", "ac", "bc", "abc"})
    table += matches(filter, name) ? '1' : '0';
  return table;
}

TEST(Filter, NotBindsBeforeAndAndAndBeforeOr) {
  EXPECT_EQ(truths("a and b"), "00010001");
  EXPECT_EQ(truths("a or b"), "01110111");
  EXPECT_EQ(truths("not a"), "10101010");
  EXPECT_EQ(truths("a b"), truths("a and b"));
  EXPECT_EQ(truths("a or b and c"), truths("a or (b and c)"));
  EXPECT_EQ(truths("a and b or c"), truths("(a and b) or c"));
  EXPECT_EQ(truths("not a and b"), truths("(not a) and b"));
  EXPECT_EQ(truths("not a or b"), truths("(not a) or b"));
  EXPECT_EQ(truths("a not b"), truths("a and not b"));
  EXPECT_EQ(truths("a (b or c)"), truths("a and (b or c)"));
  EXPECT_EQ(truths("not (a or b)"), truths("not a and not b"));
  EXPECT_EQ(truths("not not a"), truths("a"));
  EXPECT_EQ(truths("a or b or c"), "01111111");
  EXPECT_EQ(truths("(a)"), truths("a"));
  EXPECT_EQ(truths(" a\tAND\nNOT b "), truths("a and not b"));
}

TEST(Filter, AWordIsAPartOrAGlobAndCaseDoesNotMatter) {
  EXPECT_TRUE(matches("REQUIRED", "Required.grad"));
  EXPECT_TRUE(matches("zero[13].* and *.gpt", "zero3.bf16.gpt"));
  EXPECT_FALSE(matches("zero[13].", "zero2."));
  EXPECT_TRUE(matches("android", "android")) << "an operator is a word of its own";
  EXPECT_THAT(Filter("a (b or not c*)").words(), ElementsAre("a", "b", "c*"));
}

TEST(Filter, RanksAndStagesMayBeSpelledAsTheOptionsAre) {
  const auto id =
      parse_id("Required.grad.zero3.bf16.w4.accumulation3.clip-off.sgd.conv.loss_backward");
  EXPECT_TRUE(matches("world4 and stage3", id.id()));
  EXPECT_FALSE(matches("world3", id.id()));
  EXPECT_FALSE(matches("not world4", id.id()));
  EXPECT_TRUE(matches("world4", "a.wide.w4"));
  EXPECT_EQ(select(default_matrix(), {{"world4"}, {}, {}, {}}).size(),
            select(default_matrix(), {{}, {}, {}, {4}}).size());
}

TEST(Filter, OneOfACasesNamesHasToMeetAWord) {
  EXPECT_TRUE(Filter("a and b").matches({"a", "b"}));
  EXPECT_FALSE(Filter("not a").matches({"a", "b"})) << "not: none of them meets it";
}

TEST(Filter, SeveralMeanOneOfThem) {
  EXPECT_TRUE(Filters({"a and b", "c"}).match({"c"}));
  EXPECT_FALSE(Filters({"a and b", "c"}).match({"a"}));
  EXPECT_TRUE(Filters({}).match({"a"}));
  const auto cases = default_matrix();
  const Selection both = {{"zero3 and bf16", "zero0 not fp32"}, {}, {}, {}};
  EXPECT_EQ(select(cases, both).size(), select(cases, {{both.filters[0]}, {}, {}, {}}).size() +
                                            select(cases, {{both.filters[1]}, {}, {}, {}}).size());
}

TEST(Filter, WhatIsNoneIsRefusedWithWhatIsMissing) {
  EXPECT_EQ(filter_problem("a and b"), "");
  EXPECT_THAT(filter_problem("zero3 and"), StartsWith("expected a word behind \"and\", got none"));
  EXPECT_THAT(filter_problem("and bf16"), HasSubstr("a word before \"and\""));
  EXPECT_THAT(filter_problem("a or or b"), HasSubstr("a word before \"or\""));
  EXPECT_THAT(filter_problem("a not"), HasSubstr("a word behind \"not\""));
  EXPECT_THAT(filter_problem("(a or b"), HasSubstr("a ) for every ("));
  EXPECT_THAT(filter_problem("a)"), HasSubstr("a ( for every )"));
  EXPECT_THAT(filter_problem("()"), HasSubstr("a word before \")\""));
  EXPECT_THAT(filter_problem(" "), HasSubstr("expected a word, got none"));
  EXPECT_THROW(Filter("("), Error);
  const std::string deep(100'000, '(');
  EXPECT_TRUE(matches(deep + "a" + std::string(deep.size(), ')'), "a"));
}

}  // namespace
}  // namespace equigrad::conformance
