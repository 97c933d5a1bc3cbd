// Stepper: what `world` ranks would compute, in one process: backward passes in, steps out.
//
// Whoever drives it runs each rank's passes in plain torch calls, in that rank's order, and then
// the step of all of them. The plain run is Order::Exact in fp32; the oracle is the same in fp64;
// the twin is a run in an engine's precision and order of additions:
//
//   c[p][r] = what rank r's p-th pass gave, in the compute dtype; zeros when it gave nothing.
//             A pass whose backward runs another inside (reentrant checkpointing) gives a
//             parameter one contribution a graph task: its k-th with the k-th of other ranks
//   tree    = neighbours (0,1) (2,3).. added in fp32, level by level; an odd last one carried up
//   A(x)    = x rounded to the accumulate dtype
//   v[p]    = the pass's weight; a product with v = 1 is left out, another rounded to fp32
//
//   AddThenReduce (stages 0, 1)  w_r = 0; w_r = A(w_r + c[p][r] v[p]) for each p;  R = A(tree(w))
//   ReduceThenAdd (stages 2, 3)  R = A(tree(c[0]) v[0]);  R = A(R + tree(c[p]) v[p]) for later p
//   Exact                        R = the sum of all c v in fp64
//
//   gradient = R * f, f = 1 / (accumulation_steps * world) rounded to fp32 (Exact: in fp64, then
//   rounded once); then clipping; then the update of the master weights; then model = cast(masters)
//
// Invariants: a parameter that no rank used in the window keeps its bits, its state and its step
//   count; so do all of them when the norm is not finite. A pass that throws gives nothing. In bf16
//   the masters are fp32 and start as the weights before they were rounded; in fp32 and fp64 the
//   masters are the model's own weights. In fp64 everything is fp64.
// Shapes: every recorded tensor has its parameter's shape and is a copy.
// Errors: c10::Error for a recipe that cannot be run, for ranks with different numbers of passes.
// Depends on: model.hpp, optimizer.hpp, norm.hpp; autograd's hooks in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/model.hpp"
#include "reference/optimizer.hpp"
#include "reference/precision.hpp"

namespace equigrad::reference {

enum class Order { AddThenReduce, ReduceThenAdd, Exact };

struct Recipe {
  std::string model = "gpt";
  uint64_t seed = 1;
  int64_t world = 1;
  int64_t accumulation_steps = 1;
  int64_t steps = 3;  // for whoever drives the reference, which does not read it
  OptimizerSpec optimizer;
  double gradient_clipping = 0;                  // 0: off
  at::ScalarType compute_dtype = at::kFloat;     // kFloat, kBFloat16, kHalf or kDouble
  at::ScalarType accumulate_dtype = at::kFloat;  // kFloat or kBFloat16; not read in fp64 or Exact
  Order order = Order::Exact;
  PrecisionSpec precision;
  bool absolute_sums = true;  // fill StepRecord::absolute_sum
};

using TensorMap = std::map<std::string, at::Tensor>;

struct StepRecord {
  std::vector<at::Tensor> losses;  // [micro_batch * world + rank], scalars; of a Trainer
  TensorMap gradients;   // averaged and clipped, in the masters' dtype; used parameters only
  TensorMap parameters;  // as the model sees them; all, frozen and empty ones too
  TensorMap masters;     // trainable and not empty
  std::map<std::string, TensorMap> state;     // state name -> trainable and not empty
  std::map<std::string, int64_t> step_count;  // updates so far; trainable and not empty
  TensorMap absolute_sum;  // sum of |c| / (accumulation_steps * world), fp64; used parameters only
  double grad_norm = 0;    // before clipping
  bool skipped = false;    // for a norm that is not finite
};

using Contributions = std::vector<std::vector<at::Tensor>>;  // [pass][rank], one parameter's
// R of the table above, from contributions of equal shape and dtype. No weights: each is 1.
at::Tensor sum_contributions(const Contributions& contributions, Order order,
                             at::ScalarType accumulate_dtype, std::vector<double> weights = {});

class Stepper {
 public:
  // Converts the given fp32 model and trains it in place.
  Stepper(const Recipe& recipe, std::shared_ptr<Model> model);

  // `backward` runs one backward pass of this rank; others may be nested for other steppers.
  void pass(int64_t rank, const std::function<void()>& backward, double weight = 1.0);
  // Empties the rank's window; what was assigned is forgotten with the first rank's.
  void discard(int64_t rank);
  // The step of all ranks, which empties their windows.
  StepRecord step();

  void set_accumulation_steps(int64_t steps) { recipe_.accumulation_steps = steps; }
  void set_lr(double lr);  // of every parameter

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
    at::Tensor master;  // undefined when frozen or empty
    TensorMap state;
    OptimizerSpec spec;  // with its group's settings
    int64_t step_count = 0;
    std::vector<std::vector<Parts>> passes;  // [rank][pass]
    std::shared_ptr<Parts> arrived;          // in the pass under way
    at::Tensor assigned;                     // a gradient that was set
  };

  void make_slots();
  const Slot& slot_of(const std::string& name) const;
  void average(const Slot& slot, StepRecord& record) const;
  void clip(StepRecord& record) const;
  void apply(Slot& slot, const at::Tensor& gradient);
  void copy_weights(StepRecord& record) const;

  Recipe recipe_;
  std::shared_ptr<Model> model_;
  std::vector<Slot> slots_;
  std::vector<std::vector<double>> weights_;  // [rank][pass]
};

}  // namespace equigrad::reference
