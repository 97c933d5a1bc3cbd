#include "conformance/generated/other_engine.hpp"

#include <ATen/ATen.h>

#include <string>
#include <utility>

#include "engine/comm/communicator.hpp"

namespace equigrad::conformance {
namespace {

at::Tensor factors() { return at::arange(1, 4, at::kFloat); }

std::string config_at(int stage) {
  return R"({"train_micro_batch_size_per_gpu": 1, "gradient_allreduce_op": "sum",
    "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
    "zero_optimization": {"stage": )" +
         std::to_string(stage) +
         (stage == 3 ? R"(, "stage3_param_persistence_threshold": 0)" : "") + "}}";
}

}  // namespace

OtherEngine::OtherEngine(std::shared_ptr<comm::Communicator> group, int stage)
    : weight_(at::zeros({3}, at::kFloat).set_requires_grad(true)),
      want_(at::zeros({3}, at::kFloat)),
      ranks_(group->world_size()) {
  const auto config = parse_config(config_at(stage), ranks_);
  engine_ = initialize({{.parameters = {{"weight", weight_}}}}, config, std::move(group));
}

at::Tensor OtherEngine::term() const { return (weight_ * factors()).sum(); }

void OtherEngine::take(int uses) {
  engine_->step();
  want_ = want_ - factors() * static_cast<double>(ranks_ * uses);
  if (!engine_->full_parameter("weight").equal(want_))
    throw HarmlessEventFailed("another engine's weights are not what its own steps make them");
}

void OtherEngine::step() {
  engine_->backward(term());
  take(1);
}

}  // namespace equigrad::conformance
