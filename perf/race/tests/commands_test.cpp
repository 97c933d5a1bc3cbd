// Exit codes of `equigrad_perf`: 0, 1 for a finding, 2 for a wrong command, 3 when it broke, 4
// where `times` stays inconclusive.
#include "perf/race/commands.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/cli/bench_options.hpp"
#include "perf/race/scratch.hpp"
#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

struct Said {
  int code;
  std::string out, err;
};

// Its table is a pipe's, unless COLUMNS is set.
Said say(std::vector<std::string> words) {
  words.insert(words.begin(), "equigrad_perf");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  const int code = run_commands(static_cast<int>(argv.size()), argv.data());
  const auto out = testing::internal::GetCapturedStdout();
  return {code, out, testing::internal::GetCapturedStderr()};
}

std::string worker() {
  const char* path = std::getenv("EQUIGRAD_PERF_WORKER");
  return path != nullptr ? path : std::string(build_info::binary_directory()) + "/perf_worker";
}

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(PerfCommands, ScaleDrawsEveryStageOfManyRanksBesideOthers) {
  std::vector<std::string> words{"scale", "--gpt",    "1,8,2,8,16", "--ranks",
                                 "4,64",  "--worker", worker()};
  const auto table = say(words);
  EXPECT_EQ(table.code, 0) << table.err;
  for (const char* row :
       {"## Stage 0", "| 64 | ring (DDP) |", "| 64 | DeepSpeed |", "| 4 | Equigrad |"})
    EXPECT_THAT(table.out, HasSubstr(row));
  words.insert(words.end(), {"--json", "--stages", "2"});
  const auto rows = nlohmann::json::parse(say(words).out).at("rows");
  EXPECT_EQ(rows.size(), 2u * 2u);
  EXPECT_EQ(rows.at(2).at("ranks"), 64);
  EXPECT_GT(rows.at(2).at("all").at("messages").get<int>(), 0);
}

// A ring's neighbours are on other hosts, and it waits for the slower of the two links.
TEST(PerfCommands, ScaleTakesTheNetworkAndTheStepFromItsOptions) {
  const auto ring_of = [](const std::vector<std::string>& network, int accumulation) {
    std::vector<std::string> words{"scale", "--gpt", "1,8,2,8,16", "--worker", worker()};
    words.insert(words.end(), {"--ranks", "8", "--stages", "0", "--json", "--ranks-per-host", "4"});
    words.insert(words.end(), {"--accumulation", std::to_string(accumulation)});
    words.insert(words.end(), network.begin(), network.end());
    const auto said = say(words);
    EXPECT_EQ(said.code, 0) << said.err;
    auto record = nlohmann::json::parse(said.out);
    EXPECT_EQ(record.at("accumulation"), accumulation);
    EXPECT_EQ(record.at("ranks_per_host"), 4);
    EXPECT_GT(record.at("rows").at(0).at("all").at("messages_between").get<int>(), 0);
    return record.at("rows").at(1);
  };
  const auto whole_ns = [](double seconds) { return std::llround(1e9 * seconds); };
  const auto seconds = [](const nlohmann::json& ring, double latency_s, double bytes_per_s) {
    return ring.at("all").at("messages").get<double>() * latency_s +
           ring.at("all").at("bytes").get<double>() / bytes_per_s;
  };
  const auto slow_between = ring_of({"--between-us", "30", "--between-gb", "0.002", "--within-us",
                                     "0", "--within-gb", "200", "--compute-ms", "1500"},
                                    3);
  EXPECT_EQ(whole_ns(slow_between.at("all").at("seconds")),
            whole_ns(seconds(slow_between, 30e-6, 2e6)));
  EXPECT_EQ(whole_ns(slow_between.at("step_s")), whole_ns(1.5 + seconds(slow_between, 30e-6, 2e6)));
  const auto slow_within = ring_of(
      {"--within-us", "70", "--within-gb", "0.001", "--between-us", "0", "--between-gb", "200"}, 1);
  EXPECT_EQ(whole_ns(slow_within.at("all").at("seconds")),
            whole_ns(seconds(slow_within, 70e-6, 1e6)));
}

