#include "reports/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>

#include "reports/tests/example_run.hpp"
#include "reports/tests/golden.hpp"
#include "reports/tests/large_run.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The part of JSON Schema 2020-12 that run.schema.json uses. A keyword it does not know is an
// error, so that the schema cannot say more than is checked.
class Schema {
 public:
  explicit Schema(json root) : root_(std::move(root)) {}

  std::vector<std::string> problems(const json& value) {
    problems_.clear();
    check(root_, value, "$");
    return problems_;
  }

 private:
  void check(const json& schema, const json& value, const std::string& at) {
    for (const auto& [keyword, rule] : schema.items()) check(keyword, rule, schema, value, at);
  }

  void check(const std::string& keyword, const json& rule, const json& schema, const json& value,
             const std::string& at) {
    if (keyword == "$ref") {
      const auto name = rule.get<std::string>();
      check(root_.at("$defs").at(name.substr(std::string("#/$defs/").size())), value, at);
    } else if (keyword == "type") {
      expect(has_type(value, rule.get<std::string>()), at, "type " + rule.dump());
    } else if (keyword == "const") {
      expect(value == rule, at, "const");
    } else if (keyword == "enum") {
      expect(std::find(rule.begin(), rule.end(), value) != rule.end(), at, "enum");
    } else if (keyword == "minimum") {
      expect(!value.is_number() || value >= rule, at, "minimum");
    } else if (keyword == "pattern") {
      const std::regex pattern(rule.get<std::string>());
      expect(!value.is_string() || std::regex_search(value.get<std::string>(), pattern), at,
             "pattern");
    } else if (keyword == "anyOf") {
      bool any = false;
      for (const json& choice : rule)
        any = any || Schema(with_defs(choice)).problems(value).empty();
      expect(any, at, "anyOf");
    } else if (keyword == "items") {
      for (size_t i = 0; value.is_array() && i < value.size(); ++i) {
        check(rule, value[i], at + "[" + std::to_string(i) + "]");
      }
    } else if (keyword == "required") {
      for (const json& key : rule) expect(value.contains(key), at, "required " + key.dump());
    } else if (keyword == "properties" || keyword == "additionalProperties") {
      if (keyword == "properties") check_members(schema, value, at);
      if (!schema.contains("properties")) check_members(schema, value, at);
    } else {
      static const std::vector<std::string> kNotes = {"$schema", "$id", "$defs", "title",
                                                      "description"};
      expect(std::find(kNotes.begin(), kNotes.end(), keyword) != kNotes.end(), at,
             "unknown keyword " + keyword);
    }
  }

  void check_members(const json& schema, const json& value, const std::string& at) {
    const json named = schema.value("properties", json::object());
    const json others = schema.value("additionalProperties", json(true));
    for (const auto& [key, member] : value.items()) {
      if (named.contains(key)) {
        check(named.at(key), member, at + "." + key);
      } else if (others.is_boolean()) {
        expect(others.get<bool>(), at, "no property " + key);
      } else {
        check(others, member, at + "." + key);
      }
    }
  }

  json with_defs(json schema) const {
    schema["$defs"] = root_.at("$defs");
    return schema;
  }

  static bool has_type(const json& value, const std::string& type) {
    if (type == "integer") return value.is_number_integer();
    if (type == "number") return value.is_number();
    return type == value.type_name();
  }

  void expect(bool holds, const std::string& at, const std::string& rule) {
    if (!holds) problems_.push_back(at + ": " + rule);
  }

  json root_;
  std::vector<std::string> problems_;
};

Schema published_schema() {
  return Schema(json::parse(contents_of(golden_path("../run.schema.json"))));
}

constexpr int64_t kBeyondDouble =
    (int64_t{1} << 53) + 1;  // a reader that goes through double loses it

// Everything a run may hold that JSON has no word for.
reports::Run awkward_run() {
  reports::Run run = example_run();
  run.seed = std::numeric_limits<uint64_t>::max();
  run.interrupted = true;
  run.signal = 15;
  run.failure = "no answer from \"rank 1\"";
  run.self_checks[0].caught = false;
  run.cases[1].seconds = 1.0 / 3;
  run.cases[1].lanes[2].margin = std::nan("");
  run.cases[1].lanes[2].worst->bound = 5e-324;
  run.cases[2].lanes[0].worst->got = std::bit_cast<double>(0x7ff8000000000123u);
  run.cases[2].lanes[0].worst->want = -0.0;
  run.cases[2].lanes[0].worst->ulp = std::numeric_limits<double>::infinity();
  run.cases[0].lanes[0].compared = kBeyondDouble;
  run.cases[3].message = "quotes \" and \\ and \n and \t and ü";
  return run;
}

TEST(Json, TheDocumentIsTheOneAgreedOn) {
  expect_golden(reports::to_json(example_run()), "run.json");
}

TEST(Json, WhatIsWrittenKeepsToThePublishedSchema) {
  Schema schema = published_schema();
  EXPECT_THAT(schema.problems(json::parse(reports::to_json(example_run()))), IsEmpty());
  EXPECT_THAT(schema.problems(json::parse(reports::to_json(awkward_run()))), IsEmpty());
  EXPECT_THAT(schema.problems(json::parse(reports::to_json(reports::Run{}))), IsEmpty());
}

