// 16. Its parts: kernels, each against arithmetic that knows nothing of it.
#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "conformance/contract/parts/drawn.hpp"
#include "conformance/contract/parts/parts.hpp"
#include "conformance/contract/programs/beside.hpp"
#include "engine/kernels/convert.hpp"
#include "engine/kernels/copy_rows.hpp"
#include "engine/kernels/data_types.hpp"
#include "engine/kernels/element_of.hpp"
#include "engine/kernels/square_root.hpp"

namespace equigrad::conformance::contract {
namespace {

using kernels::InstructionSet;

double value_of(const Format& format, unsigned bits) {
  const unsigned fraction = bits & ((1U << format.fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> format.fraction_bits) & format.last_exponent();
  const double sign = (bits >> 15) != 0 ? -1.0 : 1.0;
  if (exponent == format.last_exponent())
    return fraction != 0 ? kNotANumber : sign * double{kInfinite};
  const double part = std::ldexp(fraction, -format.fraction_bits) + (exponent == 0 ? 0 : 1);
  return sign * std::ldexp(part, std::max(exponent, 1) - format.bias());
}

// To the nearest multiple of the last place, by the processor's rounding.
float rounded_to(const Format& format, float value) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), 1 - format.bias());
  const int place = exponent - format.fraction_bits;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(double{value}, -place)), place);
  return std::fabs(rounded) >= std::ldexp(1.0, format.bias() + 1) ? std::copysign(kInfinite, value)
                                                                  : static_cast<float>(rounded);
}

