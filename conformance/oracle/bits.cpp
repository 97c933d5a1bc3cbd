#include "conformance/oracle/bits.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <type_traits>

namespace equigrad::conformance::oracle {
namespace {

// A float's bits as an integer that grows with the value; both zeros give 0.
template <class Bits>
Bits ordered(Bits bits) {
  using Unsigned = std::make_unsigned_t<Bits>;
  constexpr auto kSign = static_cast<Unsigned>(Unsigned{1} << (8 * sizeof(Bits) - 1));
  const auto raw = static_cast<Unsigned>(bits);
  if ((raw & kSign) == 0) return bits;
  return static_cast<Bits>(-static_cast<Bits>(raw & static_cast<Unsigned>(~kSign)));
}

template <class Float, class Bits>
double distance(Float a, Float b) {
  if (std::isnan(static_cast<double>(a)) || std::isnan(static_cast<double>(b)))
    return std::numeric_limits<double>::infinity();
  Bits a_bits, b_bits;
  std::memcpy(&a_bits, &a, sizeof(Bits));
  std::memcpy(&b_bits, &b, sizeof(Bits));
  // Subtracted as integers: two doubles may be 2^64 - 2 apart, or 1.
  const auto x = static_cast<int64_t>(ordered(a_bits)), y = static_cast<int64_t>(ordered(b_bits));
  return static_cast<double>(x > y ? static_cast<uint64_t>(x) - static_cast<uint64_t>(y)
                                   : static_cast<uint64_t>(y) - static_cast<uint64_t>(x));
}

// Keeps the worst element: not finite before finite, then by distance.
struct Worst {
  BitsReport* report;
  bool is_not_finite = false;

