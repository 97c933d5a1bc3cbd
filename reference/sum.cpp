#include "reference/sum.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "reference/models/model.hpp"

namespace equigrad::reference {
namespace {

at::Tensor weighed(const at::Tensor& wide, double weight) {
  return weight == 1.0 ? wide : wide * weight;
}

at::Tensor sent(const at::Tensor& x, double factor, const Wire& wire) {
  return widen(weighed(widen(x), factor).to(wire.dtype.value_or(x.scalar_type())));
}

float grid_sum(const float* x, const float* end) {
  const double plain = std::accumulate(x, end, 0.0);
  if (!std::isfinite(plain)) return std::isnan(plain) ? NAN : static_cast<float>(plain);
  float largest = 0x1p-149F;
  for (const float* i = x; i < end; ++i) largest = std::fmax(largest, std::fabs(*i));
  const double u = std::exp2(32 * std::floor((std::ilogb(largest) - 1) / 32.0) - 31);
  __int128 sum = 0;
  for (; x < end; ++x) sum += std::fabs(*x) < u ? 0 : static_cast<__int128>(std::rint(*x / u));
  return static_cast<float>(static_cast<float>(sum) * u);
}

// Of t(x): neighbours first, level by level; an odd last one goes up unchanged.
at::Tensor tree_sum(std::vector<at::Tensor> level, const Wire& wire) {
  for (at::Tensor& x : level) x = sent(x, wire.factor, wire);
  for (size_t step = 1; step < level.size(); step *= 2) {
    for (size_t i = 0; i + step < level.size(); i += 2 * step)
      level[i] = level[i] + level[i + step];
  }
  return level[0];
}

}  // namespace

at::Tensor sum_contributions(const Contributions& contributions, Order order,
                             at::ScalarType accumulate_dtype, std::vector<double> weights,
                             const Wire& wire) {
  weights.resize(contributions.size(), 1.0);
  const at::Tensor& first = contributions[0][0];
  std::vector<at::Tensor> xs;  // of Exact and Grid
  for (size_t pass = 0; pass < contributions.size() && order >= Order::Grid; ++pass) {
    for (const at::Tensor& c : contributions[pass]) {
      xs.push_back(order == Order::Exact ? weighed(c.to(at::kDouble), weights[pass])
                                         : sent(c, weights[pass] * wire.factor, wire));
    }
  }
  if (order == Order::Exact) return std::accumulate(xs.begin(), xs.end(), at::zeros_like(xs[0]));
  if (order == Order::Grid) {
    const at::Tensor columns = at::stack(xs, -1), sum = at::empty_like(xs[0]);
    const float *x = columns.const_data_ptr<float>(), *end = x + columns.numel();
    for (float* to = sum.mutable_data_ptr<float>(); x < end; x += xs.size()) {
      *to++ = grid_sum(x, x + xs.size());
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
        const at::Tensor wide = widen(contributions[pass][rank]);
        window = (widen(window) + weighed(wide, weights[pass])).to(narrow);
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
