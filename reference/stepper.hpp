// Stepper: what `world` ranks would compute, in one process: backward passes in, steps out.
//
// Whoever drives it runs each rank's passes in plain torch calls, in that rank's order, and then
// the step of all of them. The plain run is SumOrder::Fp64 in fp32; the oracle is the same in fp64;
// the twin is a run in an engine's precision and order of additions. With R of sum.hpp, and S, a,
// M, T and P of precision.hpp:
//
//   gradient = M(R a / S): R (a / S) is one product in fp32 (Exact: in fp64, then to M by way of
//   fp32); then clipping; then the update of the masters; then model = P(masters), of safe modules
//   P(T(masters)); then the scale follows, once
//
// Invariants: a parameter that no rank used in the window keeps its bits, its state and its step
//   count; so do all of them when the norm is not finite. A pass that throws gives nothing. Masters
//   wider than the model start as the weights before they were rounded; masters of the compute
//   dtype are the model's own weights, but for safe modules. In fp64 everything is fp64, buffers
//   too; otherwise buffers keep their dtype.
//   The scale of steppers that share it changes when none of them holds passes and one has stepped
//   since it last could: once, an overflow if any of them overflowed.
//   A model on another device has its passes there; contributions, masters and all that is recorded
//   are on the CPU.
// Shapes: every recorded tensor has its parameter's shape and is a copy.
// Errors: c10::Error for a recipe that cannot be run, for a trainable parameter that is not in
//   exactly one group, for rates that are not one for each group, for ranks with different numbers
//   of passes, for sharing a scale in the middle of a window; those of loss_scale.hpp and
//   autocast.hpp.
// Depends on: recipe.hpp, model.hpp, autocast.hpp, loss_scale.hpp; norm.hpp and autograd's hooks
//   in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/autocast.hpp"
#include "reference/loss_scale.hpp"
#include "reference/models/model.hpp"
#include "reference/optimizer.hpp"
#include "reference/recipe.hpp"

namespace equigrad::reference {

using TensorMap = std::map<std::string, at::Tensor>;

struct StepRecord {
  std::vector<at::Tensor> losses;  // [micro_batch * world + rank], scalars; of a Trainer
  TensorMap gradients;   // averaged and clipped, in the masters' dtype; used parameters only
  TensorMap parameters;  // as the model sees them; all, frozen and empty ones too
  TensorMap masters;     // trainable and not empty
  std::map<std::string, TensorMap> state;     // state name -> trainable and not empty
  std::map<std::string, int64_t> step_count;  // updates so far; trainable and not empty
  TensorMap absolute_sum;  // sum of |c| / S / (accumulation_steps * world), for Averaging::Never
                           // / accumulation_steps alone, fp64; used parameters only
  double grad_norm = 0;    // before clipping
  double loss_scale = 1;   // S of this step's passes
  bool skipped = false;    // for a norm that is not finite
};

class Stepper {
 public:
  // Converts the given fp32 model and trains it in place.
  Stepper(const Recipe& recipe, std::shared_ptr<Model> model);

  // `backward` runs one backward pass of this rank, of a loss times loss_scale() in fp32; others
  // may be nested for other steppers.
  void pass(int64_t rank, const std::function<void()>& backward, double weight = 1.0);
  // Empties the rank's window; what was assigned is forgotten with the first rank's.
  void discard(int64_t rank);
  // The step of all ranks, which empties their windows.
  StepRecord step();

  double loss_scale() const { return shared_->scale.scale(); }
  // From now on both follow one scale, this stepper's. The other one must not share with others.
  void share_loss_scale(Stepper& other);
  // To hold during a forward of the model.
  AutocastGuard autocast() const { return {recipe_.precision.autocast, device()}; }

  // As of a stepper that is made of these masters now, between windows: states and their counts,
  // and the scale.
  void forget_states();
  void forget_loss_scale();

  void set_accumulation_steps(int64_t steps) { recipe_.accumulation_steps = steps; }
  // The rates and first betas of coming steps: of every group, or by group in the order of the
  // model's groups(). SGD reads no beta.
  void set_lr(double lr);
  void set_lr(const std::vector<double>& by_group);
  void set_beta1(const std::vector<double>& by_group);
  std::vector<double> lr() const;  // by group, of the next step

  // `what` is "gradient" (the average so far, before clipping; undefined when no rank used the
  // parameter), "master" or the name of a state. A gradient that was set is what later passes are
  // added to.
  at::Tensor get(const std::string& what, const std::string& name) const;
  void set(const std::string& what, const std::string& name, const at::Tensor& value);

  Model& model() { return *model_; }

 private:
  using Parts = std::vector<at::Tensor>;  // of one pass, in the order of arrival
  struct Slot {                           // one unique parameter
    std::string name;
    at::Tensor parameter;
    at::Tensor master;                      // undefined when frozen or empty
    std::optional<at::ScalarType> sent_in;  // T
    bool safe = false;                      // of a safe module under autocast
    TensorMap state;
    size_t group = 0;  // of groups_; not read when frozen
    int64_t step_count = 0;
    std::vector<std::vector<Parts>> passes;  // [rank][pass]
    std::shared_ptr<Parts> arrived;          // in the pass under way
    at::Tensor assigned;                     // a gradient that was set
  };

  struct SharedScale {
    LossScale scale;
    size_t passes = 0;  // that the sharing steppers hold
    bool stepped = false, overflow = false;
  };

  at::DeviceType device() const { return slots_.at(0).parameter.device().type(); }
  std::map<std::string, size_t> make_groups();
  void make_slots();
  void convert(Slot& slot);
  void show(Slot& slot);
  const Slot& slot_of(const std::string& name) const;
  const OptimizerSpec& spec_of(const Slot& slot) const { return groups_[slot.group]; }
  void average(const Slot& slot, StepRecord& record) const;
  void clip(StepRecord& record) const;
  void apply(Slot& slot, const at::Tensor& gradient);
  void copy_weights(StepRecord& record) const;

  Recipe recipe_;
  std::shared_ptr<Model> model_;
  std::vector<OptimizerSpec> groups_;  // the recipe's, with the settings of the model's groups
  std::vector<Slot> slots_;
  std::vector<std::vector<double>> weights_;  // [rank][pass]
  std::shared_ptr<SharedScale> shared_;
};

}  // namespace equigrad::reference
