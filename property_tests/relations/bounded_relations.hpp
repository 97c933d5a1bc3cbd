// Relations 17 to 22, 42 and 43: where orders of additions differ, by no more than a bound that is
// computed.
//
// Invariants: both sides of a relation are held to the bound around the same exact result.
// Shapes, units, errors: those of probe.hpp.   Depends on: probe.hpp.
#pragma once

#include <ATen/Parallel.h>

#include "property_tests/relations/probe.hpp"

namespace equigrad::property_tests::relations {

// Rows [begin, end) of a micro-batch.
inline at::Tensor part_of_loss(Session& s, const Source& from, int64_t begin, int64_t end) {
  const auto x = s.network.input(from, s.dtype()).slice(0, begin, end);
  return s.network.loss(s.network.output(x), s.network.target(from).slice(0, begin, end));
}

inline std::string parts(const json& one, Runs& runs, int rows, bool joined) {
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

inline std::string turned_samples(const json& one, Runs& runs) {
  const Probe straight{linear_of(one, 9)};
  Probe turned = straight;
  turned.pass = [](Session& s, const Source& from) {
    const auto x = s.network.input(from, s.dtype()).flip({0});
    s.engine->backward(s.network.loss(s.network.output(x), s.network.target(from).flip({0})));
  };
  return both_held(straight, turned, runs);
}

inline std::string odd_factor(const json& one, Runs& runs) {
  Probe probe{linear_of(one, 4)};
  probe.loss_factor = one.at("seed").get<int>() % 2 == 0 ? 3 : 1000;
  probe.roundings = 1;
  probe.pass = [factor = probe.loss_factor](Session& s, const Source& from) {
    s.engine->backward(s.loss(from) * factor);
  };
  return held(probe, runs);
}

inline std::string two_threads(const json& one, Runs& runs) {
  const Probe alone{linear_of(one, 300)};
  Probe two = alone;
  two.pass = [](Session& s, const Source& from) {
    at::set_num_threads(2);
    s.engine->backward(s.loss(from));
    at::set_num_threads(1);
  };
  return both_held(alone, two, runs);
}

inline std::string rows_alone(const json& one, Runs& runs) {
  Probe rows{linear_of(one, 3)};
  rows.passes = 3;
  rows.roundings = 3;
  rows.pass = [](Session& s, const Source& from) {
    for (int64_t row = 0; row < 3; ++row) s.engine->backward(part_of_loss(s, from, row, row + 1));
  };
  return both_held(Probe{linear_of(one, 3)}, rows, runs);
}

inline std::vector<Relation> bounded_relations() {
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