  void see(int64_t index, double got, double want, double ulp) {
    ++report->differing;
    const bool not_finite = !std::isfinite(got) || !std::isfinite(want);
    if (not_finite) ++report->not_finite;
    const bool worse = not_finite == is_not_finite ? ulp > report->worst_ulp : not_finite;
    if (report->worst_index >= 0 && !worse) return;
    is_not_finite = not_finite;
    report->worst_index = index;
    report->worst_got = got;
    report->worst_want = want;
    report->worst_ulp = ulp;
  }
};

template <class Float, class Bits>
void compare_floats(const at::Tensor& got, const at::Tensor& want, BitsReport& report) {
  const auto* a = static_cast<const Bits*>(got.const_data_ptr());
  const auto* b = static_cast<const Bits*>(want.const_data_ptr());
  constexpr auto kMagnitude = std::numeric_limits<Bits>::max();  // all bits but the sign
  Worst worst{&report};
  for (int64_t i = 0; i < report.compared; ++i) {
    if (a[i] == b[i] || ((a[i] | b[i]) & kMagnitude) == 0) continue;
    Float x, y;
    std::memcpy(&x, &a[i], sizeof(Bits));
    std::memcpy(&y, &b[i], sizeof(Bits));
    worst.see(i, static_cast<double>(x), static_cast<double>(y), distance<Float, Bits>(x, y));
  }
}

template <class Integer>
void compare_integers(const at::Tensor& got, const at::Tensor& want, BitsReport& report) {
  const auto* a = static_cast<const Integer*>(got.const_data_ptr());
  const auto* b = static_cast<const Integer*>(want.const_data_ptr());
  Worst worst{&report};
  for (int64_t i = 0; i < report.compared; ++i) {
    if (a[i] == b[i]) continue;
    const auto x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    worst.see(i, x, y, std::max(1.0, std::fabs(x - y)));  // distinct int64 may share a double
  }
}

std::string sizes_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

}  // namespace

BitsReport compare(const at::Tensor& got, const at::Tensor& want) {
  BitsReport report;
  if (got.defined() != want.defined()) {
    report.mismatch = got.defined() ? "got a tensor, want none" : "got no tensor, want one";
    return report;
  }
  if (!got.defined()) return report;
  if (got.scalar_type() != want.scalar_type()) {
    report.mismatch = std::string("dtype: got ") + c10::toString(got.scalar_type()) + ", want " +
                      c10::toString(want.scalar_type());
    return report;
  }
  if (got.sizes() != want.sizes()) {
    report.mismatch = "shape: got " + sizes_text(got) + ", want " + sizes_text(want);
    return report;
  }
  if (!got.device().is_cpu() || !want.device().is_cpu()) {
    throw std::runtime_error("[oracle.compare] expected tensors on the CPU. Copy them first.");
  }
  const at::Tensor a = got.contiguous(), b = want.contiguous();
  report.compared = a.numel();
  if (report.compared == 0) return report;
  if (std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0) return report;
  switch (a.scalar_type()) {
    case at::kFloat:
      compare_floats<float, int32_t>(a, b, report);
      break;
    case at::kDouble:
      compare_floats<double, int64_t>(a, b, report);
      break;
    case at::kBFloat16:
      compare_floats<at::BFloat16, int16_t>(a, b, report);
      break;
    case at::kHalf:
      compare_floats<at::Half, int16_t>(a, b, report);
      break;
    case at::kLong:
      compare_integers<int64_t>(a, b, report);
      break;
    case at::kInt:
      compare_integers<int32_t>(a, b, report);
      break;
    case at::kByte:
      compare_integers<uint8_t>(a, b, report);
      break;
    case at::kBool:
      compare_integers<bool>(a, b, report);
      break;
    default:
      throw std::runtime_error(std::string("[oracle.compare] expected a float or integer dtype, "
                                           "got ") +
                               c10::toString(a.scalar_type()) + ".");
  }
  return report;
}

void merge(BitsReport& into, const BitsReport& more) {
  if (into.mismatch.empty()) into.mismatch = more.mismatch;
  const bool into_not_finite = !std::isfinite(into.worst_got) || !std::isfinite(into.worst_want);
  const bool more_not_finite = !std::isfinite(more.worst_got) || !std::isfinite(more.worst_want);
  const bool worse =
      into_not_finite == more_not_finite ? more.worst_ulp > into.worst_ulp : more_not_finite;
  into.compared += more.compared;
  into.differing += more.differing;
  into.not_finite += more.not_finite;
  if (more.worst_index < 0 || (into.worst_index >= 0 && !worse)) return;
  into.worst_index = more.worst_index;
  into.worst_got = more.worst_got;
  into.worst_want = more.worst_want;
  into.worst_ulp = more.worst_ulp;
}

std::string describe(const BitsReport& report) {
  if (!report.mismatch.empty()) return report.mismatch;
  std::ostringstream text;
  if (report.equal()) {
    text << "equal (" << report.compared << " elements)";
    return text.str();
  }
  text.precision(17);
  text << report.differing << " of " << report.compared << " elements differ";
  if (report.not_finite > 0) text << " (" << report.not_finite << " not finite)";
  text << ", worst [flat " << report.worst_index << "] got " << report.worst_got << " want "
       << report.worst_want << " (" << report.worst_ulp << " ulp)";
  return text.str();
}

double ulp_distance(double a, double b, at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return distance<float, int32_t>(static_cast<float>(a), static_cast<float>(b));
    case at::kDouble:
      return distance<double, int64_t>(a, b);
    case at::kBFloat16:
      return distance<at::BFloat16, int16_t>(at::BFloat16(static_cast<float>(a)),
                                             at::BFloat16(static_cast<float>(b)));
    case at::kHalf:
      return distance<at::Half, int16_t>(at::Half(static_cast<float>(a)),
                                         at::Half(static_cast<float>(b)));
    default:
      throw std::runtime_error("[oracle.ulp_distance] expected a float dtype.");
  }
}

double ulp_of(double value, at::ScalarType dtype) {
  int digits = 0, min_exponent = 0, max_exponent = 0;  // value = m * 2^e, 0.5 <= m < 1
  switch (dtype) {
    case at::kFloat:
      digits = 24, min_exponent = -125, max_exponent = 128;
      break;
    case at::kDouble:
      digits = 53, min_exponent = -1021, max_exponent = 1024;
      break;
    case at::kBFloat16:
      digits = 8, min_exponent = -125, max_exponent = 128;
      break;
    case at::kHalf:
      digits = 11, min_exponent = -13, max_exponent = 16;
      break;
    default:
      throw std::runtime_error("[oracle.ulp_of] expected a float dtype.");
  }
  int exponent = max_exponent;
  if (value == 0)
    exponent = min_exponent;
  else if (std::isfinite(value))
    std::frexp(value, &exponent);
  return std::ldexp(1.0, std::min(std::max(exponent, min_exponent), max_exponent) - digits);
}

}  // namespace equigrad::conformance::oracle
