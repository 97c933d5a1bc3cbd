// JSON from a disk: what is refused, and that no length costs more than the text has.
#include "engine/checkpoint/strict_json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <utility>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;
using testing::StartsWith;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const std::string& text, int most_levels = 3) {
  const std::string members =
      error_of([&] { read_members(text, "m", most_levels, [](const std::string&, Json&&) {}); });
  EXPECT_EQ(error_of([&] { read_object(text, "m", most_levels); }).substr(0, 30),
            members.substr(0, 30))
      << text;
  return members;
}

TEST(StrictJson, GivesMembersInTheTextsOrder) {
  std::string order;
  read_members(R"({"b": 1, "a": [2, {"x": 3}], "": "c", "n": null, "o": {}})", "m", 3,
               [&](const std::string& key, Json&& value) { order += key + value.dump() + ';'; });
  EXPECT_EQ(order, R"(b1;a[2,{"x":3}];"c";nnull;o{};)");
}

TEST(StrictJson, GivesObjectsAsAPlainParserDoes) {
  const std::string text =
      R"( {"b": 1.5, "a": [2, {"x": -3}, "\u0000\ud83d\ude00"], "": {"": 1}} )";
  EXPECT_EQ(read_object(text, "m", 3), Json::parse(text));
  EXPECT_EQ(read_value("[1, 2]", "m", 1), Json::parse("[1, 2]"));
  EXPECT_EQ(read_value("7", "m", 0), Json(7));
}

TEST(StrictJson, RefusesWhatIsNoJson) {
  for (const std::string text :
       {"", " ", "{", "}", R"({"a": NaN})", R"({"a": -Infinity})", "{a: 1}", R"({"a": 1} 2)",
        R"({"a": 1}})", R"({"a": 1,})", R"({"a" 1})", R"({"a": /* b */ 1})", "{\"a\": \"\xff\"}",
        "{\"a\": \"\xed\xa0\x80\"}", R"({"a": "\ud800"})", R"({"a": 01})", R"({"a": "b)",
        "{'a': 1}"})
    EXPECT_THAT(error_of(text), StartsWith("[m] expected JSON, got a ")) << text;
}

TEST(StrictJson, RefusesANumberThatOverflows) {
  EXPECT_THAT(error_of(R"({"a": [1e999]})"),
              AllOf(StartsWith("[m] expected JSON, got a "), HasSubstr("1e999")));
}

TEST(StrictJson, RefusesAnotherValueThanAnObject) {
  for (const std::string text : {"1", "[]", "[{}]", "null", "\"a\""})
    EXPECT_THAT(error_of(text), StartsWith("[m] expected ")) << text;
  EXPECT_THAT(error_of("[]"), HasSubstr("expected a JSON object"));
}

TEST(StrictJson, RefusesAKeyThatIsGivenTwice) {
  for (const std::string text :
       {R"({"a": 1, "a": 1})", R"({"b": {"a": 1, "c": 0, "a": 2}})", R"({"b": [{"a": 1, "a": 1}]})",
        R"({"a": 1, "\u0061": 2})", R"({"a": {}, "a": {}})"})
    EXPECT_EQ(error_of(text),
              "[m] expected every key once, got \"a\" twice in one object. Restore "
              "the file from another copy.")
        << text;
  EXPECT_EQ(error_of(R"({"a": {"a": {"a": 1}}, "b": {"a": 1}})"), "no error");
}

// The library takes it for the end of the text.
TEST(StrictJson, RefusesAByteOfZeroWhereverItStands) {
  for (const std::size_t at : {0U, 1U, 5U, 8U}) {
    std::string text = R"({"a": 1})";
    text.insert(at, 1, '\0');
    EXPECT_THAT(error_of(text), HasSubstr("a byte of zero at byte " + std::to_string(at)));
  }
}

TEST(StrictJson, RefusesOneLevelMoreThanAllowed) {
  EXPECT_EQ(error_of(R"({"a": [{"b": 1}]})", 3), "no error");
  EXPECT_THAT(error_of(R"({"a": [{"b": 1}]})", 2), HasSubstr("at most 2 levels, got more"));
  EXPECT_THAT(error_of(R"({"a": [[]]})", 2), HasSubstr("at most 2 levels, got more"));
  for (const std::string opening : {"[", "{\"a\":"}) {
    std::string text = "{\"a\":";
    for (int i = 0; i < 100'000; ++i) text += opening;
    EXPECT_THAT(error_of(text, 100), HasSubstr("at most 100 levels, got more"));
  }
}

TEST(StrictJson, AnErrorIsShortHoweverLongTheText) {
  const std::string word(100'000, 'x');
  EXPECT_THAT(error_of("{\"" + word + "\": 1, \"" + word + "\": 1}").size(), testing::Lt(300U));
  EXPECT_THAT(error_of("{\"" + word).size(), testing::Lt(400U));
  EXPECT_THAT(shown(Json(word)), SizeIs(103));
  EXPECT_THAT(quote(word), SizeIs(103));
  EXPECT_EQ(quote("a\"\n\xff"), R"("a\"\n\ufffd")");
}

TEST(Writable, IsWhatIsReadAgain) {
  const Json good = {{"a", {1, -2, 0.5, "text \u00e4", nullptr, true}}, {"b", Json::object()}};
  EXPECT_EQ(error_of([&] { check_writable(good, "w", 2); }), "no error");
  EXPECT_EQ(read_value(good.dump(), "w", 2), good);
}

TEST(Writable, NeitherNanNorInfinityNorOtherBytesNorMoreLevels) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<Json, std::string>> bad = {
      {Json{{"a", {inf}}}, "expected a finite number, got inf"},
      {Json(-inf), "expected a finite number, got -inf"},
      {Json{{"a", std::numeric_limits<double>::quiet_NaN()}}, "expected a finite number, got nan"},
      {Json{{"a", "\xff"}}, "expected text in UTF-8, got \"\\ufffd\""},
      {Json{{"\xff", 1}}, "expected text in UTF-8, got \"\\ufffd\""},
      {Json{{"a", {{"b", Json::binary({1, 2})}}}}, "got raw bytes"},
      {Json(Json::value_t::discarded), "got raw bytes"},
      {Json{{"a", {{"b", {{"c", Json::array()}}}}}}, "expected fewer levels"}};
  for (const auto& [value, words] : bad)
    EXPECT_THAT(error_of([&, &value = value] { check_writable(value, "w", 3); }),
                AllOf(StartsWith("[w] expected "), HasSubstr(words)));
}

}  // namespace
}  // namespace equigrad::checkpoint
