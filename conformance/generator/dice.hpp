// Dice: random choices that are the same wherever they are thrown: the standard library's
// distributions differ from one library to the next.
//
// Invariants: equal seeds and indices give equal throws. log_uniform gives every order of magnitude
// the same chance.
// Units: none.   Errors: none; an empty list or a count below 1 is undefined.
// Depends on: the C++ standard library only.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

namespace equigrad::conformance {

class Dice {
 public:
  Dice(uint64_t seed, uint64_t index) : bits_(seed * 0x9e3779b97f4a7c15u + index) {}

  int64_t below(int64_t count) {
    return static_cast<int64_t>(bits_() % static_cast<uint64_t>(count));
  }
  int64_t between(int64_t least, int64_t most) { return least + below(most - least + 1); }
  bool coin() { return below(2) == 1; }
  bool one_in(int64_t count) { return below(count) == 0; }
  template <class T>
  T pick(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int64_t>(values.size())))];
  }
  int64_t log_uniform(int64_t least, int64_t most) {
    const double from = std::log2(static_cast<double>(least));
    const double to = std::log2(static_cast<double>(most) + 1);
    const double part = static_cast<double>(below(int64_t{1} << 30)) / static_cast<double>(1 << 30);
    const auto drawn = static_cast<int64_t>(std::exp2(from + (to - from) * part));
    return drawn < least ? least : drawn > most ? most : drawn;
  }

 private:
  std::mt19937_64 bits_;
};

}  // namespace equigrad::conformance