TEST(PerfCommands, NumbersThatAreNoneSayWhatIsExpected) {
  for (const char* option : {"--compute-ms", "--within-us", "--between-us"}) {
    const auto said = say({"scale", option, "-1"});
    EXPECT_EQ(said.code, 2) << option;
    EXPECT_THAT(said.err, HasSubstr("expected a number of at least 0, got \"-1\""));
  }
  for (const char* option : {"--within-gb", "--between-gb"}) {
    const auto said = say({"scale", option, "0"});
    EXPECT_EQ(said.code, 2) << option;
    EXPECT_THAT(said.err, HasSubstr("expected a number above 0, got \"0\""));
  }
}

TEST(PerfCommands, WhatIsRequiredShowsNoDefault) {
  const auto help = say({"gate", "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.out, HasSubstr(" REQUIRED"));
  EXPECT_THAT(help.out, Not(ContainsRegex("=[^ ]+ REQUIRED")));
}

TEST(PerfCommands, NoiseDrawsRunsFromTheLivesThatItMeasured) {
  const auto said = say({"noise", "--worker", worker(), "--runs", "1", "--pairs", "1", "--steps",
                         "1", "--lives", "2", "--drawn", "7"});
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, HasSubstr("\n1 runs of a program against itself on "));
  EXPECT_THAT(said.out, HasSubstr("\n7 runs of lives drawn from those 2: 0 false "
                                  "alarms, 7 inconclusive;"));
}

TEST(PerfCommands, AWrongCommandIsTwo) {
  EXPECT_EQ(say({}).code, 2);
  EXPECT_EQ(say({"rase"}).code, 2);
  EXPECT_EQ(say({"race", "--round", "1"}).code, 2);
  EXPECT_EQ(say({"race", "--suite", "none"}).code, 2);
  EXPECT_EQ(say({"race", "--old", "/no/such/worker"}).code, 2);
  for (const char* command : {"race", "memory", "counts", "leaks", "times", "noise"})
    EXPECT_THAT(say({command, "--worker", "/no/such/worker"}).err, HasSubstr("/no/such/worker"));
  EXPECT_THAT(say({"rase"}).err, HasSubstr("Did you mean \"race\"?"));
  EXPECT_THAT(say({"race", "--round", "1"}).err, HasSubstr("Did you mean \"--rounds\"?"));
  EXPECT_THAT(say({"race", "--rounds", "0"}).err, HasSubstr("at least 1, got \"0\""));
  EXPECT_EQ(say({"times"}).code, 2) << "beside which?";
  EXPECT_EQ(say({"scale", "--ranks", "12"}).code, 2);
  EXPECT_THAT(say({"scale", "--ranks", "12"}).err, HasSubstr("hosts of 8, got 12"));
  EXPECT_EQ(say({"scale", "--gpt", "4,256"}).code, 2);
  EXPECT_EQ(say({"counts"}).code, 2) << "beside which?";
  EXPECT_EQ(say({"times", "--old", worker(), "--stage", "4"}).code, 2);
  const auto empty = say({"race", "--suite", "smoke", "--filter", "large"});
  EXPECT_EQ(empty.code, 2);
  EXPECT_THAT(empty.err, HasSubstr("got --filter large. It has: small; 100 tensors."));
  EXPECT_EQ(say({"--help"}).code, 0);
}

TEST(PerfCommands, AreRefusedUnderALauncher) {
  ASSERT_EQ(setenv("WORLD_SIZE", "2", 1), 0);
  const auto refused = say({"counts", "--baseline", "none"});
  ASSERT_EQ(unsetenv("WORLD_SIZE"), 0);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("one process of equigrad_perf"));
  EXPECT_THAT(refused.err, HasSubstr("WORLD_SIZE=2"));
}

TEST(PerfCommands, WhatBreaksIsThree) {
  const auto broken = say({"race", "--suite", "smoke", "--no-peers", "--worker", "/bin/false"});
  EXPECT_EQ(broken.code, 3);
  EXPECT_THAT(broken.err, testing::ContainsRegex("bandwidth, rank [01]"));
}

