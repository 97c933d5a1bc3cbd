#include "conformance/faults/mutators.hpp"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

namespace equigrad::conformance::faults {
namespace {

using Values = at::Tensor;

// Changes one element of a copy; `place` from 0 to 1.
Values with_element(const Values& values, double place,
                    const std::function<void(const Values& element)>& change) {
  auto other = values.clone();
  if (values.numel() == 0) return other;
  const auto index = static_cast<int64_t>(place * static_cast<double>(values.numel() - 1));
  change(other.view(-1).narrow(0, index, 1));
  return other;
}

// As bits: the lowest of the significand, the highest of the exponent but one.
void flip(const Values& element, int bit_of_fp32) {
  const bool is_wide = element.element_size() == 4;
  const auto bits = element.view(is_wide ? at::kInt : at::kShort);
  bits.bitwise_xor_(1 << (is_wide ? bit_of_fp32 : bit_of_fp32 / 2));
}

Values swapped_halves(const Values& values) {
  const auto flat = values.reshape(-1);
  const int64_t half = flat.numel() / 2;
  return at::cat({flat.slice(0, half), flat.slice(0, 0, half)}).view(values.sizes());
}

std::vector<Mutator> make_mutators() {
  const auto of_values = [](std::function<Values(const Values&)> change) {
    return [change](const Values& values, const Values&) { return change(values); };
  };
  const auto zero = [](const Values& element) { element.zero_(); };
  return {
      {"zeroed", "all zero", of_values([](const Values& v) { return at::zeros_like(v); })},
      {"doubled", "twice as large", of_values([](const Values& v) { return v * 2; })},
      {"halved", "half as large", of_values([](const Values& v) { return v * 0.5; })},
      {"negated", "negative", of_values([](const Values& v) { return -v; })},
      {"grown", "larger by 2^-6 of itself",
       of_values([](const Values& v) { return v + v * 0.015625; })},
      {"rolled", "moved on by one element",
       of_values([](const Values& v) { return at::roll(v.reshape(-1), 1).view(v.sizes()); })},
      {"reversed", "in reverse order",
       of_values([](const Values& v) { return v.reshape(-1).flip(0).view(v.sizes()); })},
      {"halves_swapped", "second half first", of_values(swapped_halves)},
      {"rounded", "rounded to bf16",
       of_values([](const Values& v) { return v.to(at::kBFloat16).to(v.scalar_type()); })},
      {"first_lost", "without its first element",
       of_values([zero](const Values& v) { return with_element(v, 0, zero); })},
      {"last_lost", "without its last element",
       of_values([zero](const Values& v) { return with_element(v, 1, zero); })},
      {"low_bit", "one low bit of one element is wrong", of_values([](const Values& v) {
         return with_element(v, 0.4, [](const Values& element) { flip(element, 0); });
       })},
      {"high_bit", "one bit of one exponent is wrong", of_values([](const Values& v) {
         return with_element(v, 0.4, [](const Values& element) { flip(element, 26); });
       })},
      {"not_a_number", "NaN in one element", of_values([](const Values& v) {
         return with_element(v, 0.4, [](const Values& element) { element.fill_(std::nan("")); });
       })},
      {"stale", "what was there the time before",
       [](const Values& v, const Values& before) {
         return before.defined() ? before.view(v.sizes()) : v;
       }},
      {"added_to_stale", "added to what was there the time before",
       [](const Values& v, const Values& before) {
         return before.defined() ? v + before.view(v.sizes()) : v;
       }},
  };
}

}  // namespace

const std::vector<Mutator>& mutators() {
  static const std::vector<Mutator> all = make_mutators();
  return all;
}

const std::vector<ScalarMutator>& scalar_mutators() {
  static const std::vector<ScalarMutator> all = {
      {"doubled", "twice as large", [](double x) { return 2 * x; }},
      {"halved", "half as large", [](double x) { return x / 2; }},
      {"negated", "negative", [](double x) { return -x; }},
      {"zeroed", "zero", [](double) { return 0.0; }},
      {"next", "the next fp32 number",
       [](double x) {
         return static_cast<double>(
             std::nextafter(static_cast<float>(x), std::numeric_limits<float>::infinity()));
       }},
  };
  return all;
}

}  // namespace equigrad::conformance::faults