TEST(Json, RowsOfUnderflowKeepToThePublishedSchema) {
  reports::Run run = example_run();
  run.underflow = {{"fp16", "gpt", 65536, 20000, 12, 345, 0, 0}};
  json written = json::parse(reports::to_json(run));
  EXPECT_THAT(published_schema().problems(written), IsEmpty());
  for (const auto& [key, value] : json(written["underflow"][0]).items()) {
    json bad = written;
    bad["underflow"][0].erase(key);
    EXPECT_THAT(published_schema().problems(bad), Not(IsEmpty())) << "without " << key;
  }
}

TEST(Json, TheSchemaRefusesWhatItDoesNotDescribe) {
  const json good = json::parse(reports::to_json(example_run()));
  const std::vector<std::pair<const char*, json>> changes = {
      {"/verdict/outcome", "splendid"},
      {"/signal", 9},
      {"/failure", 3},
      {"/schema_version", 2},
      {"/seed", 7},
      {"/seed", "seven"},
      {"/wall_s", "long"},
      {"/cases/0/verdict", "ok"},
      {"/cases/0/extra", 1},
      {"/cases/0/lanes/0/compared", -1},
      {"/cases/0/lanes/0/margin", nullptr},
      {"/cases/2/lanes/0/worst/got_bits", "0x12"},
      {"/memory/0/stage", 4},
      {"/not_run/why", "many"},
      {"/cases", json::object({{"a", 1}})}};
  for (const auto& [path, value] : changes) {
    json bad = good;
    bad[json::json_pointer(path)] = value;
    EXPECT_THAT(published_schema().problems(bad), Not(IsEmpty())) << path << " = " << value;
  }
  for (const auto& [key, value] : good.items()) {
    json bad = good;
    bad.erase(key);
    EXPECT_THAT(published_schema().problems(bad), Not(IsEmpty())) << "without " << key;
  }
}

TEST(Json, WhatIsWrittenReadsBackToTheSameRun) {
  for (const reports::Run& run : {example_run(), awkward_run(), large_run(200, 9)}) {
    const std::string text = reports::to_json(run);
    EXPECT_EQ(reports::to_json(reports::from_json(text)), text);
  }
  const reports::Run back = reports::from_json(reports::to_json(awkward_run()));
  EXPECT_EQ(back.seed, std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(back.signal, 15);
  EXPECT_EQ(back.failure, awkward_run().failure);
  EXPECT_EQ(back.cases[0].lanes[0].compared, kBeyondDouble);
  EXPECT_EQ(back.cases[1].seconds, 1.0 / 3);
  EXPECT_EQ(back.cases[1].lanes[2].worst->bound, 5e-324);
  EXPECT_TRUE(std::isnan(back.cases[1].lanes[2].margin));
  const reports::Worst& worst = back.cases[2].lanes[0].worst.value();
  EXPECT_EQ(std::bit_cast<uint64_t>(worst.got), 0x7ff8000000000123u);
  EXPECT_TRUE(std::signbit(worst.want));
  EXPECT_EQ(worst.ulp, std::numeric_limits<double>::infinity());
  EXPECT_EQ(back.cases[3].message, awkward_run().cases[3].message);
}

TEST(Json, NumbersThatJsonCannotSayAreWords) {
  const std::string text = reports::to_json(awkward_run());
  EXPECT_THAT(text, Not(HasSubstr("null")));
  EXPECT_THAT(text, HasSubstr("\"margin\": \"nan\""));
  EXPECT_THAT(text, HasSubstr("\"ulp\": \"inf\""));
  EXPECT_THAT(text, HasSubstr("\"got_bits\": \"0x7ff8000000000123\""));
}

TEST(Json, ForeignBytesDoNotLoseTheReport) {
  reports::Run run = example_run();
  run.cases[2].message = kHostile;
  EXPECT_NO_THROW(reports::from_json(reports::to_json(run)));
}

TEST(Json, ABadDocumentIsRefusedWithTheReason) {
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      reports::from_json(text);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refusal("{"), HasSubstr("[reports.json]"));
  EXPECT_THAT(refusal("{}"), HasSubstr("schema_version"));
  json document = json::parse(reports::to_json(example_run()));
  document["schema_version"] = 2;
  EXPECT_THAT(refusal(document.dump()), HasSubstr("expected schema_version 1, got 2"));
  document["schema_version"] = 1;
  document["cases"][0]["verdict"] = "splendid";
  EXPECT_THAT(refusal(document.dump()), HasSubstr("expected a verdict, got \"splendid\""));
  document["cases"][0]["verdict"] = "equal";
  document["cases"][2]["lanes"][0]["worst"]["got_bits"] = "0x12";
  EXPECT_THAT(refusal(document.dump()), HasSubstr("expected 0x and 16 hex digits, got \"0x12\""));
}

}  // namespace
}  // namespace equigrad::conformance
