// Sample: small tables, numbers and messages that the tests of the engine's parts share.
//
// Invariants: element i of sample(numel, seed) depends on (seed, i) only, and exponents go from -12
// to 12, so almost every sum of two elements rounds.
// Shapes: flat [numel].   Errors: none.
// Depends on: ATen, reference/models/data.hpp for its hash, engine/layout, engine/error.hpp.
#pragma once

#include <ATen/ATen.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "conformance/testing/error_of.hpp"
#include "engine/error.hpp"
#include "engine/layout/parameter_table.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance {

inline at::Tensor sample(int64_t numel, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  auto tensor = at::empty({numel}, at::kFloat);
  auto* values = tensor.mutable_data_ptr<float>();
  for (int64_t i = 0; i < numel; ++i) {
    const uint64_t bits = reference::hash(reference::hash(seed) + static_cast<uint64_t>(i));
    const auto mantissa = static_cast<float>(static_cast<int32_t>(bits >> 39) - (1 << 24));
    values[i] = std::ldexp(mantissa, static_cast<int>(bits % 25) - 36);
  }
  return tensor.to(dtype);
}

// Trainable parameters p0, p1, .. in one group; an index of `frozen` is not trainable.
inline layout::ParameterTable table_of(const std::vector<int64_t>& numels,
                                       const std::vector<std::size_t>& frozen = {}) {
  std::vector<layout::Registration> registrations;
  for (std::size_t i = 0; i < numels.size(); ++i) {
    registrations.push_back({"p" + std::to_string(i), &numels[i], {numels[i]}, true, 0});
  }
  for (const auto i : frozen) registrations[i].trainable = false;
  return layout::ParameterTable(registrations);
}

// The rows added level by level, neighbours first, an odd last one carried up; in fp32.
inline at::Tensor sum_of_tree(std::vector<at::Tensor> rows) {
  for (auto& row : rows) row = row.to(at::kFloat);
  while (rows.size() > 1) {
    std::vector<at::Tensor> next;
    for (std::size_t i = 0; i + 1 < rows.size(); i += 2) {
      next.push_back(at::add(rows[i], rows[i + 1]));
    }
    if (rows.size() % 2 == 1) next.push_back(rows.back());
    rows = next;
  }
  return rows[0];
}

}  // namespace equigrad::conformance
