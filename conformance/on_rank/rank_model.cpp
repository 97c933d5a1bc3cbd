#include "conformance/on_rank/rank_model.hpp"

#include <ATen/Context.h>
#include <torch/types.h>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/model_groups.hpp"
#include "conformance/cases/overflowing_model.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/on_rank/backward.hpp"
#include "conformance/on_rank/sequence_part.hpp"
#include "conformance/on_rank/split_model.hpp"

namespace equigrad::conformance {
namespace {

class ZooRankModel : public RankModel {
 public:
  ZooRankModel(const CaseSpec& spec, uint64_t seed, const reference::Data& data)
      : spec_(spec),
        seed_(seed),
        data_(data),
        model_(std::make_shared<OverflowingModel>(make_case_model(spec.model, seed))) {}

  // Its weights are drawn; the passes' own random numbers go on as if they were not.
  void renew() override {
    auto generator = at::globalContext().defaultGenerator(at::kCPU);
    const auto before = generator.get_state();
    model_ = made(seed_ + 1);
    generator.set_state(before);
  }

  std::vector<NamedTensors> groups() override {
    if (!has_groups()) return {reference::unique_parameters(*model_)};
    std::vector<NamedTensors> all;
    for (const auto& group : groups_of(*model_)) {
      auto& names = all.emplace_back();
      for (const auto& parameter : group.parameters)
        names.emplace_back(parameter.name, parameter.tensor);
    }
    return all;
  }

  void join(const comm::Mesh& ranks) override {
    tensor_ = ranks.tensor();
    sequence_ = ranks.sequence();
    if (tensor_ || sequence_) model_ = made(seed_);
  }

  // Both ways in: a model with several groups by the core, the others as modules.
  std::unique_ptr<Engine> make_engine(const std::string& config, comm::Mesh ranks) override {
    if (!has_groups()) return initialize(*model_, config, std::move(ranks));
    return initialize(groups_of(*model_), parse_config(config, spec_.world), std::move(ranks));
  }

  at::Tensor run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) override {
    const int data = pass.rank / spec_.sequence();
    const auto batch = reference::to_dtype(
        make_case_batch(
            data_, spec_.model,
            {.seed = seed_, .step = pass.step, .rank = data, .micro_batch = pass.micro_batch}),
        dtype_of(spec_));
    const bool overflows =
        overflowing_batch(spec_) == OverflowingBatch{pass.step, data, pass.micro_batch};
    model_->set_loss_factor(overflows ? kOverflowFactor : 1);
    return rank_backward(engine, *model_, batch, spec_, caller).reshape({1});
  }

 private:
  bool has_groups() { return model_->groups().size() > 1; }
  // Or this rank's part.
  std::shared_ptr<OverflowingModel> made(uint64_t seed) const {
    return std::make_shared<OverflowingModel>(
        tensor_     ? split_model(spec_.model, seed, tensor_, sequence_)
        : sequence_ ? sequence_part_model(spec_.model, seed, sequence_)
                    : make_case_model(spec_.model, seed));
  }

  CaseSpec spec_;
  uint64_t seed_;
  const reference::Data& data_;
  std::shared_ptr<OverflowingModel> model_;
  parallel::Group tensor_ = {};    // null: this rank has whole parameters
  parallel::Group sequence_ = {};  // null: this rank has whole sequences
};

}  // namespace

reference::TensorMap RankModel::buffers() { return {}; }

void RankModel::unsettle(const std::function<bool(const std::string&)>& is_taken_over) {
  const at::NoGradGuard no_grad;
  for (const auto& group : groups())
    for (const auto& [name, tensor] : group)
      if (tensor.is_floating_point() && is_taken_over(name)) tensor.mul_(0.75).add_(0.125);
}

std::unique_ptr<RankModel> zoo_rank_model(const CaseSpec& spec, uint64_t seed,
                                          const reference::Data& data) {
  return std::make_unique<ZooRankModel>(spec, seed, data);
}

}  // namespace equigrad::conformance
