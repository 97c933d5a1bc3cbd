// What an update that rounds alike everywhere costs: the engine's AdamW beside ATen's fused kernel,
// whose bits depend on where a shard begins. One thread, one rank.
#include <ATen/ATen.h>

#include "engine/optimizer/update_rule.hpp"
#include "perf/perf_ranks.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::RankContext;
using nlohmann::json;

class Updating : public Variant {
 public:
  explicit Updating(const json& settings) : numel_(settings.at("numel")) {
    config_.lr = 1e-3;
    config_.weight_decay = 0.01;
  }

 protected:
  int64_t numel_;
  OptimizerConfig config_;
  at::Tensor parameter_ = at::full({numel_}, 0.5);
  at::Tensor gradient_ = at::full({numel_}, 0.25);
  at::Tensor average_ = at::zeros({numel_});
  at::Tensor square_ = at::zeros({numel_});
};

class Exact final : public Updating {
 public:
  using Updating::Updating;
  void run() override {
    optimizer::update_(config_, ++step_, parameter_, gradient_, {average_, square_});
    // The update used the gradient up as scratch: what it holds now is as good as any other.
  }

 private:
  int64_t step_ = 0;
};

class Fused final : public Updating {
 public:
  using Updating::Updating;
  void run() override {
    step_.add_(1);
    at::_fused_adamw_({parameter_}, {gradient_}, {average_}, {square_}, {}, {step_}, config_.lr,
                      config_.beta1, config_.beta2, config_.weight_decay, config_.eps,
                      /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  at::Tensor step_ = at::zeros({});
};

std::unique_ptr<Variant> make(const std::string& variant, const json& settings, RankContext&) {
  if (variant == "fused") return std::make_unique<Fused>(settings);
  return std::make_unique<Exact>(settings);
}

[[maybe_unused]] const bool registered = [] {
  for (const int64_t millions : {1, 16}) {
    Group group;
    group.name = "adamw/fp32/" + std::to_string(millions) + "M";
    group.variants = {"fused", "exact"};
    group.bases = {"fused"};
    group.rounds = 31;
    group.settings = {{"numel", millions << 20}};
    register_group(group, make);
  }
  return true;
}();

}  // namespace
}  // namespace equigrad::perf
