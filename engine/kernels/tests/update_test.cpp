// The loops of the update have the bits of the formulas written for one number, on every
// instruction set, in every storage, at every length, for every kind of number.
#include "engine/kernels/update.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "conformance/testing/numbers.hpp"

namespace equigrad::kernels {
namespace {

using conformance::kernels::instruction_sets;
using conformance::kernels::kElements;
using conformance::kernels::name_of;
using conformance::kernels::Numbers;

// Parameter, states, gradient.
struct Operands {
  std::vector<Numbers> numbers;

  Operands(const std::vector<Element>& types, int64_t numel, uint64_t seed) {
    for (std::size_t i = 0; i < types.size(); ++i) {
      numbers.push_back(Numbers::wild(types[i], numel, 10 * seed + i));
    }
  }
};

std::vector<AdamFactors> adam_settings() {
  AdamFactors factors{};
  factors.keep = 1.0F;
  factors.decay = 0.07F;
  factors.beta1 = 0.9F, factors.fresh1 = 0.1F;
  factors.beta2 = 0.999F, factors.fresh2 = 0.001F;
  factors.root = 4.32F, factors.eps = 1e-8F, factors.rate = 0.0123F;
  auto decoupled = factors, coupled = factors;
  decoupled.keep = 0.99F;
  coupled.decays = true;
  return {factors, decoupled, coupled};
}

std::vector<SgdFactors> sgd_settings() {
  std::vector<SgdFactors> all;
  for (const bool decays : {false, true}) {
    for (const bool first : {false, true}) {
      for (const bool nesterov : {false, true}) {
        all.push_back({decays, 0.07F, first, 0.9F, 0.7F, nesterov, 0.0123F});
      }
    }
  }
  return all;
}

// One number at a time.
void plain_adam(const AdamFactors& f, std::vector<Numbers>& x) {
  for (int64_t i = 0; i < x[0].numel(); ++i) {
    float p = x[0][i], g = x[3][i];
    if (f.decays) g = g + p * f.decay;
    p = p * f.keep;
    const float m = x[1][i] * f.beta1 + g * f.fresh1;
    const float v = x[2][i] * f.beta2 + (g * g) * f.fresh2;
    p = p - (m / (std::sqrt(v) * f.root + f.eps)) * f.rate;
    x[0].set(i, p);
    x[1].set(i, m);
    x[2].set(i, v);
  }
}

void plain_sgd(const SgdFactors& f, bool momentum, std::vector<Numbers>& x) {
  const auto& gradient = x.back();
  for (int64_t i = 0; i < gradient.numel(); ++i) {
    float d = gradient[i];
    if (f.decays) d = d + x[0][i] * f.decay;
    if (momentum) {
      const float b = f.first ? d : x[1][i] * f.momentum + d * f.fresh;
      d = f.nesterov ? d + b * f.momentum : b;
      x[1].set(i, b);
    }
    x[0].set(i, x[0][i] - d * f.rate);
  }
}

// Calls `kernel` with the operands as they lie in memory, and takes what it left there.
template <class Kernel>
std::vector<Numbers> by_the_kernel(const std::vector<Numbers>& operands, Kernel kernel) {
  std::vector<std::vector<char>> memories;
  std::vector<Stored> arrays;
  for (const auto& numbers : operands) memories.push_back(numbers.packed());
  for (std::size_t i = 0; i < memories.size(); ++i) {
    arrays.push_back({memories[i].data() + element_bytes(operands[i].type()), operands[i].type()});
  }
  kernel(arrays, operands[0].numel());
  std::vector<Numbers> left;
  for (std::size_t i = 0; i < memories.size(); ++i) {
    left.push_back(Numbers::unpacked(operands[i].type(), memories[i]));
  }
  return left;
}

std::string difference(const std::vector<Numbers>& got, const std::vector<Numbers>& want) {
  for (std::size_t i = 0; i < want.size(); ++i) {
    const int64_t at = got[i].first_difference(want[i]);
    if (at < 0) continue;
    return "operand " + std::to_string(i) + " (" + name_of(want[i].type()) + ") of " +
           std::to_string(want[i].numel()) + " at " + std::to_string(at) + ": got " +
           std::to_string(got[i][at]) + ", want " + std::to_string(want[i][at]);
  }
  return "";
}

std::vector<int64_t> lengths() {
  std::vector<int64_t> all{1023, 1024, 1025, 2113};  // a block is 1024 elements
  for (int64_t numel = 0; numel <= 130; ++numel) all.push_back(numel);
  return all;
}

// Masters, states and gradient in their own types.
std::vector<std::vector<Element>> storages(std::size_t states) {
  std::vector<std::vector<Element>> all;
  for (const auto master : kElements) {
    for (const auto state : kElements) {
      for (const auto gradient : kElements) {
        all.push_back({master});
        all.back().insert(all.back().end(), states, state);
        all.back().push_back(gradient);
      }
    }
  }
  return all;
}

TEST(Update, AdamIsTheFormulaOfOneNumber) {
  for (const auto& types : storages(2)) {
    for (const int64_t numel : lengths()) {
      const Operands operands(types, numel, static_cast<uint64_t>(numel) + 1);
      for (const auto& factors : adam_settings()) {
        auto want = operands.numbers;
        plain_adam(factors, want);
        for (const auto set : instruction_sets()) {
          const auto got = by_the_kernel(operands.numbers, [&](auto& at, int64_t n) {
            adam(factors, at[0], at[1], at[2], {at[3].data, at[3].type}, n, set);
          });
          ASSERT_EQ(difference(got, want), "") << name_of(set);
        }
      }
    }
  }
}

TEST(Update, SgdIsTheFormulaOfOneNumber) {
  for (const std::size_t states : std::vector<std::size_t>{0, 1}) {
    for (const auto& types : storages(states)) {
      for (const int64_t numel : lengths()) {
        const Operands operands(types, numel, static_cast<uint64_t>(numel) + 7);
        for (const auto& factors : sgd_settings()) {
          auto want = operands.numbers;
          plain_sgd(factors, states == 1, want);
          for (const auto set : instruction_sets()) {
            const auto got = by_the_kernel(operands.numbers, [&](auto& at, int64_t n) {
              sgd(factors, at[0], states == 1 ? &at[1] : nullptr, {at.back().data, at.back().type},
                  n, set);
            });
            ASSERT_EQ(difference(got, want), "") << name_of(set);
          }
        }
      }
    }
  }
}

// Where the gradient lies must not matter: a tail has the bits that it has inside of a whole. A NaN
// is a NaN: its sign is what the compiler makes of the order of two operands.
TEST(Update, ASliceHasEveryBitOfTheWhole) {
  for (const auto type : kElements) {
    const Operands whole({type, type, type, type}, 1400, 5);
    for (const auto set : instruction_sets()) {
      const auto run = [&](auto& at, int64_t n) {
        adam(adam_settings()[2], at[0], at[1], at[2], {at[3].data, at[3].type}, n, set);
      };
      const auto want = by_the_kernel(whole.numbers, run);
      for (const int64_t begin : {1, 5, 64, 1000, 1023, 1399}) {
        std::vector<Numbers> slice;
        for (const auto& numbers : whole.numbers) {
          slice.emplace_back(type, 1400 - begin);
          for (int64_t i = begin; i < 1400; ++i) slice.back().set_bits(i - begin, numbers.bits(i));
        }
        const auto got = by_the_kernel(slice, run);
        for (std::size_t operand = 0; operand < 4; ++operand) {
          for (int64_t i = begin; i < 1400; ++i) {
            if (std::isnan(want[operand][i])) {
              ASSERT_TRUE(std::isnan(got[operand][i - begin])) << begin << ", " << i;
            } else {
              ASSERT_EQ(got[operand].bits(i - begin), want[operand].bits(i)) << begin << ", " << i;
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace equigrad::kernels
