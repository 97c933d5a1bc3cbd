#include "conformance/cases/precision_modes.hpp"

#include <algorithm>

namespace equigrad::conformance {
namespace {

struct Mode {
  Precision precision;
  const char* word;
  Scaling scaling = Scaling::None;
  std::vector<std::string> refused_at_0 = {};
};

const std::vector<Mode>& modes() {
  using P = Precision;
  static const std::vector<Mode> all = {
      {P::Fp32, "fp32"},
      {P::Bf16, "bf16"},
      {P::Bf16MastersStates,
       "bf16-masters-states",
       Scaling::None,
       {"bf16_master_weights_and_grads"}},
      {P::Bf16Masters,
       "bf16-masters",
       Scaling::None,
       {"bf16_master_weights_and_grads", "offload_optimizer"}},
      {P::Fp16, "fp16", Scaling::Dynamic},
      {P::Fp16Static, "fp16-static", Scaling::Static},
      {P::Fp16Masters, "fp16-masters", Scaling::Dynamic},
      {P::AutocastBf16, "autocast-bf16"},
      {P::AutocastFp16, "autocast-fp16", Scaling::Dynamic},
      {P::AutocastBf16MastersStates,
       "autocast-bf16-masters-states",
       Scaling::None,
       {"bf16_master_weights_and_grads"}},
      {P::AmpO1, "amp-o1", Scaling::Static},
      {P::AmpO2, "amp-o2", Scaling::Dynamic},
      {P::Offload, "offload", Scaling::None, {"offload_optimizer"}},
      {P::Fp32CommBf16, "fp32-comm-bf16"},
      {P::Bf16CommFp32, "bf16-comm-fp32"},
      {P::Fp32Prescale, "fp32-prescale"},
      {P::Fp16Prescale, "fp16-prescale", Scaling::Static},
      {P::Fp32Predivide, "fp32-predivide"},
      {P::Fp32Sum, "fp32-sum"},
      {P::Fp32Exact, "fp32-exact"},
      {P::Bf16Exact, "bf16-exact"},
  };
  return all;
}

const Mode& mode_of(Precision precision) {
  return *std::find_if(modes().begin(), modes().end(),
                       [&](const Mode& mode) { return mode.precision == precision; });
}

}  // namespace

const std::vector<Precision>& precisions() {
  static const std::vector<Precision> all = [] {
    std::vector<Precision> list;
    for (const auto& mode : modes()) list.push_back(mode.precision);
    return list;
  }();
  return all;
}

std::string word(Precision precision) { return mode_of(precision).word; }

std::vector<std::string> refusal_keys(Precision precision, int stage) {
  return stage == 0 ? mode_of(precision).refused_at_0 : std::vector<std::string>{};
}

Scaling scaling_of(Precision precision) { return mode_of(precision).scaling; }

bool is_autocast(Precision precision) {
  return precision == Precision::AutocastBf16 || precision == Precision::AutocastFp16 ||
         precision == Precision::AutocastBf16MastersStates || precision == Precision::AmpO1;
}

bool sums_exactly(Precision precision) {
  return precision == Precision::Fp32Exact || precision == Precision::Bf16Exact;
}

bool computes_in_fp16(Precision precision) { return scaling_of(precision) != Scaling::None; }

}  // namespace equigrad::conformance
