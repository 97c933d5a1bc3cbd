// LargeRun: a run with as many cases as asked for, some of which go wrong.
//
// Invariants: it depends on nothing but its arguments.
// Depends on: example_run.hpp, reports/record.hpp.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "reports/tests/example_run.hpp"

namespace equigrad::conformance {

inline reports::Run large_run(int cases, int wrong_every) {
  constexpr std::array kStyles = {"engine_backward", "scale_backward", "loss_backward",
                                  "tensor_backward"};
  constexpr std::array kClips = {"off", "below", "above"};
  constexpr std::array kAccumulate = {1, 3, 4};
  constexpr std::array kModels = {"gpt", "irregular", "nonscalar", "conv"};
  constexpr std::array<const char*, 5> kCategories = {"parameters", "gradients", "master",
                                                      "optimizer", "buckets"};
  reports::Run run = example_run();
  run.cases.clear();
  run.not_run.clear();
  run.memory.clear();
  for (int i = 0; i < cases; ++i) {
    const auto at = static_cast<size_t>(i);
    const bool bf16 = i / 4 % 2 == 1;
    reports::Case one = example_case(
        i % 4, bf16 ? "bf16" : "fp32", i / 32 % 4 + 1, kAccumulate[at / 128 % 3],
        kClips[at / 384 % 3 == 0 ? at / 128 % 3 : at / 384 % 3],
        i / 1152 % 2 == 0 ? "adamw" : "sgd", kModels[at / 2304 % 4], kStyles[at / 8 % 4]);
    if (bf16) bound(one, static_cast<double>((i * 37) % 97) / 100.0);
    if (wrong_every > 0 && i % wrong_every == wrong_every - 1) fail(one);
    run.cases.push_back(one);
  }
  for (const char* precision : {"fp32", "bf16"}) {
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
      for (int stage = 0; stage < 4; ++stage) {
        for (size_t c = 0; c < kCategories.size(); ++c) {
          const bool sharded =
              (c >= 2 && c <= 3 && stage >= 1) || (c == 1 && stage >= 2) || (c == 0 && stage == 3);
          const int64_t bytes = (c == 4 ? 65536 : c == 3 ? 473416 : 236708) / (sharded ? ranks : 1);
          run.memory.push_back(
              {stage, precision, ranks, kCategories[c], bytes, bytes * 5 / 4, "gpt"});
        }
      }
    }
  }
  return run;
}

}  // namespace equigrad::conformance
