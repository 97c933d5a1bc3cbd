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

at::Tensor sent(const at::Tensor& x, double factor, const Sending& sending) {
  return widen(weighed(widen(x), factor).to(sending.dtype.value_or(x.scalar_type())));
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
at::Tensor tree_sum(std::vector<at::Tensor> level, const Sending& sending) {
  for (at::Tensor& x : level) x = sent(x, sending.factor, sending);
  for (size_t step = 1; step < level.size(); step *= 2) {
    for (size_t i = 0; i + step < level.size(); i += 2 * step)
      level[i] = level[i] + level[i + step];
  }
  return level[0];
}

}  // namespace

at::Tensor sum_contributions(const Contributions& contributions, SumOrder order,
                             at::ScalarType accumulate_dtype, std::vector<double> weights,
                             const Sending& sending) {
  weights.resize(contributions.size(), 1.0);
  const double before = static_cast<float>(sending.factor);
  const at::Tensor& first = contributions[0][0];
  std::vector<at::Tensor> xs;  // of Fp64 and ExactGrid
  for (size_t pass = 0; pass < contributions.size() && order >= SumOrder::ExactGrid; ++pass) {
    for (const at::Tensor& c : contributions[pass]) {
      xs.push_back(order == SumOrder::Fp64 ? weighed(c.to(at::kDouble), weights[pass])
                                           : sent(c, weights[pass] * before, sending));
    }
  }
  if (order == SumOrder::Fp64) return std::accumulate(xs.begin(), xs.end(), at::zeros_like(xs[0]));
  if (order == SumOrder::ExactGrid) {
    const at::Tensor columns = at::stack(xs, -1), sum = at::empty(xs[0].sizes(), xs[0].options());
    const float *x = columns.const_data_ptr<float>(), *end = x + columns.numel();
    for (float* to = sum.mutable_data_ptr<float>(); x < end; x += xs.size()) {
      *to++ = grid_sum(x, x + xs.size());
    }
    return sum;
  }
  const at::ScalarType narrow =
      first.scalar_type() == at::kDouble ? at::kDouble : accumulate_dtype;  // A
  if (order == SumOrder::AddThenReduce) {
    std::vector<at::Tensor> windows;
    for (size_t rank = 0; rank < contributions[0].size(); ++rank) {
      at::Tensor window = at::zeros_like(first, narrow);
      for (size_t pass = 0; pass < contributions.size(); ++pass) {
        const at::Tensor wide = widen(contributions[pass][rank]);
        window = (widen(window) + weighed(wide, weights[pass])).to(narrow);
      }
      windows.push_back(window);
    }
    return tree_sum(windows, sending).to(narrow);
  }
  at::Tensor sum;
  for (size_t pass = 0; pass < contributions.size(); ++pass) {
    const at::Tensor reduced = weighed(tree_sum(contributions[pass], sending), weights[pass]);
    sum = (sum.defined() ? widen(sum) + reduced : reduced).to(narrow);
  }
  return sum;
}

}  // namespace equigrad::reference
