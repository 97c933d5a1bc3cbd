// Sites of numbers and of calls.
#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"
#include "conformance/faults/mutant_sites.hpp"

namespace equigrad::conformance::faults {
namespace {

using shard::Measure;

void at_factor(FaultContext& context, MutateNumber mutate) {
  change_factor(context, [&context, mutate](double factor) {
    return is_time(context) ? mutate(factor) : factor;
  });
}

void at_norm(FaultContext& context, MutateNumber mutate) {
  seams().measure = [&context, mutate](const at::Tensor& gradient, comm::Communicator* over,
                                       NormType type, const std::vector<shard::Span>& repeated) {
    auto measure = through::measure(gradient, over, type, repeated);
    const double norm = is_time(context) ? mutate(measure.norm) : measure.norm;
    if (norm != measure.norm) context.acted();
    return Measure{norm, measure.non_finite_numel};
  };
}

void at_threshold(FaultContext& context, MutateNumber mutate) {
  seams().clip = [&context, mutate](const at::Tensor& gradient, double norm, double threshold) {
    if (!is_time(context)) return through::clip(gradient, norm, threshold);
    const auto right = gradient.clone();
    through::clip(right, norm, threshold);
    const double factor = through::clip(gradient, norm, mutate(threshold));
    if (!same_bits(right, gradient)) context.acted();
    return factor;
  };
}

void at_weight(FaultContext& context, MutateNumber mutate) {
  seams().window_begin = [&context, mutate](gradient::Window& self, double weight,
                                            bool expects_step) {
    const double other = is_time(context) ? mutate(weight) : weight;
    if (other != weight) context.acted();
    through::window_begin(self, other, expects_step);
  };
}

// A setting of the update.
void at_setting(FaultContext& context, double OptimizerConfig::*setting, MutateNumber mutate) {
  seams().update = [&context, setting, mutate](
                       const OptimizerConfig& config, int64_t step, const at::Tensor& parameter,
                       const at::Tensor& gradient, const std::vector<at::Tensor>& state) {
    auto other = config;
    const bool adam = config.kind != OptimizerConfig::Kind::Sgd;
    const bool used =
        adam || (setting != &OptimizerConfig::beta1 && setting != &OptimizerConfig::beta2 &&
                 setting != &OptimizerConfig::eps);
    if (is_time(context) && used) other.*setting = mutate(config.*setting);
    if (!(other == config)) context.acted();
    through::update(other, step, parameter, gradient, state);
  };
}

auto setting(double OptimizerConfig::*which) {
  return
      [which](FaultContext& context, MutateNumber mutate) { at_setting(context, which, mutate); };
}

// Makes the call as often as it should be made now.
template <class Call>
void repeat(FaultContext& context, int times, Call call) {
  if (!is_time(context)) return call();
  context.acted();
  for (int time = 0; time < times; ++time) call();
}

void repeat_update(FaultContext& context, int times) {
  seams().update = [&context, times](const OptimizerConfig& config, int64_t step,
                                     const at::Tensor& parameter, const at::Tensor& gradient,
                                     const std::vector<at::Tensor>& state) {
    const auto own = gradient.clone();  // an update may use its gradient up
    repeat(context, times, [&] { through::update(config, step, parameter, own.clone(), state); });
  };
}

void repeat_clip(FaultContext& context, int times) {
  seams().clip = [&context, times](const at::Tensor& gradient, double norm, double threshold) {
    double factor = 1;
    if (norm <= threshold) return through::clip(gradient, norm, threshold);
    repeat(context, times, [&] { factor = through::clip(gradient, norm, threshold); });
    return factor;
  };
}

void repeat_copy_in(FaultContext& context, int times) {
  seams().bucket_copy_in = [&context, times](bucket::Bucket& self, std::size_t slot,
                                             const at::Tensor& gradient, double weight) {
    if (!gradient.any().item<bool>()) return through::bucket_copy_in(self, slot, gradient, weight);
    if (times == 0 && is_time(context)) {
      context.acted();  // the bucket counts it as filled
      return through::bucket_copy_in(self, slot, at::zeros_like(gradient), weight);
    }
    repeat(context, times, [&] { through::bucket_copy_in(self, slot, gradient, weight); });
  };
}

void repeat_accumulate(FaultContext& context, int times) {
  seams().accumulate = [&context, times](gradient::Accumulator& self, std::size_t bucket,
                                         at::Tensor sum, double weight) {
    if (!sum.any().item<bool>()) return through::accumulate(self, bucket, sum, weight);
    repeat(context, times, [&] { through::accumulate(self, bucket, sum.clone(), weight); });
  };
}

void repeat_refresh(FaultContext& context, int times) {
  seams().refresh = [&context, times](parameter::PageTable& self) {
    repeat(context, times, [&] { through::refresh(self); });
  };
}

void repeat_copy_out(FaultContext& context, int times) {
  seams().copy_out = [&context, times](const at::Tensor& columns, const at::Tensor& flat) {
    repeat(context, times, [&] { through::copy_out(columns, flat); });
  };
}

void repeat_hold(FaultContext& context, int times) {
  seams().scaler_hold = [&context, times](loss::LossScaler& self, const void* engine) {
    if (!self.is_needed()) return through::scaler_hold(self, engine);
    repeat(context, times, [&] { through::scaler_hold(self, engine); });
  };
}

}  // namespace

const std::vector<NumberSite>& number_sites() {
  static const std::vector<NumberSite> all = {
      {"factor", "the factor of the average", "reduction", "gradient", at_factor},
      {"norm", "the norm", "clip", "norm", at_norm},
      {"threshold", "the threshold to clip at", "clip", "clip", at_threshold},
      {"weight", "the weight of a pass", "accumulation", "gradient", at_weight},
      {"lr", "the learning rate", "optimizer", "update", setting(&OptimizerConfig::lr)},
      {"decay", "the weight decay", "optimizer", "update", setting(&OptimizerConfig::weight_decay)},
      {"beta1", "beta1", "optimizer", "update", setting(&OptimizerConfig::beta1)},
      {"beta2", "beta2", "optimizer", "update", setting(&OptimizerConfig::beta2)},
      {"momentum", "the momentum", "optimizer", "update", setting(&OptimizerConfig::momentum)},
  };
  return all;
}

const std::vector<CallSite>& call_sites() {
  static const std::vector<CallSite> all = {
      {"update", "the update of a run of elements", "optimizer", "update", repeat_update},
      {"clip", "clipping", "clip", "clip", repeat_clip},
      {"copy_in", "copying a gradient into its bucket", "bucket", "gradient", repeat_copy_in},
      {"accumulate", "adding a sum to the window", "accumulation", "gradient", repeat_accumulate},
      {"refresh", "rounding masters to what is paged", "parameter", "parameter", repeat_refresh},
      {"copy_out", "filling a parameter with what was gathered", "parameter", "parameter",
       repeat_copy_out},
      {"hold", "telling the loss scale of a pass", "loss_scale", "scale", repeat_hold},
  };
  return all;
}

}  // namespace equigrad::conformance::faults
