// update: Adam and SGD with momentum as one plain loop over flat arrays, on the CPU.
//
//   adam  g = g + p decay (if asked);  p = p keep;  m = m beta1 + g fresh1;  v = v beta2 + (g g)
//         fresh2;  p = p - (m / (sqrt(v) root + eps)) rate
//   sgd   d = g + p decay (if asked);  b = d (if first) or b momentum + d fresh;
//         d = b, or d + b momentum (nesterov);  p = p - d rate
//
// Each operation rounds once, in fp32 (optimizer/update_rule.hpp says where the formulas come from
// and how the factors are made). A number stored in 16 bits is widened, and rounded once to its
// type after the loop's last operation.
//
// Invariants: element i depends on element i only: an array is worked off in blocks of whole
// vectors, the last one filled up, so that no tail is done by other instructions. The bits are the
// same on every instruction set, but for the sign of a NaN, which IEEE 754 leaves open. The
// gradient is read only. Numbers in fp32 are not copied.
// Shapes: every array has `numel` elements; no two overlap.
// Errors: none.
// Depends on: kernels/element.hpp, kernels/instruction_set.hpp; the source on kernels/convert.hpp
// and kernels/parallel.hpp.
#pragma once

#include <cstdint>

#include "engine/kernels/element.hpp"
#include "engine/kernels/instruction_set.hpp"

namespace equigrad::kernels {

// An array in its own format.
struct Stored {
  void* data;
  Element type;
};
struct StoredConst {
  const void* data;
  Element type;
};

struct AdamFactors {
  float keep;  // 1 without decoupled weight decay: a product with 1 changes no bit
  bool decays;
  float decay;
  float beta1, fresh1;
  float beta2, fresh2;
  float root, eps, rate;
};

struct SgdFactors {
  bool decays;
  float decay;
  bool first;
  float momentum, fresh;
  bool nesterov;
  float rate;
};

void adam(const AdamFactors& factors, Stored parameter, Stored average, Stored square,
          StoredConst gradient, int64_t numel, InstructionSet set = instruction_set());

// `buffer` is null where there is no momentum.
void sgd(const SgdFactors& factors, Stored parameter, const Stored* buffer, StoredConst gradient,
         int64_t numel, InstructionSet set = instruction_set());

}  // namespace equigrad::kernels
