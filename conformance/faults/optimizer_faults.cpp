// Faults of the update: no step, another gradient, another rule.
#include <ATen/ATen.h>

#include <cmath>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

// Leaves the update out where `when` says so.
void skip(FaultContext& context, std::function<bool()> when) {
  seams().update_all = [&context, when](optimizer::ShardedState& self, const at::Tensor& gradient,
                                        const std::vector<bool>& used) {
    if (!when()) return through::update_all(self, gradient, used);
    context.acted();
  };
}

void return_early_when_scaled(FaultContext& context) {
  auto scaled = std::make_shared<bool>(false);
  seams().loss_scale = [scaled](const at::Tensor& tensor,
                                const std::shared_ptr<loss::LossScaler>& scaler) {
    *scaled = scaler && scaler->is_needed();
    return through::loss_scale(tensor, scaler);
  };
  skip(context, [scaled] { return *scaled; });
}

void update_with_nothing(FaultContext& context) {
  seams().update_all = [&context](optimizer::ShardedState& self, const at::Tensor& gradient,
                                  const std::vector<bool>& used) {
    if (gradient.any().item<bool>()) context.acted();
    through::update_all(self, at::zeros_like(gradient), used);
  };
}

struct Settings {
  OptimizerConfig config;
  int64_t step;
};

// Another rule or step than those of the parameter's group.
void change_settings(FaultContext& context, std::function<Settings(Settings)> change) {
  seams().update = [&context, change](const OptimizerConfig& config, int64_t step,
                                      const at::Tensor& parameter, const at::Tensor& gradient,
                                      const std::vector<at::Tensor>& state) {
    const auto other = change({config, step});
    if (!(other.config == config) || other.step != step) context.acted();
    through::update(other.config, other.step, parameter, gradient, state);
  };
}

Settings decay_by_gradient(Settings settings) {
  if (settings.config.kind == OptimizerConfig::Kind::AdamW && settings.config.weight_decay != 0)
    settings.config.kind = OptimizerConfig::Kind::Adam;
  return settings;
}

void first_group_for_all(FaultContext& context) {
  auto first = std::make_shared<std::optional<OptimizerConfig>>();
  change_settings(context, [first](Settings settings) {
    if (!*first) *first = settings.config;
    return Settings{**first, settings.step};
  });
}

using Adam = kernels::AdamFactors;

void change_adam(FaultContext& context, std::function<void(Adam&, const Settings&)> change) {
  auto settings = std::make_shared<Settings>();
  seams().update = [settings](const OptimizerConfig& config, int64_t step,
                              const at::Tensor& parameter, const at::Tensor& gradient,
                              const std::vector<at::Tensor>& state) {
    *settings = {config, step};
    through::update(config, step, parameter, gradient, state);
  };
  seams().adam = [&context, settings, change](const Adam& factors, kernels::Stored parameter,
                                              kernels::Stored average, kernels::Stored square,
                                              kernels::StoredConst gradient, int64_t numel,
                                              kernels::InstructionSet set) {
    Adam other = factors;
    change(other, *settings);
    if (other.eps != factors.eps || other.rate != factors.rate || other.root != factors.root)
      context.acted();
    through::adam(other, parameter, average, square, gradient, numel, set);
  };
}

// beta^t as a running product in fp32, not as a power.
void multiply_betas(Adam& factors, const Settings& settings) {
  float power1 = 1, power2 = 1;
  for (int64_t step = 0; step < settings.step; ++step) {
    power1 *= static_cast<float>(settings.config.beta1);
    power2 *= static_cast<float>(settings.config.beta2);
  }
  factors.rate = static_cast<float>(settings.config.lr / (1.0 - static_cast<double>(power1)));
  factors.root = static_cast<float>(1.0 / std::sqrt(1.0 - static_cast<double>(power2)));
}

