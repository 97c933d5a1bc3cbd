#include "conformance/cases/precision_modes.hpp"

#include <algorithm>
#include <array>
#include <iterator>

#include "conformance/cases/mode_columns.hpp"

namespace equigrad::conformance {
namespace {

using Policy = reference::LossScaleSpec::Policy;

struct EngineMode {
  const char* keys = "{}";
  bool chooses_sums = false;  // 16 bits sum in 16 bits, or in fp32 if they are told to
};

// A mode. What a mode means from some number of micro-batches on may have a row of its own, behind
// its first.
struct Row {
  Precision precision;
  const char* word;
  int least_accumulation = 1;
  std::array<const char*, 2> refused_at_0 = {};  // nullptr: none
  ReferenceMode reference = {};
  EngineMode engine = {};
};

// Tiny models do not overflow with a scale of 2^8, and it may double.
constexpr reference::LossScaleSpec kDynamic{
    .policy = Policy::DeepSpeed, .initial = 256, .window = 1, .hysteresis = 1};
constexpr reference::LossScaleSpec kPatient{
    .policy = Policy::DeepSpeed, .initial = 256, .window = 1, .hysteresis = 2};
constexpr reference::LossScaleSpec kStatic{.policy = Policy::Static, .initial = 128};
// amp's own scale begins at 2^16, where four micro-batches and more overflow step after step.
constexpr reference::LossScaleSpec kStaticAmp{.policy = Policy::Static, .initial = 1024};
constexpr reference::LossScaleSpec kGradScaler{
    .policy = Policy::GradScaler, .initial = 65536, .window = 2000};

using P = Precision;
using reference::Averaging;

constexpr Row kRows[] = {
    {.precision = P::Fp32, .word = "fp32"},
    {.precision = P::Bf16,
     .word = "bf16",
     .reference = {.param = at::kBFloat16},
     .engine = {.keys = R"({"bf16": {"enabled": true}})", .chooses_sums = true}},
    {.precision = P::Bf16MastersStates,
     .word = "bf16-masters-states",
     .refused_at_0 = {"bf16_master_weights_and_grads"},
     .reference = {.param = at::kBFloat16, .master = at::kBFloat16, .state = at::kBFloat16},
     .engine = {.keys = R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                       "bf16_optimizer_states": true}})"}},
    {.precision = P::Bf16Masters,
     .word = "bf16-masters",
     .refused_at_0 = {"bf16_master_weights_and_grads", "offload_optimizer"},
     .reference = {.param = at::kBFloat16, .master = at::kBFloat16},
     .engine = {.keys = R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true},
                              "zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"}},
    {.precision = P::Fp16,
     .word = "fp16",
     .reference = {.param = at::kHalf, .loss_scale = kDynamic},
     .engine = {.keys = R"({"fp16": {"enabled": true, "initial_scale_power": 8,
                                       "loss_scale_window": 1, "hysteresis": 1}})",
                .chooses_sums = true}},
    {.precision = P::Fp16,
     .word = "fp16",
     .least_accumulation = 4,
     .reference = {.param = at::kHalf, .loss_scale = kPatient},
     .engine = {.keys = R"({"fp16": {"enabled": true, "initial_scale_power": 8,
                                       "loss_scale_window": 1, "hysteresis": 2}})",
                .chooses_sums = true}},
    {.precision = P::Fp16Static,
     .word = "fp16-static",
     .reference = {.param = at::kHalf, .loss_scale = kStatic},
     .engine = {.keys = R"({"fp16": {"enabled": true, "loss_scale": 128}})", .chooses_sums = true}},
    {.precision = P::Fp16Masters,
     .word = "fp16-masters",
     .reference = {.param = at::kHalf, .master = at::kHalf, .loss_scale = kDynamic},
     .engine = {.keys = R"({"fp16": {"enabled": true, "initial_scale_power": 8,
                                       "loss_scale_window": 1, "hysteresis": 1,
                                       "fp16_master_weights_and_grads": true}})"}},
    {.precision = P::Fp16Masters,
     .word = "fp16-masters",
     .least_accumulation = 4,
     .reference = {.param = at::kHalf, .master = at::kHalf, .loss_scale = kPatient},
     .engine = {.keys = R"({"fp16": {"enabled": true, "initial_scale_power": 8,
                                       "loss_scale_window": 1, "hysteresis": 2,
                                       "fp16_master_weights_and_grads": true}})"}},
    {.precision = P::AutocastBf16,
     .word = "autocast-bf16",
     .reference = {.autocast = at::kBFloat16},
     .engine = {.keys = R"({"torch_autocast": {"enabled": true, "dtype": "bfloat16"}})"}},
    {.precision = P::AutocastFp16,
     .word = "autocast-fp16",
     .reference = {.autocast = at::kHalf, .loss_scale = kGradScaler},
     .engine = {.keys = R"({"torch_autocast": {"enabled": true, "dtype": "float16"}})"}},
    {.precision = P::AutocastBf16MastersStates,
     .word = "autocast-bf16-masters-states",
     .refused_at_0 = {"bf16_master_weights_and_grads"},
     .reference = {.param = at::kBFloat16,
                   .master = at::kBFloat16,
                   .state = at::kBFloat16,
                   .autocast = at::kBFloat16},
     .engine = {.keys = R"({"bf16": {"enabled": true, "bf16_master_weights_and_grads": true,
                                       "bf16_optimizer_states": true},
                              "torch_autocast": {"enabled": true, "dtype": "bfloat16"}})"}},
    {.precision = P::AmpO1,
     .word = "amp-o1",
     .reference = {.autocast = at::kHalf, .loss_scale = kStaticAmp},
     .engine = {.keys = R"({"amp": {"enabled": true, "opt_level": "O1", "loss_scale": 1024}})"}},
    {.precision = P::AmpO2,
     .word = "amp-o2",
     .reference = {.param = at::kHalf, .loss_scale = kGradScaler},
     .engine = {.keys = R"({"amp": {"enabled": true, "opt_level": "O2"}})", .chooses_sums = true}},
    {.precision = P::AmpO2,
     .word = "amp-o2",
     .least_accumulation = 4,
     .reference = {.param = at::kHalf, .loss_scale = kStaticAmp},
     .engine = {.keys = R"({"amp": {"enabled": true, "opt_level": "O2", "loss_scale": 1024}})",
                .chooses_sums = true}},
    {.precision = P::Offload,
     .word = "offload",
     .refused_at_0 = {"offload_optimizer"},
     .engine = {.keys = R"({"zero_optimization": {"offload_optimizer": {"device": "cpu"}}})"}},
    {.precision = P::Fp32CommBf16,
     .word = "fp32-comm-bf16",
     .reference = {.communication = at::kBFloat16},
     .engine = {.keys = R"({"communication_data_type": "bf16"})"}},
    {.precision = P::Bf16CommFp32,
     .word = "bf16-comm-fp32",
     .reference = {.param = at::kBFloat16, .communication = at::kFloat},
     .engine = {.keys = R"({"bf16": {"enabled": true}, "communication_data_type": "fp32"})",
                .chooses_sums = true}},
    {.precision = P::Fp32Prescale,
     .word = "fp32-prescale",
     .reference = {.averaging = Averaging::BeforeSum},
     .engine = {.keys = R"({"prescale_gradients": true})"}},
    {.precision = P::Fp16Prescale,
     .word = "fp16-prescale",
     .reference = {.param = at::kHalf, .loss_scale = kStatic, .averaging = Averaging::BeforeSum},
     .engine = {.keys = R"({"fp16": {"enabled": true, "loss_scale": 128},
                              "prescale_gradients": true})",
                .chooses_sums = true}},
    {.precision = P::Fp32Predivide,
     .word = "fp32-predivide",
     .reference = {.averaging = Averaging::Around, .predivide_factor = 3},
     .engine = {.keys = R"({"gradient_predivide_factor": 3.0})"}},
    {.precision = P::Fp32Sum,
     .word = "fp32-sum",
     .reference = {.averaging = Averaging::Never},
     .engine = {.keys = R"({"gradient_allreduce_op": "sum"})"}},
    {.precision = P::Fp32Exact,
     .word = "fp32-exact",
     .reference = {.exact_sums = true},
     .engine = {.keys = R"({"reduction": "exact"})"}},
    {.precision = P::Bf16Exact,
     .word = "bf16-exact",
     .reference = {.param = at::kBFloat16, .exact_sums = true},
     .engine = {.keys = R"({"bf16": {"enabled": true}, "reduction": "exact"})",
                .chooses_sums = true}},
};

