// What `equigrad crash` found, written: its verdict, its figures, its schema.
#include "reports/losses.hpp"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "reports/tests/example_run.hpp"
#include "reports/tests/schema.hpp"

namespace equigrad::conformance {
namespace {

using namespace reports;  // NOLINT: the whole test is about it
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

Losses example() {
  Losses losses;
  losses.environment.commit = "0123abc";
  losses.command = "equigrad crash --seed 5";
  losses.seed = UINT64_MAX;
  losses.parts = {{.name = "power",
                   .what = "power is lost",
                   .points = 1'200,
                   .by_engines = 40,
                   .old_left = 1'000,
                   .new_left = 200,
                   .refused = 0,
                   .wrong = 0,
                   .seconds = 1.5}};
  losses.careless = {{"latest_first", "latest comes first", true, "zero1.w2.fp32.new.power.1-0.s0",
                      "it is refused", 17}};
  losses.wall_s = 2;
  return losses;
}

Losses failing() {
  auto losses = example();
  losses.parts[0].wrong = 1;
  losses.failures = {
      {"zero0.w1.fp32.new.power.3.s1", "a mixture\x01", "equigrad crash --replay it"}};
  return losses;
}

// Each way to end, alone.
TEST(Losses, TheExitCodeIsThatOfTheWorst) {
  const auto code_of = [](auto change) {
    auto losses = example();
    change(losses);
    return exit_code(losses);
  };
  EXPECT_EQ(code_of([](Losses&) {}), 0);
  EXPECT_EQ(code_of([](Losses& of) { of.parts[0].wrong = 1; }), 1);
  EXPECT_EQ(code_of([](Losses& of) { of.careless[0].caught = false; }), 1);
  EXPECT_EQ(code_of([](Losses& of) { of.failure = "no ranks"; }), 3);
  EXPECT_EQ(code_of([](Losses& of) { of.parts.clear(), of.careless.clear(); }), 4);
  EXPECT_EQ(code_of([](Losses& of) { of.interrupted = true, of.signal = 15; }), 143);
  EXPECT_EQ(outcome(failing()), Outcome::Failed);
  auto unseen = failing();
  unseen.careless[0].caught = false;
  EXPECT_EQ(outcome(unseen), Outcome::Failed) << "what is wrong counts more";
}

TEST(Losses, TheTerminalHasEveryPartAndEndsWithTheVerdictAndItsReplay) {
  const auto text = to_terminal(example());
  EXPECT_THAT(text, ContainsRegex("power +1,200 +40 +1,000 +200 +0 +0 +1.5  power is lost\n"));
  EXPECT_THAT(text, ContainsRegex("caught  latest_first  zero1[^\n]*s0, of 17 points\n"));
  EXPECT_THAT(text, ContainsRegex("\nHELD  [^\n]*\n# replay: equigrad crash --seed 5\n$"));
  const auto failed = to_terminal(failing());
  EXPECT_THAT(failed, HasSubstr("WRONG  zero0.w1.fp32.new.power.3.s1\n  a mixture"));
  EXPECT_THAT(failed, ContainsRegex("\nFAILED  [^\n]*\n# replay: equigrad crash --replay it\n$"));
  EXPECT_THAT(failed, Not(HasSubstr("\x01")));
  auto unseen = example();
  unseen.careless[0].caught = false;
  EXPECT_THAT(to_terminal(unseen), HasSubstr("UNSEEN  latest_first  17 points: latest comes"));
}

TEST(Losses, RowsFitTheTerminalAndWordsThatDoNotStandBelow) {
  for (const std::size_t columns : {50U, 60U, 80U, 132U}) {
    std::istringstream lines(to_terminal(failing(), columns));
    for (std::string line; std::getline(lines, line);)
      if (!line.starts_with("# replay: ")) EXPECT_LE(line.size(), columns) << line;
  }
  EXPECT_EQ(to_terminal(example(), 80).substr(0, 200), to_terminal(example()).substr(0, 200));
  const auto narrow = to_terminal(example(), 60);
  EXPECT_THAT(narrow, ContainsRegex("power +1,200 +40 +1,000 +200 +0 +0 +1.5\n"));
  EXPECT_THAT(narrow, HasSubstr("\n# power: power is lost\n"));
  EXPECT_THAT(narrow, Not(HasSubstr("too wide")));
  EXPECT_THAT(to_terminal(example(), 50), HasSubstr("\n# too wide, in crash.json: s, engines\n"));
}

TEST(Losses, WhatIsWrittenKeepsToThePublishedSchemaWhichRefusesTheRest) {
  const auto text = to_json(failing());
  EXPECT_THAT(schema_problems("crash.schema.json", {text, to_json(Losses{})}), Each(""));
  const auto good = nlohmann::json::parse(text);
  EXPECT_EQ(good.at("seed"), "18446744073709551615");
  EXPECT_EQ(good.at("wrong"), 1);
  EXPECT_EQ(good.at("points"), 1'200);
  EXPECT_EQ(good.at("parts")[0].at("old_left"), 1'000);
  EXPECT_EQ(good.at("careless")[0].at("caught"), true);
  const std::vector<std::pair<const char*, nlohmann::json>> changes = {
      {"/outcome", "splendid"},
      {"/seed", 7},
      {"/parts/0/points", -1},
      {"/wall_s", nullptr},
      {"/careless/0/caught", "yes"},
      {"/failures/0/point", 1},
      {"/more", true},
      {"/parts/0/more", 1}};
  std::vector<std::string> bad;
  for (const auto& [path, value] : changes) {
    auto changed = good;
    changed[nlohmann::json::json_pointer(path)] = value;
    bad.push_back(changed.dump());
  }
  for (const std::string parent : {"", "/parts/0", "/failures/0", "/careless/0"})
    for (const auto& [key, value] : good.at(nlohmann::json::json_pointer(parent)).items()) {
      auto changed = good;
      changed.at(nlohmann::json::json_pointer(parent)).erase(key);
      bad.push_back(changed.dump());
    }
  EXPECT_THAT(schema_problems("crash.schema.json", bad), Each(Not("")));
}

TEST(Losses, ThePageSaysWhatWasTriedAndWhatWentUnseenAndIsInert) {
  Losses losses = example();
  losses.careless.push_back({"hasty", "does not flush", false, "", "", 12});
  losses.failures = {{"zero2.w3.x", kHostile, kHostile}};
  const std::string page = reports::to_html(losses);
  for (const char* words : {"<code>hasty</code></th><td class=\"v bad\"><span>✗ unseen",
                            "<code>latest_first</code></th><td class=\"v m0\"><span>✓ caught",
                            "id=\"point.zero2.w3.x\"", "&lt;script&gt;alert(1)"})
    EXPECT_THAT(page, HasSubstr(words));
  EXPECT_THAT(page, Not(HasSubstr("<script>alert")));
  for (const auto& part : losses.parts)
    EXPECT_THAT(page, HasSubstr("<th scope=\"row\">" + part.name));
}

}  // namespace
}  // namespace equigrad::conformance
