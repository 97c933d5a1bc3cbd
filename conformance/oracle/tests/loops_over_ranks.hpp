// A reduction of one element in plain loops: the documented order of additions, written once more
// beside what bound.cpp counts. One fp32 operation a step, rounded to its dtype.
//
// Invariants: it shares no code with the engine, nor with the bound.
// Errors: none.   Depends on: bound.hpp's Reduction, ATen's 16-bit types.
#pragma once

#include <ATen/ATen.h>

#include <numeric>
#include <utility>
#include <vector>

#include "conformance/oracle/bound.hpp"

namespace equigrad::conformance::oracle {

using Contributions = std::vector<std::vector<float>>;  // [rank][pass]

inline float to(at::ScalarType dtype, float value) {
  if (dtype == at::kHalf) return static_cast<float>(at::Half(value));
  return dtype == at::kBFloat16 ? static_cast<float>(at::BFloat16(value)) : value;
}

// b and a of the documents.
inline std::pair<float, float> factors(const Reduction& r) {
  const double world = double(r.world / r.sequence), steps = double(r.accumulation_steps);
  std::pair<double, double> exact{1, 1 / (steps * world)};
  if (r.averaging == Averaging::BeforeSum) exact = {1 / world, 1 / steps};
  if (r.averaging == Averaging::Around)
    exact = {1 / r.predivide_factor, r.predivide_factor / (steps * world)};
  if (r.averaging == Averaging::Never) exact = {1, 1 / steps};
  return {static_cast<float>(exact.first), static_cast<float>(exact.second)};
}

inline float sum_of(std::vector<float> level, bool in_a_chain) {
  if (in_a_chain) return std::accumulate(level.begin() + 1, level.end(), level[0]);
  while (level.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = next;
  }
  return level[0];
}

inline float engine_average(const Contributions& c, const Reduction& r) {
  const auto A = r.accumulate_dtype, M = r.master_dtype;
  const auto [before, after] = factors(r);
  const auto as_sent = [&r, b = before](at::ScalarType own, float x) {
    return to(r.communication_dtype.value_or(own), b == 1 ? x : x * b);
  };
  float sum = 0;
  if (r.order == SumOrder::AddThenReduce) {
    std::vector<float> windows;
    for (const auto& row : c) {
      float window = to(A, row[0]);
      for (size_t p = 1; p < row.size(); ++p) window = to(A, window + row[p]);
      windows.push_back(as_sent(A, window));
    }
    sum = to(A, sum_of(windows, r.any_order));
  } else {
    for (size_t p = 0; p < c[0].size(); ++p) {
      std::vector<float> column;
      for (const auto& row : c) column.push_back(as_sent(r.param_dtype, row[p]));
      const float reduced = sum_of(column, r.any_order);
      sum = to(A, p == 0 ? reduced : sum + reduced);
    }
  }
  const float average = to(M, sum * (after / static_cast<float>(r.loss_scale)));
  return r.clip_factor == 1 ? average : to(M, average * static_cast<float>(r.clip_factor));
}

}  // namespace equigrad::conformance::oracle