// An empty parameter divides 0 by 0, and NaN spreads over what is sent with it.
void divide_by_an_empty_parameter(FaultContext& context) {
  const auto layout = watch_layout();
  const auto has_empty = [layout] {
    for (std::size_t i = 0; i < layout->table->size(); ++i)
      if ((*layout->table)[i].trainable && !layout->plan->slot_of(i)) return true;
    return false;
  };
  change_gradient(context, [has_empty](std::size_t, const at::Tensor& gradient) {
    return has_empty() ? at::full_like(gradient, std::nan("")) : at::Tensor();
  });
}

// The last element of every shard is left to a tail that is not there.
void forget_the_tail(FaultContext& context) {
  seams().update = [&context](const OptimizerConfig& config, int64_t step,
                              const at::Tensor& parameter, const at::Tensor& gradient,
                              const std::vector<at::Tensor>& state) {
    const auto numel = parameter.numel();
    if (numel == 0) return through::update(config, step, parameter, gradient, state);
    const auto last = parameter.narrow(0, numel - 1, 1).clone();
    through::update(config, step, parameter, gradient, state);
    const auto tail = parameter.narrow(0, numel - 1, 1);
    if (!same_bits(tail, last)) context.acted();
    tail.copy_(last);
  };
}

void lose_the_state(FaultContext& context) {
  seams().update = [&context](const OptimizerConfig& config, int64_t step,
                              const at::Tensor& parameter, const at::Tensor& gradient,
                              const std::vector<at::Tensor>& state) {
    for (const auto& one : state) {
      if (one.any().item<bool>()) context.acted();
      one.zero_();
    }
    through::update(config, step, parameter, gradient, state);
  };
}

}  // namespace

std::vector<Fault> optimizer_faults() {
  return {
      at_seams("optimizer.returns_before_the_step", "where the loss is scaled no step is taken",
               {"DS-10"}, "update", return_early_when_scaled),
      at_seams("optimizer.gradient_not_attached",
               "the masters have no gradient after the first step, and stay", {"DS-57"}, "update",
               [](FaultContext& s) { skip(s, [&s] { return s.step() > 0; }); }),
      at_seams("optimizer.gradient_never_copied", "the update sees a gradient of zeros", {"DS-21"},
               "update", update_with_nothing),
      at_seams("optimizer.l2_for_decoupled", "AdamW's weight decay goes into the gradient",
               {"DS-72"}, "update", [](FaultContext& s) { change_settings(s, decay_by_gradient); }),
      at_seams("optimizer.step_restarts", "the third step counts as the first", {"DS-73"}, "update",
               [](FaultContext& s) {
                 change_settings(s, [&s](Settings settings) {
                   return Settings{settings.config, s.step() == 2 ? 1 : settings.step};
                 });
               }),
      at_seams("optimizer.first_group_for_all", "every group has the settings of one", {"DS-74"},
               "update", first_group_for_all),
      at_seams("optimizer.betas_multiplied", "beta^t is a product in fp32, not a power", {"DS-71"},
               "update", [](FaultContext& s) { change_adam(s, multiply_betas); }),
      at_seams("optimizer.eps_corrected", "the bias correction is applied to eps as well",
               {"AP-03"}, "update",
               [](FaultContext& s) {
                 change_adam(s,
                             [](Adam& factors, const Settings&) { factors.eps *= factors.root; });
               }),
      at_seams("optimizer.empty_parameter_spreads", "an empty parameter makes every gradient NaN",
               {"DS-77"}, "gradient", divide_by_an_empty_parameter),
      at_seams("optimizer.tail_forgotten", "the last element of a run is not updated", {}, "update",
               forget_the_tail),
      at_seams("optimizer.state_not_kept", "every update begins with states of zero", {}, "update",
               lose_the_state),
      at_seams("optimizer.decay_left_out", "weights do not decay", {}, "update",
               [](FaultContext& s) {
                 change_settings(s, [](Settings settings) {
                   settings.config.weight_decay = 0;
                   return settings;
                 });
               }),
      at_seams("optimizer.step_is_late", "steps are counted from 2", {}, "update",
               [](FaultContext& s) {
                 change_settings(s, [](Settings settings) {
                   return Settings{settings.config, settings.step + 1};
                 });
               }),
  };
}

}  // namespace equigrad::conformance::faults