const Row& row_of(Precision precision, int accumulation = 1) {
  return *std::find_if(std::rbegin(kRows), std::rend(kRows), [&](const Row& row) {
    return row.precision == precision && row.least_accumulation <= accumulation;
  });
}

}  // namespace

const std::vector<Precision>& precisions() {
  static const std::vector<Precision> all = [] {
    std::vector<Precision> list;
    for (const auto& row : kRows)
      if (row.least_accumulation == 1) list.push_back(row.precision);
    return list;
  }();
  return all;
}

std::string word(Precision precision) { return row_of(precision).word; }

std::vector<std::string> refusal_keys(Precision precision, int stage) {
  std::vector<std::string> keys;
  for (const char* key : row_of(precision).refused_at_0)
    if (stage == 0 && key != nullptr) keys.emplace_back(key);
  return keys;
}

Scaling scaling_of(Precision precision) {
  const auto policy = row_of(precision).reference.loss_scale.policy;
  if (policy == Policy::None) return Scaling::None;
  return policy == Policy::Static ? Scaling::Static : Scaling::Dynamic;
}

bool is_autocast(Precision precision) { return row_of(precision).reference.autocast.has_value(); }

bool sums_exactly(Precision precision) { return row_of(precision).reference.exact_sums; }

const ReferenceMode& reference_mode(Precision precision, int accumulation) {
  return row_of(precision, accumulation).reference;
}

nlohmann::json engine_keys(Precision precision, int accumulation) {
  const auto& mode = row_of(precision, accumulation).engine;
  auto keys = nlohmann::json::parse(mode.keys);
  if (mode.chooses_sums && accumulation == 3) keys["data_types"]["grad_accum_dtype"] = "fp32";
  return keys;
}

}  // namespace equigrad::conformance
