#include "engine/checkpoint/convert.hpp"

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>

#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

template <class BitsType, int kExponentBitsOf, int kMantissaBitsOf>
struct Format {
  using Bits = BitsType;
  static constexpr int kMantissaBits = kMantissaBitsOf;
  static constexpr int kBias = (1 << (kExponentBitsOf - 1)) - 1;
  static constexpr std::uint64_t kInfinite = ((std::uint64_t{1} << kExponentBitsOf) - 1)
                                             << kMantissaBits;
  static constexpr std::uint64_t kMantissa = (std::uint64_t{1} << kMantissaBits) - 1;
  static constexpr int kSignBit = kExponentBitsOf + kMantissaBits;
};
using Half = Format<std::uint16_t, 5, 10>;
using Brain = Format<std::uint16_t, 8, 7>;
using Single = Format<std::uint32_t, 8, 23>;
using Double = Format<std::uint64_t, 11, 52>;

// The bits of the same number as a double, which has all numbers of the others.
template <class From>
std::uint64_t widen(std::uint64_t bits) {
  if constexpr (std::is_same_v<From, Double>) return bits;
  constexpr int kShift = Double::kMantissaBits - From::kMantissaBits;
  const std::uint64_t sign = bits >> From::kSignBit << Double::kSignBit;
  const std::uint64_t size = bits & (From::kInfinite | From::kMantissa);
  if (size >= From::kInfinite) return sign | Double::kInfinite | (size & From::kMantissa) << kShift;
  if (size > From::kMantissa) {
    constexpr auto kRebias = static_cast<std::uint64_t>(Double::kBias - From::kBias);
    return sign | ((size << kShift) + (kRebias << Double::kMantissaBits));
  }
  constexpr int kLeastExponent = 1 - From::kBias - From::kMantissaBits;  // of a subnormal's unit
  constexpr auto kUnit = static_cast<std::uint64_t>(Double::kBias + kLeastExponent)
                         << Double::kMantissaBits;
  const double value = static_cast<double>(size) * std::bit_cast<double>(kUnit);  // exact
  return sign | std::bit_cast<std::uint64_t>(value);
}

// The bits of the number of type `To` that is nearest to a double.
template <class To>
std::uint64_t narrow(std::uint64_t bits) {
  if constexpr (std::is_same_v<To, Double>) return bits;
  const std::uint64_t sign = bits >> Double::kSignBit << To::kSignBit;
  const std::uint64_t size = bits & (Double::kInfinite | Double::kMantissa);
  const std::uint64_t mantissa = bits & Double::kMantissa;
  int shift = Double::kMantissaBits - To::kMantissaBits;
  if (size > Double::kInfinite) {
    constexpr std::uint64_t kQuiet = std::uint64_t{1} << (To::kMantissaBits - 1);
    return sign | To::kInfinite | kQuiet | mantissa >> shift;
  }
  const int exponent = static_cast<int>(size >> Double::kMantissaBits) - Double::kBias + To::kBias;
  if (exponent <= 0) shift += 1 - exponent;
  if (shift > Double::kMantissaBits + 1) return sign;  // less than half of the least
  const std::uint64_t whole = mantissa | std::uint64_t{1} << Double::kMantissaBits;
  const std::uint64_t half = std::uint64_t{1} << (shift - 1);
  const std::uint64_t rest = whole & (2 * half - 1);
  std::uint64_t rounded = whole >> shift;
  rounded += rest > half || (rest == half && rounded % 2 == 1) ? 1 : 0;
  // `rounded` has the leading bit, which counts as one more of the exponent; so does a carry.
  if (exponent > 0) rounded += static_cast<std::uint64_t>(exponent - 1) << To::kMantissaBits;
  return sign | (rounded < To::kInfinite ? rounded : To::kInfinite);
}

template <class From, class To>
void convert_all(const std::byte* from, std::byte* to, std::int64_t numel) {
  for (std::int64_t i = 0; i < numel; ++i) {
    typename From::Bits in;
    std::memcpy(&in, from + i * std::int64_t{sizeof in}, sizeof in);
    const auto out = static_cast<typename To::Bits>(narrow<To>(widen<From>(in)));
    std::memcpy(to + i * std::int64_t{sizeof out}, &out, sizeof out);
  }
}

template <class Use>
void with_format(ElementType type, const Use& use) {
  switch (type) {
    case ElementType::F16:
      return use(Half{});
    case ElementType::BF16:
      return use(Brain{});
    case ElementType::F32:
      return use(Single{});
    case ElementType::F64:
      return use(Double{});
    default:
      throw Error("checkpoint", "expected a floating-point type to convert, got " +
                                    std::string(to_text(type)) + ". Keep it as it is.");
  }
}

}  // namespace

bool is_floating_point(ElementType type) {
  return type == ElementType::F16 || type == ElementType::BF16 || type == ElementType::F32 ||
         type == ElementType::F64;
}

void convert(const void* from, ElementType from_type, void* to, ElementType to_type,
             std::int64_t numel) {
  with_format(from_type, [&]<class From>(From) {
    with_format(to_type, [&]<class To>(To) {
      if (from_type == to_type) {
        if (numel > 0)
          std::memcpy(to, from, static_cast<std::size_t>(numel) * sizeof(typename To::Bits));
      } else {
        convert_all<From, To>(static_cast<const std::byte*>(from), static_cast<std::byte*>(to),
                              numel);
      }
    });
  });
}

}  // namespace equigrad::checkpoint
