#include "conformance/contract/parts/drawn.hpp"

#include <ATen/Parallel.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace equigrad::conformance::contract {
namespace {

bool same(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace

const std::array<Format, 3>& formats() {
  static const std::array<Format, 3> kFormats = {{{Element::Fp32, "fp32", 23, 8},
                                                  {Element::Bf16, "bf16", 7, 8},
                                                  {Element::Fp16, "fp16", 10, 5}}};
  return kFormats;
}

std::vector<kernels::InstructionSet> instruction_sets() {
  using kernels::InstructionSet;
  std::vector<InstructionSet> all;
  for (const auto set : {InstructionSet::Base, InstructionSet::Avx2, InstructionSet::Avx512})
    if (set <= kernels::instruction_set()) all.push_back(set);
  return all;
}

void check_same(Play& play, const std::string& what, const Floats& got, const Floats& want) {
  for (std::size_t i = 0; i < want.size() && i < got.size(); ++i)
    if (!same(got[i], want[i]))
      return play.check(what + ": element " + std::to_string(i) + " of " +
                            std::to_string(want.size()) + " is " + std::to_string(got[i]) +
                            ", right is " + std::to_string(want[i]),
                        false);
  play.check(what, got.size() == want.size());
}

Kept::Kept(const Floats& values, Element type)
    : narrow(type == Element::Fp32 ? 0 : values.size()), wide(values), element(type) {
  if (type == Element::Fp32) return;
  kernels::narrow(values.data(), size(), narrow.data(), type);
  wide = read();
}

const void* Kept::at(int64_t i) const {
  return element == Element::Fp32 ? static_cast<const void*>(wide.data() + i)
                                  : static_cast<const void*>(narrow.data() + i);
}

Floats Kept::read() const {
  Floats values(wide.size());
  kernels::widen(at(0), element, size(), values.data());
  return values;
}

float drawn(Draws& draws, int low, int high) {
  const auto bits = draws();
  if (bits % 29 == 0) return bits % 2 == 0 ? 0.0F : -0.0F;
  const int exponent = low + static_cast<int>((bits >> 32) % static_cast<unsigned>(high - low + 1));
  const auto whole = static_cast<float>((bits & 0x7FFFFF) | 0x800000);
  return std::ldexp((bits >> 31 & 1) != 0 ? -whole : whole, exponent - 23);
}

Floats drawn_all(Draws& draws, int64_t numel, int low, int high) {
  Floats all(static_cast<std::size_t>(numel));
  for (auto& one : all) one = drawn(draws, low, high);
  return all;
}

Rows drawn_rows(Draws& draws, const Format& format, int count, int64_t n, int spread) {
  const bool is_fp16 = format.element == Element::Fp16;
  const int low = is_fp16 ? -24 : -149, high = is_fp16 ? 14 : 127;
  Floats terms(place(count * n));
  for (int64_t i = 0; i < n; ++i) {
    const int top = low + static_cast<int>(draws() % static_cast<unsigned>(high - low + 1));
    for (int row = 0; row < count; ++row)
      terms[place(row * n + i)] = drawn(draws, std::max(low, top - spread), top);
    if (count > 2 && i % 3 == 0) terms[place(n + i)] = -terms[place(i)];
  }
  return {Kept(terms, format.element), count, n};
}

Threads::Threads(int threads) : before_(at::get_num_threads()) { at::set_num_threads(threads); }
Threads::~Threads() { at::set_num_threads(before_); }

}  // namespace equigrad::conformance::contract
