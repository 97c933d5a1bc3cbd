// Precision: the modes of the matrix, by name; what each means is in precision_modes.cpp, twice.
//
//   name                          parameters masters states  beside
//   fp32                          fp32       fp32    fp32
//   bf16                          bf16       fp32    fp32    sums in bf16, or fp32 (accumulation 3)
//   bf16-masters-states           bf16       bf16    bf16    stages 1-3
//   bf16-masters                  bf16       bf16    fp32    offloaded, stages 1-3
//   fp16                          fp16       fp32    fp32    dynamic loss scale
//   fp16-static                   fp16       fp32    fp32    static loss scale
//   fp16-masters                  fp16       fp16    fp32    dynamic
//   autocast-bf16                 fp32       fp32    fp32    torch_autocast
//   autocast-fp16                 fp32       fp32    fp32    torch_autocast, torch's GradScaler
//   autocast-bf16-masters-states  bf16       bf16    bf16    torch_autocast, stages 1-3
//   amp-o1                        fp32       fp32    fp32    amp: autocast in fp16, static
//   amp-o2                        fp16       fp32    fp32    amp: dynamic; static (accumulation 4)
//   offload                       fp32       fp32    fp32    offload_optimizer, stages 1-3
//   fp32-comm-bf16                fp32       fp32    fp32    gradients are sent in bf16
//   bf16-comm-fp32                bf16       fp32    fp32    gradients are sent in fp32
//   fp32-prescale                 fp32       fp32    fp32    prescale_gradients
//   fp16-prescale                 fp16       fp32    fp32    the same in 16 bits, static
//   fp32-predivide                fp32       fp32    fp32    gradient_predivide_factor 3
//   fp32-sum                      fp32       fp32    fp32    gradient_allreduce_op "sum"
//   fp32-exact                    fp32       fp32    fp32    reduction "exact"
//   bf16-exact                    bf16       fp32    fp32    reduction "exact"
//
// Invariants: names are unique. A mode at a stage where it is not defined must be refused by name.
// Units: none.   Errors: none.
// Depends on: the C++ standard library.
#pragma once

#include <string>
#include <vector>

namespace equigrad::conformance {

enum class Precision {
  Fp32,
  Bf16,
  Bf16MastersStates,
  Bf16Masters,
  Fp16,
  Fp16Static,
  Fp16Masters,
  AutocastBf16,
  AutocastFp16,
  AutocastBf16MastersStates,
  AmpO1,
  AmpO2,
  Offload,
  Fp32CommBf16,
  Bf16CommFp32,
  Fp32Prescale,
  Fp16Prescale,
  Fp32Predivide,
  Fp32Sum,
  Fp32Exact,
  Bf16Exact,
};

const std::vector<Precision>& precisions();
std::string word(Precision precision);

// The keys of which a refusal at this stage must name one; none: the mode is defined there.
std::vector<std::string> refusal_keys(Precision precision, int stage);

enum class Scaling { None, Static, Dynamic };
Scaling scaling_of(Precision precision);  // of the loss, with one micro-batch
bool is_autocast(Precision precision);
bool sums_exactly(Precision precision);

}  // namespace equigrad::conformance
