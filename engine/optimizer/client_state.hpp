// Client state: an optimizer of the user's on this rank's shards.
//
// Invariants: its slices are views of the masters, without padding; those of a flat gradient are
// views too. What its states take is charged after every step.
// Shapes: masters and gradient flat over the shard space, [plan.shard_numel()], fp32.
// Errors: equigrad::Error for masters in another type; what the optimizer throws.
// Depends on: engine/api/slice_optimizer.hpp, layout, memory/ledger.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/slice_optimizer.hpp"
#include "engine/layout/bucket_plan.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad::optimizer {

struct Client {
  std::shared_ptr<SliceOptimizer> optimizer;
  const std::vector<at::Tensor>& tensors;  // the model's, by index of the table
  int rank = 0;
};

class ClientState {
 public:
  ClientState(const Client& client, const layout::ParameterTable& table,
              const layout::BucketPlan& plan, const at::Tensor& masters, memory::Ledger& ledger);

  SliceOptimizer& optimizer() const { return *optimizer_; }
  void update(const at::Tensor& gradient, const std::vector<bool>& used);
  std::vector<std::string> names(std::size_t parameter) const;
  at::Tensor state(std::size_t parameter, std::size_t index) const;  // in the order of names()
  // As the optimizer's, of a parameter; nothing of a frozen or an empty one.
  std::string numbers(std::size_t parameter) const;
  void restore(std::size_t parameter, const SliceStates& states, const std::string& numbers);

 private:
  void charge();

  struct Place {
    std::size_t parameter;
    int64_t offset;  // in the shard space
    int64_t numel;
  };

  std::shared_ptr<SliceOptimizer> optimizer_;
  memory::Ledger& ledger_;
  std::vector<Place> places_;                             // by slice
  std::vector<std::optional<std::size_t>> slice_number_;  // by parameter
  int64_t charged_bytes_ = 0;
};

}  // namespace equigrad::optimizer
