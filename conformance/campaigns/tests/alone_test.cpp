// A failure that does not repeat alone says so, names the cases that it needs, and is repeated by
// running them first.
#include "conformance/campaigns/alone.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>

#include "conformance/campaigns/suite.hpp"

namespace equigrad::conformance {
namespace {

using reports::Verdict;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

// A fault that acts from the second case of a process on.
nlohmann::json serve_spoiled(const nlohmann::json& request, ranks::RankContext& context) {
  static int served = 0;  // of each process
  auto asked = request;
  const bool is_case = request.value("do", "") == "case" && !request.contains("fault");
  if (is_case && ++served >= 2) asked["fault"] = "averaged_twice";
  return serve(asked, context);
}

// Cases without partners, so that no other lane says anything of them.
RunOptions options(int cases) {
  RunOptions chosen;
  for (int i = 0; i < cases; ++i)
    chosen.cases.push_back({.stage = i % 4,
                            .precision = Precision::Fp32,
                            .style = Style::LossBackward,
                            .world = 2,
                            .accumulation = i % 2 == 0 ? 1 : 3,
                            .clip = i % 4 < 2 ? Clip::Off : Clip::Below,
                            .optimizer = i < 4 ? Rule::Sgd : Rule::AdamW,
                            .model = "irregular"});
  chosen.data = find_data("", false);
  chosen.quiet = true;
  chosen.slots = 1;
  chosen.replay_prefix = "equigrad run";
  chosen.replay_suffix = " --report R";
  chosen.serve = serve_spoiled;
  return chosen;
}

TEST(Alone, ARankThatWasKilledMayHaveBeenKilledFromOutside) {
  auto chosen = options(3);
  chosen.serve = [last = chosen.cases[2].id()](const nlohmann::json& request,
                                               ranks::RankContext& context) {
    static int served = 0;  // of each process
    const bool is_case = request.value("do", "") == "case";
    if (is_case && request.at("id") == last && served > 0) kill(getpid(), SIGKILL);
    served += is_case ? 1 : 0;
    return serve(request, context);
  };
  const auto run = run_matrix(chosen);
  EXPECT_EQ(run.cases[2].verdict, Verdict::Crashed) << run.cases[2].message;
  EXPECT_THAT(run.cases[2].message,
              EndsWith("  alone   passes alone: it was ended from outside, such as for want of "
                       "memory, or needs the cases before it in its ranks: " +
                       chosen.cases[0].id() + ", " + chosen.cases[1].id() + "\n"));
}

TEST(Alone, AFailureThatNeedsTheCasesBeforeItSaysWhich) {
  const auto chosen = options(3);
  const auto run = run_matrix(chosen);
  const std::string a = chosen.cases[0].id(), b = chosen.cases[1].id(), c = chosen.cases[2].id();
  EXPECT_EQ(run.cases[0].verdict, Verdict::Equal) << run.cases[0].message;
  EXPECT_EQ(run.cases[1].verdict, Verdict::Failed);
  EXPECT_THAT(
      run.cases[1].message,
      EndsWith("  alone   passes alone: it needs the cases before it in its ranks: " + a + "\n"));
  EXPECT_EQ(run.cases[1].replay,
            "equigrad run " + a + " " + b + " --one-process --seed 1 --report R");
  EXPECT_THAT(run.cases[2].message, EndsWith(" in its ranks: " + a + ", " + b + "\n"));
  EXPECT_EQ(run.cases[2].replay,
            "equigrad run " + a + " " + b + " " + c + " --one-process --seed 1 --report R");
}

TEST(Alone, ItsReplayRepeatsItAndTheCaseAloneDoesNot) {
  auto whole = options(2);
  const std::string a = whole.cases[0].id(), b = whole.cases[1].id();
  const auto verdict_of = [&](std::vector<CaseSpec> cases, std::vector<std::string> ids) {
    SuiteOptions suite{.matrix = whole, .contract = {}, .one_process = std::move(ids)};
    suite.matrix.cases = std::move(cases);
    suite.matrix.slots = 3;
    return run_suite(suite).cases.back().verdict;
  };
  EXPECT_EQ(verdict_of({whole.cases[1]}, {b}), Verdict::Equal);
  EXPECT_EQ(verdict_of(whole.cases, {a, b}), Verdict::Failed);
}

// The contract's cases in between count as well.
TEST(Alone, InOneProcessCasesOfBothKindsAreServedInTheOrderGiven) {
  std::string log = testing::TempDir() + "alone-XXXXXX";
  close(mkstemp(log.data()));
  auto chosen = options(2);
  const auto spec = contract::default_specs().front();
  chosen.serve = [log](const nlohmann::json& request, ranks::RankContext& context) {
    const std::string what = request.value("do", "");
    const bool is_planted = request.contains("fault") && request["fault"].is_string();
    if (context.rank() == 0 && what != "twin" && !is_planted)
      std::ofstream(log, std::ios::app) << request.value("id", "") << " " << getpid() << "\n";
    return serve(request, context);
  };
  SuiteOptions suite{.matrix = chosen,
                     .contract = {.specs = {spec}, .data = chosen.data, .quiet = true},
                     .one_process = {chosen.cases[1].id(), spec.id(), chosen.cases[0].id()}};
  std::swap(suite.matrix.cases[0], suite.matrix.cases[1]);
  const auto ids = suite.one_process;
  run_suite(suite);
  std::ifstream file(log);
  std::vector<std::pair<std::string, std::string>> served;
  for (std::string id, process; file >> id >> process;) served.emplace_back(id, process);
  unlink(log.c_str());
  ASSERT_GE(served.size(), 3u);
  const auto last = served.end() - 3;
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(last[i].first, ids[static_cast<std::size_t>(i)]);
    EXPECT_EQ(last[i].second, last[0].second) << "one process";
  }
}

// Of seven that fail five are repeated; the others are not said to repeat.
TEST(Alone, OnlyTheFirstFailuresAreRepeated) {
  const auto run = run_matrix(options(8));
  for (std::size_t i = 1; i < 8; ++i)
    EXPECT_THAT(run.cases[i].message,
                HasSubstr(i <= kMostRepeated ? "  alone   passes alone" : "  alone   not repeated"))
        << i;
}

TEST(Alone, WhatFailsAloneTooKeepsItsReplay) {
  auto chosen = options(3);
  chosen.serve = serve;
  chosen.fault = "averaged_twice";
  for (const auto& record : run_matrix(chosen).cases) {
    EXPECT_EQ(record.verdict, Verdict::Failed);
    EXPECT_THAT(record.message, Not(HasSubstr("  alone ")));
    EXPECT_EQ(record.replay, "equigrad run " + record.id + " --seed 1 --report R");
  }
}

// A list that is too long for a line stands in a file.
TEST(Alone, ManyCasesBeforeItAreInAFile) {
  ProcessSlots slots({.slots = 1, .widest = 1, .serve = [](const auto&, auto&) {
                        return nlohmann::json::object();
                      }});
  const std::string folder = testing::TempDir() + "alone-" + std::to_string(getpid());
  Alone alone("equigrad run", " --seed 1", folder);
  std::vector<std::string> before;
  for (int i = 0; i < 30; ++i) before.push_back("case" + std::to_string(i));
  alone.add({.id = "late",
             .request = {{"do", "case"}, {"id", "late"}},
             .before = before,
             .passes = [](const Outcomes&) { return true; }});
  std::vector<reports::Case> cases(1);
  cases[0].id = "late";
  cases[0].message = "it differs";
  alone.repeat(slots, cases);
  EXPECT_THAT(cases[0].message, HasSubstr("it differs\n  alone   passes alone: it needs the cases "
                                          "before it in its ranks: 10 and case10, case11"));
  EXPECT_EQ(cases[0].replay,
            "equigrad run $(cat '" + folder + "/late/before.txt') late --one-process --seed 1");
  std::ifstream file(folder + "/late/before.txt");
  std::vector<std::string> written;
  for (std::string id; file >> id;) written.push_back(id);
  EXPECT_EQ(written, before);
  const std::pair<Verdict, const char*> ends[] = {
      {Verdict::Crashed, "was ended from outside, such as for want of memory, or needs the cases"},
      {Verdict::TimedOut, "had too little time, such as on a busy machine, or needs the cases"}};
  for (const auto& [verdict, what] : ends) {
    cases[0].message = "it ended";
    cases[0].verdict = verdict;
    alone.repeat(slots, cases);
    EXPECT_THAT(cases[0].message, HasSubstr(std::string("passes alone: it ") + what));
  }
}

}  // namespace
}  // namespace equigrad::conformance
