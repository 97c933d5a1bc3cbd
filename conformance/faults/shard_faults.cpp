// Faults of the norm and of clipping.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "conformance/faults/fault_groups.hpp"

namespace equigrad::conformance::faults {
namespace {

using Measured = shard::Measure;

// Another measure than the one that was taken.
void change_measure(FaultContext& context, std::function<Measured(Measured)> change) {
  seams().measure = [&context, change](const at::Tensor& gradient, comm::Communicator* over,
                                       NormType type, const std::vector<shard::Span>& repeated) {
    const auto measured = through::measure(gradient, over, type, repeated);
    const auto other = change(measured);
    if (other.norm != measured.norm || other.non_finite_numel != measured.non_finite_numel)
      context.acted();
    return other;
  };
}

using Factor = std::function<double(double norm, double threshold)>;

// What the gradient is multiplied by, whatever the threshold says.
void change_clip(FaultContext& context, Factor factor) {
  seams().clip = [&context, factor](const at::Tensor& gradient, double norm, double threshold) {
    const auto right = gradient.clone();
    through::clip(right, norm, threshold);
    const double wrong = factor(norm, threshold);
    if (wrong != 1.0) gradient.copy_(gradient.to(at::kFloat).mul_(wrong));
    if (!same_bits(gradient, right)) context.acted();
    return wrong;
  };
}

void measure_own_shard(FaultContext& context) {
  seams().measure = [&context](const at::Tensor& gradient, comm::Communicator* over, NormType type,
                               const std::vector<shard::Span>& repeated) {
    if (over == nullptr) return through::measure(gradient, over, type, repeated);
    const auto whole = through::measure(gradient, over, type, repeated);
    const auto own = through::measure(gradient, nullptr, type, repeated);
    if (own.norm != whole.norm) context.acted();
    return Measured{own.norm, whole.non_finite_numel};
  };
}

void measure_by_two(FaultContext& context) {
  seams().measure = [&context](const at::Tensor& gradient, comm::Communicator* over, NormType type,
                               const std::vector<shard::Span>& repeated) {
    if (type != NormType::Two) context.acted();
    return through::measure(gradient, over, NormType::Two, repeated);
  };
}

void measure_the_last_gradient(FaultContext& context) {
  auto last = std::make_shared<std::optional<Measured>>();
  change_measure(context, [last](Measured measured) {
    const auto before = *last;
    *last = measured;
    return before ? Measured{before->norm, measured.non_finite_numel} : measured;
  });
}

// Of AP-02: the threshold is for the gradient, the norm for the scaled one.
void clip_before_unscaling(FaultContext& context) {
  auto scale = std::make_shared<double>(1);
  seams().loss_scale = [scale](const at::Tensor& tensor,
                               const std::shared_ptr<loss::LossScaler>& scaler) {
    if (scaler) *scale = scaler->scale();
    return through::loss_scale(tensor, scaler);
  };
  seams().clip = [&context, scale](const at::Tensor& gradient, double norm, double threshold) {
    const auto right = gradient.clone();
    through::clip(right, norm, threshold);
    const double factor = through::clip(gradient, norm * *scale, threshold);
    if (!same_bits(gradient, right)) context.acted();
    return factor;
  };
}

double coefficient(double norm, double threshold) { return threshold / (norm + 1e-6); }

}  // namespace

std::vector<Fault> shard_faults() {
  return {
      at_seams("clip.skipped", "a gradient above the threshold is not clipped", {"DS-58"}, "clip",
               [](FaultContext& s) { change_clip(s, [](double, double) { return 1.0; }); }),
      at_seams("clip.max_for_min", "the greater of 1 and the coefficient, not the lesser",
               {"DS-59"}, "clip",
               [](FaultContext& s) {
                 change_clip(s, [](double norm, double threshold) {
                   return std::max(1.0, coefficient(norm, threshold));
                 });
               }),
      at_seams("clip.always", "a gradient below the threshold is made as large as it", {}, "clip",
               [](FaultContext& s) { change_clip(s, coefficient); }),
      at_seams("clip.twice", "the coefficient is applied twice", {}, "clip",
               [](FaultContext& s) {
                 change_clip(s, [](double norm, double threshold) {
                   const double once = std::min(1.0, coefficient(norm, threshold));
                   return once * once;
                 });
               }),
      at_seams("clip.before_unscaling", "the norm of the scaled gradient is held to the threshold",
               {"AP-02"}, "clip", clip_before_unscaling),
      at_seams("clip.zero_times_infinity", "an infinite norm becomes NaN and stops nothing",
               {"DS-60"}, "scale",
               [](FaultContext& s) {
                 change_measure(s, [](Measured measured) {
                   if (measured.non_finite_numel == 0) return measured;
                   return Measured{std::numeric_limits<double>::quiet_NaN(), 0};
                 });
               }),
      at_seams("clip.norm_reduced_twice", "the squared norm is summed over the world once more",
               {"DS-62"}, "norm",
               [](FaultContext& s) {
                 change_measure(s, [&s](Measured measured) {
                   measured.norm *= std::sqrt(static_cast<double>(s.world_size()));
                   return measured;
                 });
               }),
      at_seams("clip.norm_of_the_last_gradient", "the norm is that of the step before", {"DS-64"},
               "norm", measure_the_last_gradient),
      at_seams("clip.norm_of_this_shard", "the norm is reduced over no group", {"PT-08"}, "norm",
               measure_own_shard),
      at_seams("clip.norm_of_an_empty_slot", "the norm is that of a gradient that is not there",
               {"MG-13"}, "norm",
               [](FaultContext& s) {
                 change_measure(s, [](Measured measured) {
                   return Measured{0, measured.non_finite_numel};
                 });
               }),
      at_seams("clip.norm_type_ignored", "the norm is the 2-norm, whatever was asked for",
               {"CA-05"}, "norm", measure_by_two),
      at_seams("clip.norm_in_fp32", "the norm is rounded to fp32", {}, "norm",
               [](FaultContext& s) {
                 change_measure(s, [](Measured measured) {
                   return Measured{static_cast<double>(static_cast<float>(measured.norm)),
                                   measured.non_finite_numel};
                 });
               }),
  };
}

}  // namespace equigrad::conformance::faults
