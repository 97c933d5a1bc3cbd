// `equigrad crash`: a short campaign, one point again, and how it ends.
#include <gmock/gmock.h>

#include <map>
#include <nlohmann/json.hpp>

#include "conformance/cli/tests/command_result.hpp"

namespace equigrad::conformance::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

CommandResult say(std::vector<std::string> words) {
  words.insert(words.begin(), "crash");
  return result_of_words(std::move(words));
}

using CrashCommandTest = InAFolder;

TEST_F(CrashCommandTest, AShortCampaignHoldsAndItsRecordHasEveryPoint) {
  const auto result = say({"power", "refuse", "--stages", "3", "--world", "2", "--points", "24",
                           "--report", folder_, "-q"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("HELD  "), HasSubstr("# replay: equigrad crash power")));
  EXPECT_THAT(text_of(folder_ + "/index.html"),
              HasSubstr("<a href=\"crash.html\">Crash <span>✓ Held</span></a>"));
  const auto json = nlohmann::json::parse(text_of(folder_ + "/crash.json"));
  EXPECT_EQ(json.at("wrong"), 0);
  std::map<std::string, nlohmann::json> parts;
  for (const auto& part : json.at("parts")) parts[part.at("part")] = part;
  EXPECT_GT(parts.at("power").at("points"), 400);
  EXPECT_GE(parts.at("power").at("by_engines"), 20);
  for (const auto& [name, part] : parts) {
    EXPECT_GT(part.at("old_left"), 0) << name;
    EXPECT_GT(part.at("new_left"), 0) << name;
  }
}

// Each mistake that a saver can make, some of tensors in parts, and one of who loads.
TEST_F(CrashCommandTest, CarelessSaversAreSeen) {
  const auto result = say({"careless", "--report", folder_, "-q"});
  EXPECT_EQ(result.code, kHeld) << result.out << result.err;
  const auto json = nlohmann::json::parse(text_of(folder_ + "/crash.json"));
  EXPECT_GE(json.at("careless").size(), 18u);
  for (const auto& one : json.at("careless")) EXPECT_TRUE(one.at("caught")) << one;
}

TEST_F(CrashCommandTest, OnePointIsTriedAgain) {
  for (const std::string point :
       {"zero2.w2.fp32.same.power.2-3.s17", "zero1.w1.fp16.new.EIO.r0.o2",
        "zero0.w2.bf16.new.signal-4.r1.o3", "zero1.w2.fp32.new.call.r1.o6", "flip.small.latest.9",
        "zero2.w4t2.fp32.same.power.2-2-2-2.s17", "flip.parts.rank1.9",
        "zero3.w2s2.fp16.new-beside.signal-1.r1.o3"}) {
    const auto result = say({"--replay", point, "--report", folder_, "-q"});
    EXPECT_EQ(result.code, kHeld) << point << "\n" << result.out << result.err;
    const auto json = nlohmann::json::parse(text_of(folder_ + "/crash.json"));
    EXPECT_GE(json.at("points"), 1);
  }
}

TEST_F(CrashCommandTest, WhatIsNoPointIsAUsageError) {
  const auto result = say({"--replay", "zero9", "--report", folder_});
  EXPECT_EQ(result.code, kUsage);
  EXPECT_THAT(result.err, HasSubstr("zero2.w3.fp16.new.power.7-4-4.s12"));
  EXPECT_EQ(say({"flood"}).code, kUsage);
  EXPECT_EQ(say({"--world", "5"}).code, kUsage);
}

TEST_F(CrashCommandTest, APointThatASaveDoesNotHaveEndsTheCampaign) {
  const auto result =
      say({"--replay", "zero2.w2.fp32.same.power.999-0.s1", "--report", folder_, "-q"});
  EXPECT_EQ(result.code, kInfrastructure);
  EXPECT_THAT(result.out, HasSubstr("expected a cut that this save can have"));
}

TEST_F(CrashCommandTest, HelpSaysWhatItTakes) {
  const auto help = say({"--help"});
  for (const char* word : {"PART", "--points", "--stages", "--world", "--seed", "--replay",
                           "--json", "--report", "--timeout-scale", "--quiet"})
    EXPECT_THAT(help.out, HasSubstr(word));
}

}  // namespace
}  // namespace equigrad::conformance::cli
