// Drawn: numbers for the kernels' cases, by the seed of a place, and their comparison bit for bit.
//
// Invariants: what is drawn depends on the draws alone. Two NaNs are the same.
// Units: exponents are of two: a number's is floor(log2 |x|).
// Errors: none.
// Depends on: play.hpp, engine/kernels/element.hpp, engine/kernels/convert.hpp.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "conformance/contract/players/contract_spec.hpp"
#include "conformance/contract/players/play.hpp"
#include "engine/kernels/convert.hpp"
#include "engine/kernels/element.hpp"

namespace equigrad::conformance::contract {

using kernels::Element;
using Draws = std::mt19937_64;
using Floats = std::vector<float>;

inline constexpr float kInfinite = std::numeric_limits<float>::infinity();
inline constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kLargest = std::numeric_limits<float>::max();
inline constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

// A number format by its definition.
struct Format {
  Element element;
  std::string name;
  int fraction_bits, exponent_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  int last_exponent() const { return (1 << exponent_bits) - 1; }
};
const std::array<Format, 3>& formats();

// Those that this processor has.
std::vector<kernels::InstructionSet> instruction_sets();

void check_same(Play& play, const std::string& what, const Floats& got, const Floats& want);

// Numbers in their own format, and the same in fp32.
struct Kept {
  std::vector<uint16_t> narrow;
  Floats wide;
  Element element;
  Kept(const Floats& values, Element type);
  int64_t size() const { return static_cast<int64_t>(wide.size()); }
  const void* at(int64_t i) const;
  void* to(int64_t i) { return const_cast<void*>(at(i)); }
  Floats read() const;  // what is in memory now
};

// Of either sign, with an exponent from `low` to `high`; now and then zero.
float drawn(Draws& draws, int low, int high);
Floats drawn_all(Draws& draws, int64_t numel, int low, int high);

inline std::size_t place(int64_t i) { return static_cast<std::size_t>(i); }

// Terms of sums, [count, n].
struct Rows {
  Kept terms;
  int count;
  int64_t n;
};

// Every column has its own exponent, and terms of up to `spread` less; of every third the first two
// cancel each other.
Rows drawn_rows(Draws& draws, const Format& format, int count, int64_t n, int spread);

// Torch's number of threads while this lives.
class Threads {
 public:
  explicit Threads(int threads);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace equigrad::conformance::contract
