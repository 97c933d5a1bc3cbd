// Probe: a linear network whose gradients have a bound that is computed, whatever the order of the
// additions.
//
// The probe is linear: first's gradient is the average over ranks and passes of up^T input, `up`
// given, so that the exact one and the sum of its magnitudes are known in fp64.
//
//   |g - exact| <= ((1+u32)^n (1+u)^k (1 + r) - 1) (average of |up|^T |input|) + a
//
// n: roundings of one product's way through the matrix product; k: those to 16 bits; r, a: of the
// reduction (conformance/oracle/bound.hpp). Higham, Accuracy and Stability, 2nd edition, 3.1, 3.5.
//
// Invariants: both sides of a relation are held to the bound around the same exact result.
// Shapes: first [3, 5], input [rows, 5], up [rows, 3].   Errors: those of relation.hpp.
// Depends on: relation.hpp, conformance/oracle/bound.hpp.
#pragma once

#include "conformance/oracle/bound.hpp"
#include "property_tests/relations/relation.hpp"

namespace equigrad::property_tests::relations {

namespace oracle = conformance::oracle;

struct Probe {
  json one;
  int passes = 1;          // a micro-batch's backward passes
  double loss_factor = 1;  // of every loss
  int roundings = 0;       // besides those of the sums
  std::function<void(Session&, const Source&)> pass = {};
  std::function<Source(Source)> source = {};
};

inline json linear_of(const json& one, int rows) {
  auto probe = changed(changed(one, "model", kLinear), "clip", 0.0);
  probe["rows"] = rows;
  return probe;
}

// up^T input of what the ranks are given, averaged; of magnitudes: what a bound is relative to.
inline at::Tensor exact_of(const Probe& probe, bool magnitudes) {
  const ProbeNetwork network(probe.one);
  const auto dtype = torch_dtype(precision_of(probe.one).param);
  at::Tensor sum = at::zeros({3, 5}, at::kDouble);
  for (int rank = 0; rank < world_of(probe.one); ++rank)
    for (int micro = 0; micro < accumulation_of(probe.one); ++micro) {
      auto x = network.input({0, rank, micro}, dtype).to(at::kDouble);
      auto up = network.target({0, rank, micro}).to(at::kDouble) * probe.loss_factor;
      sum = sum + (magnitudes ? up.abs().t().matmul(x.abs()) : up.t().matmul(x));
    }
  return sum / (world_of(probe.one) * accumulation_of(probe.one));
}

inline oracle::Reduction reduction_of(const Probe& probe) {
  oracle::Reduction reduction;
  const auto precision = precision_of(probe.one);
  reduction.world = world_of(probe.one);
  reduction.accumulation_steps = accumulation_of(probe.one);
  reduction.passes = accumulation_of(probe.one) * probe.passes;
  reduction.param_dtype = torch_dtype(precision.param);
  reduction.accumulate_dtype = torch_dtype(precision.accumulate);
  reduction.order =
      stage_of(probe.one) < 2 ? oracle::SumOrder::AddThenReduce : oracle::SumOrder::ReduceThenAdd;
  return reduction;
}

inline std::string held(const Probe& probe, Runs& runs) {
  Way way;
  way.steps = 1;
  way.pass = probe.pass;
  way.source = probe.source;
  const auto got = runs.train(probe.one, way);
  const auto& shard = got.gradients.at("first");
  if (shard.begin == shard.end) return "";
  const auto slice = [&](const at::Tensor& x) {
    return x.flatten().slice(0, shard.begin, shard.end);
  };
  const auto reduction = reduction_of(probe);
  const auto sums = oracle::reduction_bound(reduction);
  const int64_t rows = probe.one.at("rows");
  const double product = 1 + oracle::roundings(rows + 1 + probe.roundings, 0x1p-24);
  // Of 16 bits: the upstream gradient and the product are each stored in them.
  const double stored =
      1 + oracle::roundings(2 + probe.passes, oracle::unit_roundoff(reduction.param_dtype));
  // The backend's own order of additions: one after the other, in the type that is sent.
  const double order =
      probe.one.value("native", false) ? 1 + oracle::gamma(reduction.world - 1, 0x1p-24) : 1;
  const double relative = product * stored * order * (1 + sums.relative) - 1;
  const auto bound = slice(exact_of(probe, true)) * relative + sums.absolute;
  const auto report = oracle::check(shard.gradient.flatten(), slice(exact_of(probe, false)), bound);
  return report.held() ? "" : describe(report);
}

inline std::string both_held(const Probe& one, const Probe& other, Runs& runs) {
  const auto wrong = held(one, runs), also = held(other, runs);
  return wrong + (also.empty() ? "" : " the other: " + also);
}

}  // namespace equigrad::property_tests::relations
