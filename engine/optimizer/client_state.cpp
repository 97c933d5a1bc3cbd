#include "engine/optimizer/client_state.hpp"

#include "engine/error.hpp"
#include "engine/layout/partition.hpp"

namespace equigrad::optimizer {

ClientState::ClientState(const Client& client, const layout::ParameterTable& table,
                         const layout::BucketPlan& plan, const at::Tensor& masters,
                         memory::Ledger& ledger)
    : optimizer_(client.optimizer), ledger_(ledger), slice_number_(table.size()) {
  std::vector<OwnedSlice> slices;
  for (std::size_t i = 0; i < table.size(); ++i) {
    const auto at = plan.slot_of(i);
    if (!at) continue;  // frozen or empty
    const auto range = layout::Partition(table[i].numel, plan.shards())
                           .range(plan.shards() == 1 ? 0 : client.rank);
    const auto offset = plan.buckets()[at->bucket].offset + plan.slot(*at).offset;
    slice_number_[i] = slices.size();
    places_.push_back({i, offset, range.numel()});
    slices.push_back(
        {.name = table[i].name,
         .parameter = client.tensors[i],
         .begin = range.begin,
         .end = range.end,
         .master = masters.narrow(0, offset, range.numel()).detach().requires_grad_()});
  }
  optimizer_->own(slices);
  charged_bytes_ = optimizer_->state_bytes();
  ledger_.charge(memory::Category::OptimizerState, charged_bytes_);
}

void ClientState::update(const at::Tensor& gradient, const std::vector<bool>& used) {
  std::vector<at::Tensor> gradients;
  for (const auto& place : places_)
    gradients.push_back(used[place.parameter] ? gradient.narrow(0, place.offset, place.numel)
                                              : at::Tensor());
  optimizer_->step(gradients);
  charge();
}

void ClientState::charge() {
  const auto bytes = optimizer_->state_bytes();
  ledger_.charge(memory::Category::OptimizerState, bytes - charged_bytes_);
  charged_bytes_ = bytes;
}

std::vector<std::string> ClientState::names(std::size_t parameter) const {
  const auto slice = slice_number_[parameter];
  return slice ? optimizer_->state_names(*slice) : std::vector<std::string>();
}

at::Tensor ClientState::state(std::size_t parameter, std::size_t index) const {
  return optimizer_->state(slice_number_[parameter].value(), names(parameter).at(index));
}

std::string ClientState::numbers(std::size_t parameter) const {
  const auto slice = slice_number_[parameter];
  return slice ? optimizer_->numbers(*slice) : std::string();
}

void ClientState::restore(std::size_t parameter, const SliceStates& states,
                          const std::string& numbers) {
  const auto slice = slice_number_[parameter];
  if (!slice) return;
  optimizer_->restore(*slice, states, numbers);
  charge();
}

}  // namespace equigrad::optimizer
