#include "conformance/campaigns/fault_panel.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>

namespace equigrad::conformance {
namespace {

// The first five kill nearly everything: sums over micro-batches and ranks, paging, a loss scale
// that grows and overflows, clipping, 16 bits. The others are there for what only acts in them.
constexpr std::array kPanel = {
    "zero2.fp32.w2.accumulation3.clip-off.sgd.irregular.engine_backward",
    "zero3.fp32.w2.accumulation3.clip-above.adamw.irregular.loss_backward",
    "zero1.fp16.w2.accumulation4.clip-above.adamw.irregular.scale_backward",
    "zero0.fp16.w2.accumulation1.clip-off.sgd.irregular.engine_backward",
    "zero3.bf16.w3.accumulation4.clip-off.sgd.gpt.tensor_backward",
    "zero2.fp32-prescale.w3.accumulation1.clip-above-inf.sgd.irregular.tensor_backward",
    "zero1.fp32.w4.accumulation3.clip-off.adamw.irregular.engine_backward",
    "zero3.fp16-masters.w2.accumulation3.clip-above.sgd.irregular.engine_backward",
    "zero2.offload.w2.accumulation3.clip-below.adamw.irregular.loss_backward",
    "zero3.autocast-bf16.w2.accumulation3.clip-off.adamw.gpt.engine_backward",
    "zero2.autocast-fp16.w3.accumulation1.clip-above.sgd.gpt.scale_backward",
    "zero1.bf16-masters.w2.accumulation4.clip-below.adamw.irregular.loss_backward",
    "zero2.bf16-masters-states.w3.accumulation3.clip-above-inf.adamw.irregular.engine_backward",
    "zero0.fp32.w3.accumulation4.clip-above.sgd.conv.loss_backward",
    "zero3.fp32.w4.accumulation1.clip-below.adamw.vision.tensor_backward",
    "zero2.fp32-predivide.w2.accumulation4.clip-off.adamw.irregular.scale_backward",
    "zero1.fp32-sum.w3.accumulation3.clip-above.sgd.irregular.engine_backward",
    "zero3.fp32-communicator-bf16.w2.accumulation3.clip-off.sgd.irregular.loss_backward",
    "zero0.bf16-communicator-fp32.w4.accumulation1.clip-above.adamw.irregular.tensor_backward",
    "zero2.fp16-static.w2.accumulation4.clip-below.adamw.gpt.engine_backward",
    "zero1.amp-o1.w2.accumulation3.clip-above.sgd.irregular.scale_backward",
    "zero3.amp-o2.w3.accumulation1.clip-off.adamw.irregular.engine_backward",
    "zero1.fp16-prescale.w2.accumulation3.clip-off.sgd.irregular.tensor_backward",
    "zero3.autocast-bf16-masters-states.w2.accumulation1.clip-below.sgd.irregular.loss_backward",
    "zero3.fp32.w1.accumulation3.clip-above.adamw.irregular.engine_backward",
    "zero0.bf16.w1.accumulation4.clip-off.sgd.irregular.engine_backward",
    "zero1.fp32-exact.w3.accumulation3.clip-above.adamw.irregular.engine_backward",
    "zero2.bf16-exact.w2.accumulation4.clip-off.sgd.irregular.loss_backward",
};

// Several gradients of one parameter in one pass; groups with rates of their own; a scale that
// several engines wait for.
const char* const kTelling[] = {
    "Contract.2.reentrant_checkpointing_of_reused_parameters", "Contract.11.rate_of_every_group",
    "Contract.11.rate_follows_its_schedule", "Contract.4.engines_share_a_scale"};

}  // namespace

const std::vector<CaseSpec>& fault_panel() {
  static const std::vector<CaseSpec> panel = [] {
    std::vector<CaseSpec> cases;
    for (const char* id : kPanel) cases.push_back(parse_id(std::string("Required.grad.") + id));
    return cases;
  }();
  return panel;
}

ContractPanel contract_panel() {
  const auto all = contract::default_specs();
  const auto is_telling = [](const contract::Spec& spec) {
    return std::find(std::begin(kTelling), std::end(kTelling), spec.of->family()) !=
           std::end(kTelling);
  };
  ContractPanel panel;
  std::copy_if(all.begin(), all.end(), std::back_inserter(panel.cases), is_telling);
  panel.telling = panel.cases.size();
  // Neighbours are alike: steps of the golden ratio meet every kind of case early.
  std::size_t stride = all.size() * 618 / 1000;
  while (std::gcd(stride, all.size()) != 1) ++stride;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (const auto& spec = all[i * stride % all.size()]; !is_telling(spec))
      panel.cases.push_back(spec);
  return panel;
}

}  // namespace equigrad::conformance
