// Lattice probes: networks of small whole numbers in which every intermediate is exact, whatever
// the order of additions, so that every run gives the same bits.
//
// The certificate is an analysis of widths. A partial sum of products, in any order, is a whole
// number no larger than the sum of the products' magnitudes; the same network on magnitudes, with
// relu's derivative taken as 1, bounds them all, forward and backward, over all micro-batches and
// ranks. Below 2^p, p the bits of the significand, each is a number of the dtype.
//
// Invariants: what fp64 computes agrees with every element, or the certificate is worthless.
// Shapes: those of ProbeNetwork 3.   Units: bits.   Errors: none.
// Depends on: relation.hpp, conformance/oracle/bits.hpp, engine/loss/divisors.hpp.
#pragma once

#include <algorithm>
#include <cmath>

#include "conformance/oracle/bits.hpp"
#include "property_tests/relations/exact_relations.hpp"

namespace equigrad::property_tests::relations {

// First gradients, by name, in fp64, summed over ranks and micro-batches.
class Lattice {
 public:
  // `magnitudes`: of absolute values, an upper bound of every intermediate's magnitude.
  Lattice(const json& one, bool magnitudes) : network_(one), magnitudes_(magnitudes) {
    for (int rank = 0; rank < world_of(one); ++rank)
      for (int micro = 0; micro < accumulation_of(one); ++micro) add({0, rank, micro});
    for (const auto& [name, sum] : sums) see(sum);
  }
  std::map<std::string, at::Tensor> sums;
  double largest = 0;

 private:
  at::Tensor wide(const at::Tensor& x) const {
    const auto y = x.detach().to(at::kDouble);
    return magnitudes_ ? y.abs() : y;
  }
  const at::Tensor& see(const at::Tensor& x) {
    largest = std::max(largest, x.abs().max().item<double>());
    return x;
  }
  void add(const Source& from) {
    const auto x = see(wide(network_.input(from, at::kFloat))),
               up = see(wide(network_.target(from)));
    const auto first = wide(network_["first"]), second = wide(network_["second"]);
    const auto before = see(x.matmul(first.t()) + wide(network_["bias"]));
    const auto hidden = before.clamp_min(0);
    see(hidden.matmul(second.t()) + wide(network_["last bias"]));
    auto down = see(up.matmul(second));
    if (!magnitudes_) down = down * (before > 0);
    sum("second", up.t().matmul(hidden));
    sum("last bias", up.sum(0));
    sum("first", down.t().matmul(x));
    sum("bias", down.sum(0));
  }
  void sum(const std::string& name, const at::Tensor& gradient) {
    auto& sum = sums[name];
    sum = sum.defined() ? sum + gradient : gradient;
  }

  ProbeNetwork network_;
  bool magnitudes_;
};

inline int significand_bits(const json& one) { return one.at("dtype") == kBf16 ? 8 : 24; }

inline json lattice_of(const json& one) {
  return changed(changed(changed(one, "model", kLattice), "clip", 0.0), "decay", 0.0);
}
inline bool is_certified(const json& one) {
  return Lattice(lattice_of(one), true).largest <= std::ldexp(1.0, significand_bits(one));
}

// Every element is what fp64 says, times the one factor that is rounded.
inline std::string against_fp64(const json& one, const Record& got) {
  const auto sums = Lattice(one, false).sums;
  const auto factor = static_cast<float>(1.0 / (accumulation_of(one) * world_of(one)));
  for (const auto& [name, sum] : sums) {
    const auto& shard = got.gradients.at(name);
    const auto want = sum.flatten().slice(0, shard.begin, shard.end).to(at::kFloat) * factor;
    const auto report = conformance::oracle::compare(shard.gradient.flatten(), want);
    if (!report.equal()) return name + ", against fp64: " + describe(report);
  }
  return "";
}

inline std::string any_order(const json& drawn, Runs& runs) {
  const auto one = lattice_of(drawn);
  const int world = world_of(one), accumulation = accumulation_of(one), seed = one.at("seed");
  Way plain, other;
  plain.steps = other.steps = 1;
  other.source = [=](Source at) {
    return Source{at.step, (at.rank + seed) % world, (at.micro + seed) % accumulation};
  };
  other.reversed = true;
  const auto want = runs.train(one, plain);
  auto wrong = against_fp64(one, want);
  if (!wrong.empty()) return wrong;
  auto changes = changed(changed(one, "stage", (stage_of(one) + 1 + seed % 3) % 4), "native", true);
  changes["schedule"][0] = 1 + seed % 40;
  return parted(runs.train(changes, other), want, is_gradient);
}

// So many micro-batches more on so many ranks fewer.
inline std::string ranks_for_passes(const json& drawn, Runs& runs) {
  const auto one = lattice_of(drawn);
  const int accumulation = accumulation_of(one);
  Way ranks, passes;
  ranks.steps = passes.steps = 1;
  passes.world = 1;
  passes.source = [accumulation](Source at) {
    return Source{at.step, at.micro / accumulation, at.micro % accumulation};
  };
  const auto alone = runs.train(changed(one, "accumulation", accumulation * world_of(one)), passes);
  return parted(alone, runs.train(one, ranks), is_gradient);
}

inline std::vector<Relation> lattice_relations() {
  const auto certified = [](const json& one) { return !is_fp16(one) && is_certified(one); };
  return {
      {16,
       "on a lattice any order gives the bits of fp64",
       Class::Exact,
       certified,
       any_order,
       {"shard_off_by_one"}},
      {30,
       "passes may be ranks, on a lattice or where sums are exact",
       Class::Guarded,
       [](const json& one) { return world_of(one) > 1; },
       [certified](const json& one, Runs& runs) {
         if (!certified(one)) return first_of(one, runs, {exact_ranks_for_passes, ranks_change});
         return first_of(one, runs, {ranks_for_passes, exact_ranks_for_passes, ranks_change});
       },
       {"averaged_twice"}},
  };
}

}  // namespace equigrad::property_tests::relations
