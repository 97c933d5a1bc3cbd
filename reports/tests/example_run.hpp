// ExampleRun: a run for the tests of the writers, small and fixed: one case of every kind, so that
// its golden files show all that a writer can say.
//
// Invariants: it depends on nothing.
// Depends on: reports/record.hpp.
#pragma once

#include <array>
#include <limits>
#include <string>
#include <utility>

#include "reports/record.hpp"

namespace equigrad::conformance {

// What a string from elsewhere may bring along: markup, the ends of every kind of quoting, terminal
// and workflow commands, bytes that are not UTF-8.
inline const std::string kHostile =
    std::string(
        "<script>alert(1)</script>\"'&]]>```|%0A::error::\n::error::x\x1b[31m\xC2\x9B\xFF") +
    '\0' + "\r--><!--</style></pre>";

inline reports::Environment example_environment() {
  return {.version = "0.1.0",
          .commit = "1a2b3c4",
          .torch = "2.11.0",
          .compiler = "clang 14.0.6",
          .device = "cpu",
          .cpu = "Example CPU",
          .cores = 2,
          .threads_per_rank = 1,
          .os = "Debian 12",
          .time = "2026-08-22T09:30:00Z"};
}

inline std::vector<reports::SelfCheck> example_self_checks() {
  return {{"micro_batch_dropped", "the last micro-batch of rank 1 was left out", true,
           "exact lane, 59,177 of 59,177 elements"},
          {"averaged_twice", "one bucket was divided by the world size once more", true,
           "exact lane, 18,432 of 59,177 elements"},
          {"shard_off_by_one", "the shard of rank 0 began one element late", true,
           "exact lane, 59,170 of 59,177 elements"}};
}

inline reports::Case example_case(int stage, const std::string& precision, int ranks,
                                  int accumulate, const std::string& clip,
                                  const std::string& optimizer, const std::string& model,
                                  const std::string& style) {
  reports::Case one;
  one.dimensions = {{"stage", std::to_string(stage)},
                    {"precision", precision},
                    {"style", style},
                    {"ranks", std::to_string(ranks)},
                    {"accumulate", std::to_string(accumulate)},
                    {"clip", clip},
                    {"optimizer", optimizer},
                    {"model", model}};
  one.id = "Required.grad.zero" + std::to_string(stage) + "." + precision + ".w" +
           std::to_string(ranks) + ".accumulation" + std::to_string(accumulate) + ".clip-" + clip +
           "." + optimizer + "." + model + "." + style;
  one.verdict = reports::Verdict::Equal;
  one.seconds = 0.125;
  one.replay = "equigrad run " + one.id + " --seed 20260822";
  one.lanes = {{"exact", reports::Verdict::Equal, 59177, 0, 0, {}},
               {"cross", reports::Verdict::Equal, 59177, 0, 0, {}}};
  return one;
}

inline void fail(reports::Case& one) {
  one.verdict = reports::Verdict::Failed;
  one.lanes[0] = {"exact",
                  reports::Verdict::Failed,
                  59177,
                  3072,
                  std::numeric_limits<double>::infinity(),
                  reports::Worst{.tensor = "blocks.1.mlp.fc2.weight",
                                 .index = 18444,
                                 .got = 1.2207031e-02,
                                 .want = 2.4414062e-02,
                                 .bound = 0,
                                 .ulp = 4194304}};
  one.message = "FAIL " + one.id +
                "   engine vs twin   step 1\n"
                "  blocks.1.mlp.fc2.weight [384,96]   3,072 of 36,864 elements differ (8.3 %)\n"
                "    worst   [192,12]  got 1.2207031e-02  want 2.4414062e-02\n"
                "    where   all inside rank 1's shard, flat 18432..21503\n"
                "    looks like  got = 0.5000 x want on 3,072/3,072 -> averaged twice over world 2";
  one.files = {"fail/" + one.id + "/got.bin", "fail/" + one.id + "/want.bin"};
}

inline void bound(reports::Case& one, double margin) {
  one.verdict = reports::Verdict::Within;
  one.lanes.push_back({"bounded", reports::Verdict::Within, 59177, 58000, margin,
                       reports::Worst{.tensor = "head.weight",
                                      .index = 7,
                                      .got = 0.5,
                                      .want = 0.5 + margin / 256,
                                      .bound = 1.0 / 256,
                                      .ulp = margin}});
}

inline reports::Run example_run() {
  using reports::Verdict;
  reports::Run run;
  run.environment = example_environment();
  run.seed = 20260822;
  run.command = "equigrad run --seed 20260822";
  run.self_checks = example_self_checks();
  run.wall_s = 93.0625;
  run.cases = {example_case(0, "fp32", 1, 1, "off", "sgd", "gpt", "engine_backward"),
               example_case(2, "bf16", 4, 3, "above", "adamw", "gpt", "scale_backward"),
               example_case(3, "bf16", 4, 3, "above", "adamw", "gpt", "tensor_backward"),
               example_case(3, "fp32", 2, 4, "below", "adamw", "irregular", "loss_backward"),
               example_case(3, "fp32", 2, 1, "off", "sgd", "conv", "loss_backward"),
               example_case(3, "fp32", 2, 3, "off", "sgd", "conv", "loss_backward"),
               example_case(3, "fp32", 2, 4, "off", "sgd", "conv", "loss_backward")};
  bound(run.cases[1], 0.3125);
  fail(run.cases[2]);
  const std::array<std::pair<Verdict, const char*>, 4> others = {
      {{Verdict::Crashed, "rank 1 of 2 died of signal 11 in step 2, backward of micro-batch 0"},
       {Verdict::TimedOut, "rank 0 of 2 did not answer in 60 s; last it entered parameter.gather"},
       {Verdict::Skipped, "the model has one micro-batch of images only"},
       {Verdict::NotRun, "the pool of ranks gave up after 3 crashes"}}};
  for (size_t i = 0; i < others.size(); ++i) {
    reports::Case& one = run.cases[3 + i];
    one.verdict = others[i].first;
    one.message = others[i].second;
    one.lanes.clear();
  }
  run.not_run = {{"stage 3 on CUDA: no device", 12}};
  run.memory = {{0, "bf16", 4, "parameters", 118354, 118354, "gpt"},
                {0, "bf16", 4, "optimizer", 473416, 473416, "gpt"},
                {3, "bf16", 4, "parameters", 29590, 61014, "gpt"},
                {3, "bf16", 4, "optimizer", 118360, 118360, "gpt"}};
  return run;
}

}  // namespace equigrad::conformance
