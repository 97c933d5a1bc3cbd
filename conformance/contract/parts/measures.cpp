// 16. Its parts: a shard of the gradient, measured, clipped and looked through.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/parts/stations.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/shard/gradient_shard.hpp"

namespace equigrad::conformance::contract {
namespace {

constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kFloatNan = std::numeric_limits<float>::quiet_NaN();

// Of every size that the type has; some are none.
at::Tensor any_values(Drawn& drawn, int64_t numel, at::ScalarType type, bool is_finite) {
  auto values = at::empty({numel});
  auto* begin = values.mutable_data_ptr<float>();
  const int range = type == at::kHalf ? 10 : 60;
  for (int64_t i = 0; i < numel; ++i) {
    const auto exponent = static_cast<int>(drawn.below(2 * range)) - range;
    begin[i] = std::ldexp(static_cast<float>(drawn.below(4001) - 2000), exponent - 6);
    if (!is_finite && drawn.one_in(9)) begin[i] = drawn.one_in(2) ? kFloatNan : -kFloatInfinity;
  }
  return values.to(type);
}

struct Measured {
  long double squares = 0;
  double largest = 0;
  int64_t non_finite = 0;
  void add(const at::Tensor& values) {
    const auto wide = values.to(at::kDouble);
    for (int64_t i = 0; i < wide.numel(); ++i) {
      const double value = wide.const_data_ptr<double>()[i];
      if (!std::isfinite(value)) {
        ++non_finite;
        continue;
      }
      squares += static_cast<long double>(value) * value;
      largest = std::max(largest, std::abs(value));
    }
  }
  bool is(const shard::Measure& got, NormType type) const {
    const double want = type == NormType::Two ? static_cast<double>(std::sqrt(squares)) : largest;
    return got.non_finite_numel == non_finite && std::abs(got.norm - want) <= 4e-16 * want;
  }
};

void check_measures(Play& play) {
  Drawn drawn(play, 20);
  const auto group = play.group();
  const auto& context = play.context();
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t numel : {0, 1, 3, 16, 37, 300}) {
      const bool is_finite = drawn.one_in(2);
      Measured all, own;
      at::Tensor mine;
      for (int rank = 0; rank < context.world; ++rank) {
        const auto part = any_values(drawn, numel, type, is_finite);
        all.add(part);
        if (rank != context.rank) continue;
        own.add(part);
        mine = part;
      }
      for (const auto norm : {NormType::Two, NormType::Infinity})
        play.check("the norm of " + std::to_string(numel) + " numbers of type " +
                       c10::toString(type) + ", of one rank and of all",
                   own.is(shard::measure(mine, nullptr, norm), norm) &&
                       all.is(shard::measure(mine, group.get(), norm), norm));
      play.check("it is the length that is measured if nothing is said",
                 own.is(shard::measure(mine, nullptr), NormType::Two));
    }
  for (const auto norm : {NormType::Two, NormType::Infinity})
    play.refuse("shard.measure",
                [&] { shard::measure(at::ones({2}, at::kDouble), nullptr, norm); });
}

// More than are multiplied at a time, in 16 bits.
void check_clipping(Play& play) {
  Drawn drawn(play, 21);
  const auto around = whole_numbers(drawn, 600);  // the end of what is multiplied at a time
  for (const auto type : {at::kFloat, at::kBFloat16, at::kHalf})
    for (const int64_t numel : {int64_t{0}, int64_t{7}, (int64_t{1} << 20) + 300}) {
      if (type != at::kBFloat16 && numel > 1000) continue;
      const auto values = at::zeros({numel}, type);
      if (numel > 600) values.narrow(0, numel - 600, 600).copy_(around);
      values.narrow(0, 0, std::min<int64_t>(numel, 7)).fill_(1.25);
      const auto before = values.to(at::kDouble);
      bool holds = shard::clip_(values, 3, 3) == 1 && shard::clip_(values, 2.5, 3) == 1 &&
                   values.to(at::kDouble).equal(before);
      const double factor = 3 / (3.5 + 1e-6);
      holds = holds && shard::clip_(values, 3.5, 3) == factor;
      const auto want = (before.to(at::kFloat) * static_cast<float>(factor)).to(type);
      play.check("above the threshold " + std::to_string(numel) + " numbers of type " +
                     c10::toString(type) + " are multiplied, below it none is touched",
                 holds && values.equal(want));
    }
}

// A number that is none, on one rank, in one place.
void check_first(Play& play) {
  Drawn drawn(play, 22);
  const auto& context = play.context();
  const std::vector<int64_t> numels = {4, 0, 3, 8, 1, 5};
  for (int round = 0; round < 24; ++round) {
    const bool crosses = round == 0;  // 5 3 are sent before 4 2 0
    const std::vector<int> identities(numels.size());
    std::vector<layout::Registration> all;
    for (std::size_t i = 0; i < numels.size(); ++i)
      all.push_back(
          {.name = "p" + std::to_string(i),
           .identity = &identities[i],
           .shape = {numels[i]},
           .lower_precision =
               crosses ? i % 2 == 1 : drawn.one_in(2)});  // whose buckets come in another order
    const layout::ParameterTable table(all);
    const layout::BucketPlan plan(table, context.world, crosses ? 100 : 1 + drawn.below(12));
    const auto gradient = at::ones({plan.shard_numel()});
    std::optional<std::size_t> first;
    for (int64_t left = crosses ? 2 : drawn.below(4); left > 0; --left) {
      const auto parameter =
          crosses ? static_cast<std::size_t>(2 + left)
                  : static_cast<std::size_t>(drawn.of(std::vector<int64_t>{0, 2, 3, 4, 5}));
      const int64_t element = crosses ? 0 : drawn.below(numels[parameter]);
      const auto where = *plan.slot_of(parameter);
      const auto& slot = plan.slot(where);
      if (element / slot.shard_numel == context.rank)
        gradient[plan.buckets()[where.bucket].offset + slot.offset + element % slot.shard_numel] =
            drawn.one_in(2) ? kFloatNan : kFloatInfinity;
      else
        drawn.one_in(2);
      first = std::min(first.value_or(parameter), parameter);
    }
    play.check("the first parameter with a number that is none is told on every rank",
               shard::first_non_finite(gradient, plan, numels.size(), *play.group()) == first);
  }
}

void measured(Play& play) {
  if (play.group()) {
    check_measures(play);
    check_clipping(play);
    check_first(play);
    play.check("three and four have the length five",
               shard::measure(at::tensor({3.F, 4.F}), nullptr).norm == (play.fault() ? 7 : 5));
  }
  train_along(play);
}

}  // namespace

std::vector<Case> shards_of_gradients() {
  return {of_part("shards_of_gradients",
                  "norms, clipping and the first number that is none, at every size",
                  "another length is expected", measured, Plays::EveryWorld)};
}

}  // namespace equigrad::conformance::contract
