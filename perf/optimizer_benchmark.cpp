// What an update that rounds alike everywhere costs: the engine's AdamW beside ATen's fused kernel,
// whose bits depend on where a shard begins. Everything is stored in one type. One rank, with one
// thread and with two.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include "engine/optimizer/update_rule.hpp"
#include "perf/perf_ranks.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::RankContext;
using nlohmann::json;

class Updating : public Variant {
 public:
  Updating(const json& settings, int threads)
      : threads_(threads),
        numel_(settings.at("numel")),
        dtype_(settings.at("bf16") ? at::kBFloat16 : at::kFloat) {
    config_.lr = 1e-3;
    config_.weight_decay = 0.01;
  }
  void prepare() override { at::set_num_threads(threads_); }

 protected:
  int threads_;
  int64_t numel_;
  at::ScalarType dtype_;
  OptimizerConfig config_;
  at::Tensor parameter_ = at::full({numel_}, 0.5, dtype_);
  at::Tensor gradient_ = at::full({numel_}, 0.25, dtype_);
  at::Tensor average_ = at::zeros({numel_}, dtype_);
  at::Tensor square_ = at::zeros({numel_}, dtype_);
};

class Exact final : public Updating {
 public:
  using Updating::Updating;
  void run() override {
    optimizer::update_(config_, ++step_, parameter_, gradient_, {average_, square_});
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
  const int threads = variant.ends_with("_2_threads") ? 2 : 1;
  if (variant.starts_with("fused")) return std::make_unique<Fused>(settings, threads);
  return std::make_unique<Exact>(settings, threads);
}

[[maybe_unused]] const bool registered = [] {
  for (const bool bf16 : {false, true})
    for (const int64_t millions : {1, 16}) {
      Group group;
      group.name =
          std::string("adamw/") + (bf16 ? "bf16/" : "fp32/") + std::to_string(millions) + "M";
      group.variants = {"fused", "exact", "fused_2_threads", "exact_2_threads"};
      group.bases = {"fused", "exact", "fused_2_threads"};
      group.rounds = 31;
      group.settings = {{"numel", millions << 20}, {"bf16", bf16}};
      register_group(group, make);
    }
  return true;
}();

}  // namespace
}  // namespace equigrad::perf
