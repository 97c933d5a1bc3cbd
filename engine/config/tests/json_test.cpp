// Strict JSON: what the parser refuses, and where it says the fault is.
#include "engine/config/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace equigrad {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(ParseJson, AcceptsCommentsOfBothKinds) {
  const JsonDocument document = parse_json("{// one\n\"a\": /* two */ 1}");
  EXPECT_THAT(document.problems, IsEmpty());
  EXPECT_EQ(document.root, Json({{"a", 1}}));
}

TEST(ParseJson, FindsEveryDoubledKeyWithItsPath) {
  const JsonDocument document =
      parse_json(R"({"a": {"b": 1, "b": 1}, "c": [{"d": 1}, {"d": 2, "d": 3}], "a": 1})");
  EXPECT_THAT(document.problems,
              ElementsAre(StartsWith("a.b: "), StartsWith("c.d: "), StartsWith("a: ")));
}

TEST(ParseJson, FindsADoubledKeyBehindComments) {
  EXPECT_THAT(parse_json("{// one\n\"a\": 1, /* two */ \"b\": {\"c\": 1, \"c\": 2}}").problems,
              ElementsAre(StartsWith("b.c: ")));
}

TEST(ParseJson, TheSameKeyInTwoObjectsIsNotDoubled) {
  EXPECT_THAT(parse_json(R"({"a": {"x": 1}, "b": {"x": 1}, "c": [{"x": 1}, {"x": 2}]})").problems,
              IsEmpty());
}

TEST(ParseJson, NamesTheKeyOfANumberThatOverflows) {
  EXPECT_THAT(parse_json(R"({"a": {"lr": 1e999}})").problems,
              ElementsAre(AllOf(StartsWith("a.lr: "), HasSubstr("1e999"))));
}

TEST(ParseJson, NamesThePlaceOfASyntaxError) {
  for (const char* text : {R"({"a": NaN})", R"({"a": Infinity})", R"({"a": 1,})", R"({"a": 1)",
                           R"({"a" 1})", "", R"({"a": 1} x)", "{\"a\": \"\xff\"}"})
    EXPECT_THAT(parse_json(text).problems, ElementsAre(HasSubstr("at line 1, column"))) << text;
}

// The library takes it for the end of the text: what stands behind it would be ignored.
TEST(ParseJson, RefusesAByteOfZeroWhereverItStands) {
  for (const std::size_t at : {0U, 1U, 4U, 8U, 16U}) {
    std::string text = R"({"a": 1} // note)";
    text.insert(at, 1, '\0');
    EXPECT_THAT(parse_json(text).problems,
                ElementsAre(HasSubstr("a byte of zero at byte " + std::to_string(at))));
  }
}

TEST(ParseJson, RefusesWhatIsNotAnObject) {
  EXPECT_THAT(parse_json("[1]").problems, ElementsAre(HasSubstr("got array")));
}

TEST(ParseJson, RefusesNestingWithoutEnd) {
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += "{\"a\":";
  EXPECT_THAT(parse_json(text).problems, ElementsAre(HasSubstr("at most 32 levels")));
}

TEST(Reader, AWrongValueIsAbsentFromThenOn) {
  const Json root = Json::parse(R"({"a": {"b": "x"}, "n": null})");
  ConfigReader reader(root);
  EXPECT_TRUE(reader.has("a.b"));
  EXPECT_FALSE(reader.has("n"));
  EXPECT_FALSE(reader.has("a.b.c"));
  reader.problem("a.b", "");
  EXPECT_TRUE(reader.has("a.b"));
  reader.problem("a.b", "expected a number");
  EXPECT_FALSE(reader.has("a.b"));
  EXPECT_THAT(reader.problems(), ElementsAre("a.b: expected a number"));
}

}  // namespace
}  // namespace equigrad
