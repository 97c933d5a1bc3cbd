#include "reports/json.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "reports/tests/example_run.hpp"
#include "reports/tests/golden.hpp"
#include "reports/tests/large_run.hpp"
#include "reports/tests/schema.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> problems(const std::vector<json>& runs) {
  std::vector<std::string> texts;
  for (const json& run : runs) texts.push_back(run.dump());
  return schema_problems("run.schema.json", texts);
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
  run.planted = "micro_batch_dropped";
  run.cases[0].acted = false;
  run.cases[1].acted = true;
  run.cases[3].message = "quotes \" and \\ and \n and \t and ü";
  return run;
}

TEST(Json, TheDocumentIsTheOneAgreedOn) {
  expect_golden(reports::to_json(example_run()), "run.json");
}

TEST(Json, WhatIsWrittenKeepsToThePublishedSchema) {
  reports::Run underflow = example_run();
  underflow.underflow = {{"fp16", "gpt", 65536, 20000, 12, 345, 0, 0}};
  EXPECT_THAT(schema_problems("run.schema.json",
                              {reports::to_json(example_run()), reports::to_json(awkward_run()),
                               reports::to_json(reports::Run{}), reports::to_json(underflow)}),
              Each(""));
}

TEST(Json, TheSchemaRefusesWhatItDoesNotDescribe) {
  reports::Run run = example_run();
  run.underflow = {{"fp16", "gpt", 65536, 20000, 12, 345, 0, 0}};
  const json good = json::parse(reports::to_json(run));
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
  std::vector<json> bad;
  for (const auto& [path, value] : changes) {
    bad.push_back(good);
    bad.back()[json::json_pointer(path)] = value;
  }
  for (const std::string parent : {"", "/underflow/0"})
    for (const auto& [key, value] : good.at(json::json_pointer(parent)).items()) {
      if (key == "underflow") continue;  // there where a case scaled its loss
      bad.push_back(good);
      bad.back().at(json::json_pointer(parent)).erase(key);
    }
  EXPECT_THAT(problems(bad), Each(Not("")));
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
  EXPECT_EQ(back.planted, "micro_batch_dropped");
  EXPECT_EQ(back.cases[0].acted, false);
  EXPECT_EQ(back.cases[1].acted, true);
  EXPECT_EQ(back.cases[2].acted, std::nullopt);
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

TEST(Json, ADocumentOfTooManyLevelsIsRefused) {
  std::string text = reports::to_json(example_run());
  constexpr std::string_view kCores = "\"cores\": 2";
  constexpr std::size_t kDeep = 100'000;
  text.replace(text.find(kCores), kCores.size(),
               "\"cores\": " + std::string(kDeep, '[') + std::string(kDeep, ']'));
  EXPECT_THAT([&] { reports::from_json(text); },
              testing::ThrowsMessage<std::runtime_error>(
                  HasSubstr("expected JSON of at most 32 levels, got more")));
}

TEST(Json, NumbersThatNoFieldHoldsAreRefusedByName) {
  const auto refusal = [](const std::string& path, const json& value) -> std::string {
    json document = json::parse(reports::to_json(example_run()));
    document[json::json_pointer(path)] = value;
    try {
      reports::from_json(document.dump());
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string compared = "/cases/0/lanes/0/compared";
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const std::string expected =
      "expected a whole number from 0 to " + std::to_string(kLargest) + ", got ";
  for (const json& wrong : {json(1.5), json(1e300), json(-1), json(true), json(nullptr), json("1")})
    EXPECT_THAT(refusal(compared, wrong), HasSubstr(expected + wrong.dump()));
  EXPECT_THAT(refusal(compared, kLargest + uint64_t{1}), HasSubstr(expected));
  EXPECT_THAT(refusal(compared, kLargest), HasSubstr("expected counts whose sum is at most"));
  EXPECT_THAT(refusal("/not_run/why", -1), HasSubstr(expected + "-1"));
  EXPECT_THAT(refusal("/environment/cores", int64_t{1} << 31), HasSubstr("from 0 to 2147483647"));
  EXPECT_THAT(refusal("/signal", 9), HasSubstr("expected signal 2 or 15, got 9"));
  EXPECT_THAT(refusal("/cases/2/lanes/0/worst/got_bits", "-0x000000000000001"),
              HasSubstr("expected 0x and 16 hex digits"));
}

}  // namespace
}  // namespace equigrad::conformance