std::vector<std::string> smoke(const std::vector<std::string>& more) {
  std::vector<std::string> words = {"race",     "--suite", "smoke",    "--filter", "100 tensors",
                                    "--rounds", "1",       "--worker", worker(),   "--no-proof"};
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(PerfCommands, ARaceInWhichAllRunIsZero) {
  const auto race = say(smoke({"--no-peers"}));
  EXPECT_EQ(race.code, 0) << race.out << race.err;
  EXPECT_THAT(race.out, HasSubstr("| Equigrad stage 3 | "));
}

TEST(PerfCommands, ARaceOnATerminalIsATableThatFits) {
  const Scratch scratch;
  ASSERT_EQ(setenv("COLUMNS", "80", 1), 0);
  const auto race = say(smoke({"--no-peers", "--report", scratch.path() + "/report"}));
  ASSERT_EQ(unsetenv("COLUMNS"), 0);
  EXPECT_EQ(race.code, 0) << race.out << race.err;
  EXPECT_THAT(race.out, ContainsRegex("\nEquigrad stage 3 +[0-9.]+ \\[[^|]*\\] +[0-9.]+ \\["));
  EXPECT_THAT(race.out, Not(HasSubstr("|")));
  EXPECT_THAT(race.out, HasSubstr("\n# all columns: " + scratch.path() + "/report/race.md\n"));
  std::istringstream lines(race.out);
  for (std::string line; std::getline(lines, line);)
    if (!line.starts_with("# all columns: ")) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(text_of(scratch.path() + "/report/race.md"), HasSubstr("| Equigrad stage 3 | "));
  EXPECT_THAT(text_of(scratch.path() + "/report/index.html"), HasSubstr("<a href=\"race.html\">"));
}

// Names have commas and spaces, so a part of one goes before words.
TEST(PerfCommands, AFilterIsAPartOfANameOrWords) {
  const auto names = [](const std::string& suite, const std::string& filter) {
    std::vector<std::string> all;
    for (const auto& group : make_suite(suite, {}, {.filter = filter})) all.push_back(group.name);
    return all;
  };
  EXPECT_THAT(names("smoke", "100 tensors"), ElementsAre("100 tensors"));
  EXPECT_THAT(names("modes", "ranks 1"), ElementsAre("small, fp32, ranks 1"));
  EXPECT_THAT(names("modes", "not fp32"), ElementsAre("small, bf16, ranks 2"));
  EXPECT_THAT(names("modes", "small and (bf16 or fp32,) and not 4"),
              ElementsAre("small, fp32, ranks 1", "small, fp32, ranks 2", "small, bf16, ranks 2"));
  EXPECT_THAT(names("smoke", "tensors small"), IsEmpty());
  EXPECT_EQ(names("smoke", "").size(), 2U);
  const auto broken = say({"race", "--filter", "small and"});
  EXPECT_EQ(broken.code, 2);
  EXPECT_THAT(broken.err, HasSubstr("expected a word behind \"and\""));
}

TEST(PerfCommands, EverySuiteHasGroups) {
  for (const auto& suite : conformance::cli::race_suites())
    EXPECT_FALSE(make_suite(suite, {}, {}).empty()) << suite;
}

// DDP, the base, is one of the peers.
TEST(PerfCommands, ARaceWhoseBaseFellSaysSoAndIsAFinding) {
  const Scratch scratch;
  const auto race = say(smoke({"--peers", "/bin/false", "--report", scratch.path() + "/report"}));
  EXPECT_EQ(race.code, 1) << race.err;
  const auto text = text_of(scratch.path() + "/report/race.md");
  EXPECT_THAT(text, HasSubstr("| DDP | "));
  EXPECT_THAT(text, ContainsRegex("\\| Equigrad stage 2 \\| [0-9.]+ [^|]*\\| - \\|"));
  EXPECT_THAT(race.out, HasSubstr(text));
}

TEST(PerfCommands, TimesOfTooFewPairsAreFour) {
  const auto times =
      say({"gate", "--old", worker(), "--new", worker(), "--pairs", "2", "--lives", "1"});
  EXPECT_EQ(times.code, 4) << times.err;
  EXPECT_THAT(times.out, HasSubstr("2 pairs: inconclusive"));
}

TEST(PerfCommands, ASlowDownThatIsPlantedIsOne) {
  const auto times = say({"times", "--old", worker(), "--new", worker(), "--pairs", "30", "--lives",
                          "1", "--steps", "1", "--plant", R"({"step_sleep_us": 100000})"});
  EXPECT_EQ(times.code, 1) << times.out << times.err;
  EXPECT_THAT(times.out, HasSubstr("30 pairs: regressed"));
}

}  // namespace
}  // namespace equigrad::perf