void check_widening(Play& play, const Format& format, InstructionSet set) {
  std::vector<uint16_t> patterns(1 << 16);
  for (std::size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  Floats got(patterns.size()), want(patterns.size());
  kernels::widen(patterns.data(), format.element, int64_t{1} << 16, got.data(), set);
  for (std::size_t i = 0; i < want.size(); ++i)
    want[i] = static_cast<float>(value_of(format, static_cast<unsigned>(i)));
  check_same(play, format.name + " widened is the number that its bits say", got, want);
  bool keeps = true;
  for (std::size_t i = 0; i < want.size(); ++i)
    keeps = keeps && std::signbit(got[i]) == ((i >> 15) != 0);
  play.check(format.name + " keeps its sign when it is widened, a NaN too", keeps);
}

// Halfway between neighbours, next to it on both sides, and the numbers themselves.
Floats to_be_narrowed(const Format& format, Draws& draws) {
  Floats all = {kNotANumber,
                -kNotANumber,
                kInfinite,
                -kInfinite,
                kLargest,
                -kLargest,
                kSmallest,
                -kSmallest,
                0.0F,
                -0.0F,
                std::bit_cast<float>(0x7F800001U)};  // the NaN next to infinity
  const auto infinity = static_cast<unsigned>(format.last_exponent()) << format.fraction_bits;
  const unsigned normal = 1U << format.fraction_bits;
  const auto add = [&](unsigned bits) {
    const auto sign = draws() % 2 == 0 ? 1.0F : -1.0F;
    const auto here = static_cast<float>(value_of(format, bits));
    const double next =
        bits + 1 == infinity ? std::ldexp(1.0, format.bias() + 1) : value_of(format, bits + 1);
    const auto middle = static_cast<float>(here / 2 + next / 2);
    for (const float one : {here, middle, std::nextafter(middle, 0.0F),
                            std::nextafter(middle, kInfinite), std::nextafter(here, kInfinite)})
      all.push_back(sign * one);
  };
  for (const unsigned limit : {3U, normal, infinity - 3})
    for (unsigned bits = limit - 3; bits < limit + 3; ++bits) add(bits);
  for (auto bits = static_cast<unsigned>(draws() % 23); bits < infinity; bits += 23) add(bits);
  return all;
}

void check_narrowing(Play& play, const Format& format, const Floats& values, InstructionSet set) {
  const auto numel = static_cast<int64_t>(values.size());
  std::vector<uint16_t> narrow(values.size());
  Floats got(values.size()), want(values.size());
  kernels::narrow(values.data(), numel, narrow.data(), format.element, set);
  for (std::size_t i = 0; i < values.size(); ++i) {
    got[i] = static_cast<float>(value_of(format, narrow[i]));
    want[i] = rounded_to(format, values[i]);
  }
  if (play.fault()) want.back() = -want.back();
  check_same(play, format.name + " is the nearest number, to even", got, want);
  const bool is_bf16 = format.element == Element::Bf16;
  play.check(format.name + " keeps of a NaN what its page says",
             narrow[0] == (is_bf16 ? 0x7FC0 : 0x7E00) && narrow[1] == (is_bf16 ? 0x7FC0 : 0xFE00));
}

// Nothing is written past the last element, whatever the vectors' width.
void check_short_arrays(Play& play, Draws& draws, InstructionSet set) {
  constexpr float kUntouched = -77.0F;  // a number of every format
  for (const auto& format : formats())
    for (const int64_t numel : {0, 1, 7, 31, 33, 65}) {
      const Kept from(drawn_all(draws, numel, -10, 10), format.element);
      Floats to(static_cast<std::size_t>(numel) + 9, kUntouched), want = to;
      std::copy(from.wide.begin(), from.wide.end(), want.begin());
      kernels::widen(from.at(0), format.element, numel, to.data(), set);
      check_same(play, format.name + " widens as many as it is told", to, want);
      Kept back(Floats(want.size(), kUntouched), format.element);
      kernels::narrow(to.data(), numel, back.to(0), format.element, set);
      check_same(play, format.name + " narrows as many as it is told", back.read(), want);
    }
}

void check_roots(Play& play, Draws& draws) {
  auto values = drawn_all(draws, 999, -149, 127);
  for (auto& value : values) value = std::fabs(value);
  for (const float one : {-0.0F, kInfinite, kSmallest, kLargest, -1.0F, kNotANumber})
    values.push_back(one);
  Floats want;  // of a double's 53 bits a second rounding is none
  for (const float value : values)
    want.push_back(static_cast<float>(std::sqrt(static_cast<double>(value))));
  kernels::square_root(values.data(), static_cast<int64_t>(values.size()), values.data());
  check_same(play, "square roots are rounded once", values, want);
}

void check_types(Play& play) {
  struct Row {
    at::ScalarType torch;
    DataType data;
    Element element;
    int64_t bytes;
  };
  for (const auto& row : {Row{at::kFloat, DataType::Fp32, Element::Fp32, 4},
                          Row{at::kBFloat16, DataType::Bf16, Element::Bf16, 2},
                          Row{at::kHalf, DataType::Fp16, Element::Fp16, 2}}) {
    play.check("the types of torch, of the configuration and of the kernels are one",
               torch_dtype(row.data) == row.torch &&
                   kernels::element_of(row.torch, "here") == row.element &&
                   kernels::element_bytes(row.element) == row.bytes);
    PrecisionConfig precision;
    precision.autocast.dtype = row.data;
    const CommunicationDtypes plain{}, lower{std::nullopt, row.torch}, all{row.torch, row.torch};
    play.check("without autocast all is sent as it is",
               weight_communication_dtypes(precision) == plain &&
                   gradient_communication_dtypes(precision) == plain);
    precision.autocast.enabled = true;
    play.check("what is safe in fewer bits is sent in them",
               weight_communication_dtypes(precision) == lower &&
                   gradient_communication_dtypes(precision) == lower);
    precision.communication = row.data;
    play.check("a communication type is that of all gradients, and of no weight",
               weight_communication_dtypes(precision) == lower &&
                   gradient_communication_dtypes(precision) == all);
  }
  play.refuse("[here] expected dtype Float, BFloat16 or Half, got Double",
              [] { kernels::element_of(at::kDouble, "here"); });
}

// Rows of 3 bytes, 5 apart, to 4 apart; the last one is short.
void check_rows(Play& play) {
  const std::string from = "abc..def..ghi..";
  const auto copied = [&](int64_t bytes) {
    std::string to(12, '-');
    kernels::copy_rows(to.data(), 4, from.data(), 5, 3, bytes);
    return to;
  };
  play.check("rows are copied, the last one in part",
             copied(8) == "abc-def-gh--" && copied(9) == "abc-def-ghi-" &&
                 copied(2) == "ab----------" && copied(0) == "------------");
}

// The best that the processor has, by the compiler's own question.
void check_instruction_set(Play& play) {
  auto best = InstructionSet::Base;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) best = InstructionSet::Avx2;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
    best = InstructionSet::Avx512;
#endif
  play.check("loops run on the best vectors that there are", kernels::instruction_set() == best);
}

void conversions(Play& play) {
  if (play.group()) {
    Draws draws(play.context().seed);
    for (const auto set : instruction_sets()) {
      for (const auto& format : {formats()[1], formats()[2]}) {
        check_widening(play, format, set);
        check_narrowing(play, format, to_be_narrowed(format, draws), set);
      }
      check_short_arrays(play, draws, set);
    }
    check_instruction_set(play);
    check_roots(play, draws);
    check_types(play);
    check_rows(play);
  }
  train_along(play);
}

}  // namespace

std::vector<Case> numbers() {
  return {of_part("conversions_round_once",
                  "numbers of 16 bits are widened exactly, and rounded to nearest even",
                  "another sign is expected", conversions)};
}

}  // namespace equigrad::conformance::contract
