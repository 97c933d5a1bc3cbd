// Trainer: what `world` ranks would compute, in one process, one optimizer step at a time.
//
// The plain run is Order::Exact in fp32; the oracle is the same in fp64; the twin is a run in an
// engine's precision and order of additions:
//
//   c[p][r] = gradient of rank r in backward pass p, in the compute dtype; zeros when unused
//   tree    = neighbours (0,1) (2,3).. added in fp32, level by level; an odd last one carried up
//   A(x)    = x rounded to the accumulate dtype
//
//   AddThenReduce (stages 0, 1)  w_r = 0; w_r = A(w_r + c[p][r]) for each p;  R = A(tree(w))
//   ReduceThenAdd (stages 2, 3)  R = A(tree(c[0]));  R = A(R + tree(c[p])) for each later p
//   Exact                        R = the sum of all c in fp64
//
//   gradient = R * f, f = 1 / (accumulation_steps * world) rounded to fp32 (Exact: in fp64, then
//   rounded once); then clipping; then the update of the master weights; then model = cast(masters)
//
// Invariants: a parameter that no rank used in the window keeps its bits, its state and its step
//   count. In bf16 the masters are fp32 and start as the weights before they were rounded; in fp32
//   and fp64 the masters are the model's own weights. In fp64 everything is fp64.
// Shapes: every recorded tensor has its parameter's shape and is a copy.
// Errors: c10::Error for a recipe that cannot be run.
// Depends on: model.hpp, optimizer.hpp, norm.hpp, data.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/data.hpp"
#include "reference/model.hpp"
#include "reference/optimizer.hpp"

namespace equigrad::reference {

enum class Order { AddThenReduce, ReduceThenAdd, Exact };

struct Recipe {
  std::string model = "gpt";
  uint64_t seed = 1;
  int64_t world = 1;
  int64_t accumulation_steps = 1;
  int64_t steps = 3;  // for whoever drives the trainer; Trainer itself does not read it
  OptimizerSpec optimizer;
  double gradient_clipping = 0;                  // 0: off
  at::ScalarType compute_dtype = at::kFloat;     // kFloat, kBFloat16 or kDouble
  at::ScalarType accumulate_dtype = at::kFloat;  // kFloat or kBFloat16; not read in fp64 or Exact
  Order order = Order::Exact;
  bool absolute_sums = true;  // fill StepRecord::absolute_sum
};

using TensorMap = std::map<std::string, at::Tensor>;

struct StepRecord {
  std::vector<at::Tensor> losses;  // [micro_batch * world + rank], scalars
  TensorMap gradients;   // averaged and clipped, in the masters' dtype; used parameters only
  TensorMap parameters;  // as the model sees them; all, frozen and empty ones too
  TensorMap masters;     // trainable and not empty
  std::map<std::string, TensorMap> state;     // state name -> trainable and not empty
  std::map<std::string, int64_t> step_count;  // updates so far; trainable and not empty
  TensorMap absolute_sum;  // sum of |c| / (accumulation_steps * world), fp64; used parameters only
  double grad_norm = 0;    // before clipping
};

using Contributions = std::vector<std::vector<at::Tensor>>;  // [pass][rank], one parameter's
// R of the table above, from contributions of equal shape and dtype.
at::Tensor sum_contributions(const Contributions& contributions, Order order,
                             at::ScalarType accumulate_dtype);

class Trainer {
 public:
  // The batch of (step, rank, micro_batch), floats in any dtype; steps count from 0.
  using BatchSource = std::function<Batch(int64_t step, int64_t rank, int64_t micro_batch)>;

  // The recipe's model on its own data. `data` must outlive the trainer.
  Trainer(const Recipe& recipe, const Data& data);
  // A given fp32 model, which the trainer converts and trains in place.
  Trainer(const Recipe& recipe, std::shared_ptr<Model> model, BatchSource batches);

  // Runs the next optimizer step.
  StepRecord train_step();

  Model& model() { return *model_; }

 private:
  struct Slot {  // one unique parameter
    std::string name;
    at::Tensor parameter;
    at::Tensor master;  // undefined when frozen or empty
    TensorMap state;
    OptimizerSpec spec;  // with its group's settings
    int64_t step_count = 0;
    Contributions contributions;
    bool used = false;
  };

  void make_slots();
  void backward_pass(int64_t rank, int64_t micro_batch, StepRecord& record);
  void average(Slot& slot, StepRecord& record);
  void clip(StepRecord& record);
  void apply(Slot& slot, const at::Tensor& gradient);
  void copy_weights(StepRecord& record) const;

  Recipe recipe_;
  std::shared_ptr<Model> model_;
  BatchSource batches_;
  std::vector<Slot> slots_;
  int64_t step_ = 0;
};

}  // namespace equigrad::reference
