// Relations 17 to 22, 42 and 43: where orders of additions differ, by no more than a bound that is
// computed.
//
// The probe is linear: first's gradient is the average over ranks and passes of up^T input, `up`
// given, so that the exact one and the sum of its magnitudes are known in fp64, whatever the order
// of the additions.
//
//   |g - exact| <= ((1+u32)^n (1+u)^k (1 + r) - 1) (average of |up|^T |input|) + a
//
// n: roundings of one product's way through the matrix product; k: those to 16 bits; r, a: of the
// reduction (conformance/oracle/bound.hpp). Higham, Accuracy and Stability, 2nd edition, 3.1, 3.5.
//
// Invariants: both sides of a relation are held to the bound around the same exact result.
// Shapes: first [3, 5], input [rows, 5], up [rows, 3].
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "conformance/oracle/bound.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

namespace oracle = conformance::oracle;

struct Probe {
  json one;
  int passes = 1;          // a micro-batch's backward passes
  double loss_factor = 1;  // of every loss
  int roundings = 0;       // besides those of the sums
  std::function<void(Session&, const Source&)> pass = {};
  std::function<Source(Source)> source = {};
};

json linear_of(const json& one, int rows) {
  auto probe = changed(changed(one, "model", kLinear), "clip", 0.0);
  probe["rows"] = rows;
  return probe;
}

// up^T input of what the ranks are given, averaged; of magnitudes: what a bound is relative to.
at::Tensor exact_of(const Probe& probe, bool magnitudes) {
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

oracle::Reduction reduction_of(const Probe& probe) {
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

std::string held(const Probe& probe, Runs& runs) {
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

std::string both_held(const Probe& one, const Probe& other, Runs& runs) {
  const auto wrong = held(one, runs), also = held(other, runs);
  return wrong + (also.empty() ? "" : " the other: " + also);
}

// Rows [begin, end) of a micro-batch.
at::Tensor part_of_loss(Session& s, const Source& from, int64_t begin, int64_t end) {
  const auto x = s.network.input(from, s.dtype()).slice(0, begin, end);
  return s.network.loss(s.network.output(x), s.network.target(from).slice(0, begin, end));
}

std::string parts(const json& one, Runs& runs, int rows, bool joined) {
  const Probe whole{linear_of(one, rows)};
  Probe cut{linear_of(one, rows)};
  cut.passes = joined ? 1 : 2;
  cut.roundings = 2;
  cut.pass = [=](Session& s, const Source& from) {
    const auto left = part_of_loss(s, from, 0, rows / 2),
               right = part_of_loss(s, from, rows / 2, rows);
    if (joined) return void(s.engine->backward(left + right));
    s.engine->backward(left);
    s.engine->backward(right);
  };
  return both_held(whole, cut, runs);
}

std::string turned_samples(const json& one, Runs& runs) {
  const Probe straight{linear_of(one, 9)};
  Probe turned = straight;
  turned.pass = [](Session& s, const Source& from) {
    const auto x = s.network.input(from, s.dtype()).flip({0});
    s.engine->backward(s.network.loss(s.network.output(x), s.network.target(from).flip({0})));
  };
  return both_held(straight, turned, runs);
}

std::string odd_factor(const json& one, Runs& runs) {
  Probe probe{linear_of(one, 4)};
  probe.loss_factor = one.at("seed").get<int>() % 2 == 0 ? 3 : 1000;
  probe.roundings = 1;
  probe.pass = [factor = probe.loss_factor](Session& s, const Source& from) {
    s.engine->backward(s.loss(from) * factor);
  };
  return held(probe, runs);
}

std::string two_threads(const json& one, Runs& runs) {
  const Probe alone{linear_of(one, 300)};
  Probe two = alone;
  two.pass = [](Session& s, const Source& from) {
    at::set_num_threads(2);
    s.engine->backward(s.loss(from));
    at::set_num_threads(1);
  };
  return both_held(alone, two, runs);
}

std::string rows_alone(const json& one, Runs& runs) {
  Probe rows{linear_of(one, 3)};
  rows.passes = 3;
  rows.roundings = 3;
  rows.pass = [](Session& s, const Source& from) {
    for (int64_t row = 0; row < 3; ++row) s.engine->backward(part_of_loss(s, from, row, row + 1));
  };
  return both_held(Probe{linear_of(one, 3)}, rows, runs);
}

}  // namespace

std::vector<Relation> bounded_relations() {
  const auto wide = [](const json& one) { return !is_fp16(one); };
  return {
      {17,
       "a full batch and its micro-batches agree",
       Class::Bounded,
       wide,
       [](const json& one, Runs& runs) { return parts(one, runs, 8, false); },
       {"second pass lost"}},
      {18,
       "the order of the samples matters by roundings only",
       Class::Bounded,
       wide,
       turned_samples,
       {"averaged_twice"}},
      {19,
       "a sum of losses and its passes agree",
       Class::Bounded,
       wide,
       [](const json& one, Runs& runs) { return parts(one, runs, 5, true); },
       {"averaged_twice"}},
      {20,
       "a loss times 3 or 1000 has that many times the gradient",
       Class::Bounded,
       wide,
       odd_factor,
       {"saturated"}},
      {21, "one thread and two agree", Class::Bounded, wide, two_threads, {"averaged_twice"}},
      {22,
       "a row alone and in its batch agree",
       Class::Bounded,
       wide,
       rows_alone,
       {"second pass lost"}},
      {42,
       "sums in 16 bits and in 32 agree",
       Class::Bounded,
       [](const json& one) { return one.at("dtype") == kBf16; },
       [](const json& one, Runs& runs) {
         return both_held(Probe{linear_of(changed(one, "wide_sums", true), 2)},
                          Probe{linear_of(changed(one, "wide_sums", false), 2)}, runs);
       },
       {"averaged_twice"}},
      {43,
       "the backend's own order agrees with the documented one",
       Class::Bounded,
       [](const json& one) { return world_of(one) > 2 && one.at("dtype") == kFp32; },
       [](const json& one, Runs& runs) {
         return both_held(Probe{linear_of(one, 2)},
                          Probe{linear_of(changed(one, "native", true), 2)}, runs);
       },
       {"averaged_twice"}},
  };
}

}  // namespace equigrad::property_tests::relations
