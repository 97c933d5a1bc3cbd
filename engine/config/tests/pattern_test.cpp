// What a pattern matches, and which patterns are refused because Python reads them otherwise.
#include "engine/config/pattern.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/error.hpp"

namespace equigrad {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(Pattern, MatchesFromTheBeginningAndNotToTheEnd) {
  EXPECT_TRUE(Pattern(R"(.*\.o_proj\.weight$)").matches("model.layers.0.self_attn.o_proj.weight"));
  EXPECT_FALSE(Pattern(R"(.*\.o_proj$)").matches("model.layers.0.self_attn.o_proj.weight"));
  EXPECT_TRUE(Pattern("model").matches("model.norm.weight"));
  EXPECT_FALSE(Pattern("norm").matches("model.norm.weight"));
  EXPECT_TRUE(Pattern(R"(.*\.[qkv]_proj\.)").matches("a.k_proj.weight"));
  EXPECT_TRUE(Pattern(R"(.*experts\.\d+\.w[13]\b)").matches("moe.experts.11.w3.weight"));
  EXPECT_FALSE(Pattern(R"(.*experts\.\d+\.w[13]\b)").matches("moe.experts.w3.weight"));
  EXPECT_TRUE(Pattern(R"((?!model)(?:head|embed)\.(\w+)$)").matches("head.weight"));
}

TEST(Pattern, ThatIsNoneIsRefusedAndShown) {
  for (const char* wrong : {"(", "a[", "*a", "a{2", "[z-a]", "a**", "\\", "(?:", "a)"})
    EXPECT_THAT(problem_of_pattern(wrong), HasSubstr("got \"" + std::string(wrong) + "\""));
  EXPECT_THAT(problem_of_pattern(""), StartsWith("expected a regular expression, got \"\""));
  EXPECT_THAT(problem_of_pattern(std::string(1001, 'a')),
              StartsWith("expected at most 1000 characters, got 1001."));
  EXPECT_EQ(problem_of_pattern(std::string(1000, 'a')), "");
  EXPECT_NE(problem_of_pattern("(a{1000}){1000}"), "") << "too many states";
  EXPECT_THROW(Pattern("("), Error);
}

TEST(Pattern, ThatPythonReadsOtherwiseIsRefused) {
  for (const char* wrong : {R"(\Amodel)", R"(.*weight\Z)", "(?i)model", "(?P<a>x)", "(?<=a)b",
                            "[]a]", "[^]a]", "a*+", "[[:alpha:]]", R"(\cA)"})
    EXPECT_THAT(problem_of_pattern(wrong), HasSubstr("what Python and ECMAScript have in common"))
        << wrong;
  for (const char* common : {R"([a\]]b)", R"(\.\-\(\[)", "[^a-z]", R"(\bx\B)", "(?=a)a", "[a[]"})
    EXPECT_EQ(problem_of_pattern(common), "") << common;
}

TEST(Pattern, DeepNestingIsNoRecursionWithoutEnd) {
  const std::string deep = std::string(499, '(') + "a" + std::string(499, ')');
  EXPECT_TRUE(Pattern(deep).matches("a"));
}

}  // namespace
}  // namespace equigrad
