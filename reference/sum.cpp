#include "reference/sum.hpp"

#include <ATen/ATen.h>

#include <utility>

#include "reference/model.hpp"

namespace equigrad::reference {
namespace {

at::Tensor weighed(const at::Tensor& wide, double weight) {
  return weight == 1.0 ? wide : wide * weight;
}

// Of t(x): neighbours first, level by level; an odd last one goes up unchanged.
at::Tensor tree_sum(std::vector<at::Tensor> level, const Wire& wire) {
  for (at::Tensor& x : level) {
    const at::ScalarType sent = wire.dtype.value_or(x.scalar_type());
    x = widen(weighed(widen(x), wire.factor).to(sent));
  }
  while (level.size() > 1) {
    std::vector<at::Tensor> next;
    for (size_t i = 0; i + 1 < level.size(); i += 2) next.push_back(level[i] + level[i + 1]);
    if (level.size() % 2 == 1) next.push_back(level.back());
    level = std::move(next);
  }
  return level[0];
}

}  // namespace

at::Tensor sum_contributions(const Contributions& contributions, Order order,
                             at::ScalarType accumulate_dtype, std::vector<double> weights,
                             const Wire& wire) {
  weights.resize(contributions.size(), 1.0);
  const at::Tensor& first = contributions[0][0];
  if (order == Order::Exact) {
    at::Tensor sum = at::zeros_like(first, at::kDouble);
    for (size_t pass = 0; pass < contributions.size(); ++pass) {
      for (const at::Tensor& c : contributions[pass]) {
        sum += weighed(c.to(at::kDouble), weights[pass]);
      }
    }
    return sum;
  }
  const at::ScalarType narrow =
      first.scalar_type() == at::kDouble ? at::kDouble : accumulate_dtype;  // A
  if (order == Order::AddThenReduce) {
    std::vector<at::Tensor> windows;
    for (size_t rank = 0; rank < contributions[0].size(); ++rank) {
      at::Tensor window = at::zeros_like(first, narrow);
      for (size_t pass = 0; pass < contributions.size(); ++pass) {
        const at::Tensor term = weighed(widen(contributions[pass][rank]), weights[pass]);
        window = (widen(window) + term).to(narrow);
      }
      windows.push_back(window);
    }
    return tree_sum(windows, wire).to(narrow);
  }
  at::Tensor sum;
  for (size_t pass = 0; pass < contributions.size(); ++pass) {
    const at::Tensor reduced = weighed(tree_sum(contributions[pass], wire), weights[pass]);
    sum = (sum.defined() ? widen(sum) + reduced : reduced).to(narrow);
  }
  return sum;
}

}  // namespace equigrad::reference
