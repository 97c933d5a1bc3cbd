// Faults of the loss scale: multiplied and divided not as often, or not by the same.
#include <ATen/ATen.h>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

// The scale of the passes, from the last call of scale().
struct Scale {
  bool is_needed = false;
  double value = 1;
};

std::shared_ptr<const Scale> watch_scale() {
  auto scale = std::make_shared<Scale>();
  seams().loss_scale = [scale](const at::Tensor& tensor,
                               const std::shared_ptr<loss::LossScaler>& scaler) {
    if (scaler) *scale = {scaler->is_needed(), scaler->scale()};
    return through::loss_scale(tensor, scaler);
  };
  return scale;
}

void scale_nothing(FaultContext& context) {
  seams().loss_scale = [&context](const at::Tensor& tensor,
                                  const std::shared_ptr<loss::LossScaler>& scaler) {
    if (scaler && scaler->is_needed()) context.acted();
    return tensor;
  };
}

void scale_twice(FaultContext& context) {
  seams().loss_scale = [&context](const at::Tensor& tensor,
                                  const std::shared_ptr<loss::LossScaler>& scaler) {
    if (scaler && scaler->is_needed()) context.acted();
    return through::loss_scale(through::loss_scale(tensor, scaler), scaler);
  };
}

// Only rank 0 hears of an overflow.
void keep_overflow_to_rank_0(FaultContext& context) {
  seams().measure = [&context](const at::Tensor& gradient, comm::Communicator* over, NormType type,
                               const std::vector<shard::Span>& repeated) {
    auto measure = through::measure(gradient, over, type, repeated);
    if (context.rank() != 0 && measure.non_finite_numel > 0) {
      context.acted();
      measure.non_finite_numel = 0;
    }
    return measure;
  };
}

void report_by_the_updated_scale(FaultContext& context) {
  const auto scale = watch_scale();
  seams().measure = [&context, scale](const at::Tensor& gradient, comm::Communicator* over,
                                      NormType type, const std::vector<shard::Span>& repeated) {
    auto measure = through::measure(gradient, over, type, repeated);
    if (scale->is_needed && context.step() == 1 && measure.norm != 0) {
      context.acted();
      measure.norm /= 2;
    }
    return measure;
  };
}

// A right scaler goes along: the fault acts when the two scales part.
void change_the_scale(FaultContext& context, int times, std::function<bool(bool)> overflow) {
  auto right = std::make_shared<std::optional<loss::LossScaler>>();
  seams().scaler_stepped = [&context, times, overflow, right](
                               loss::LossScaler& self, const void* engine, bool had_overflow) {
    if (!self.is_needed()) return through::scaler_stepped(self, engine, had_overflow);
    if (!*right) *right = self;
    through::scaler_stepped(**right, engine, had_overflow);
    for (int time = 0; time < times; ++time) {
      through::scaler_hold(self, engine);
      through::scaler_stepped(self, engine, overflow(had_overflow));
    }
    if (self.scale() != (*right)->scale()) context.acted();
  };
}

}  // namespace

std::vector<Fault> loss_faults() {
  return {
      at_seams(
          "loss_scale.removed_where_there_is_none",
          "gradients of a loss that was not scaled are divided by 65536", {"DS-07"}, "gradient",
          [](FaultContext& s) {
            const auto scale = watch_scale();
            change_factor(
                s, [scale](double factor) { return scale->is_needed ? factor : factor / 65536; });
          }),
      at_seams("loss_scale.not_applied", "the loss is not scaled, but the gradient is divided",
               {"DS-09"}, "forward", scale_nothing),
      at_seams("loss_scale.applied_twice", "the loss is scaled twice", {}, "forward", scale_twice),
      at_seams("loss_scale.removed_twice", "the gradient is divided by the scale twice", {},
               "gradient",
               [](FaultContext& s) {
                 const auto scale = watch_scale();
                 change_factor(s, [scale](double factor) { return factor / scale->value; });
               }),
      at_seams("loss_scale.kept", "the gradient is not divided by the scale", {}, "gradient",
               [](FaultContext& s) {
                 const auto scale = watch_scale();
                 change_factor(s, [scale](double factor) { return factor * scale->value; });
               }),
      at_seams("loss_scale.overflow_not_shared",
               "an overflow is seen by rank 0 only, and the others go on", {}, "scale",
               keep_overflow_to_rank_0),
      at_seams("loss_scale.norm_by_the_updated_scale",
               "the norm of the second step is that of the scale that grew after it", {"DS-63"},
               "norm", report_by_the_updated_scale),
      at_seams(
          "loss_scale.counts_twice", "every step counts twice for the loss scale", {}, "scale",
          [](FaultContext& s) { change_the_scale(s, 2, [](bool overflow) { return overflow; }); }),
      at_seams(
          "loss_scale.never_counts", "no step counts for the loss scale", {}, "scale",
          [](FaultContext& s) { change_the_scale(s, 0, [](bool overflow) { return overflow; }); }),
      at_seams("loss_scale.ignores_overflow", "a skipped step does not lower the scale", {},
               "scale",
               [](FaultContext& s) { change_the_scale(s, 1, [](bool) { return false; }); }),
  };
}

}  // namespace equigrad::conformance::faults
