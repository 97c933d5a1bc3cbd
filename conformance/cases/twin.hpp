// Twin: what a correct engine must compute for a case, as one file that its ranks read.
//
//   <order>/<step>/gradient|master|parameter|exp_avg|...|losses/<name>     the twin, bit for bit
//   <order>/<step>  grad_norm, skipped, and loss_scale, that of its passes; for the step after the
//                   last one too
//   <order>/<step>/buffer<rank>/<name>      what a rank's buffers hold after the step
//   <order>/<step>  lr, beta1: by group, where the plan sets them
//   <order>         first_applied, a step; -1: none is
//   plain/<first_applied>/gradient|absolute_sum/<name>  in the engine's precision, summed exactly
//   precise/<first_applied>/gradient/<name>             in fp64 for plain fp32, else in fp32
//   unsplit, unsplit_precise/<first_applied>/gradient/<name>   both again, of the unsplit model
//                   that each data rank would have alone, where ranks share one
//   unbounded       why these runs are not there; empty: they are
//
// Invariants: one file serves all stages and styles of a tuple; a gradient that is absent was used
// by nobody. Both orders of addition are there unless they agree (one micro-batch), or exact_grid
// alone where sums are exact.
// Shapes: those of the parameters; losses [accumulation * world], of all steps, fp32. At a place
// along a tensor group a twin gives that rank's parts, of all but parameters, which are whole.
// Errors: std::runtime_error for a file that is not a twin; c10::Error from the reference.
// Depends on: case_model.hpp, gated_model.hpp, recipe.hpp, oracle/tensor_file.hpp,
// oracle/underflow.hpp; unsplit_model.hpp in the source.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/cases/gated_model.hpp"
#include "conformance/cases/matrix.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "conformance/oracle/underflow.hpp"
#include "reference/recipe.hpp"
#include "reference/schedule.hpp"

namespace equigrad::conformance {

// A model that ranks share, as so many data ranks would have it, each for itself.
struct UnsplitPlan {
  MakeCaseModel make_model;
  int64_t world = 1;
};

// What a twin is made of.
struct TwinPlan {
  MakeCaseModel make_model;
  std::function<reference::Recipe(double threshold, reference::SumOrder order)> recipe;
  std::vector<reference::SumOrder> orders;
  std::optional<double> threshold;  // to clip at; nothing: half of the norm of the first step that
                                    // is applied
  std::optional<double> if_none_is = std::nullopt;  // then it is this; nothing: an error
  int steps = 0;
  bool needs_bounds = true;    // false: a model that cannot run in more bits has none
  std::string unbounded = {};  // why there are no bounds, whatever the model can; empty: there are
  // What the groups' rates, and first betas, are from this step on, after so many updates that were
  // applied; empty lists change nothing.
  std::function<reference::Rates(int step, int64_t applied)> rates = {};
  std::optional<UnsplitPlan> unsplit = std::nullopt;  // nothing: ranks share nothing
};
TwinPlan plan_of(const CaseSpec& spec, uint64_t seed, const reference::Data& data);
// What the stages of a tuple add in; with one micro-batch there is one order only.
std::vector<reference::SumOrder> orders_of(const CaseSpec& spec);

// Runs the reference and writes the file. Gives what the loss scale loses of the more precise
// gradient, in precisions that have one.
std::optional<oracle::UnderflowLedger> make_twin(const TwinPlan& plan, const std::string& path);
// For the tuple of `spec`; its stage and style do not matter.
std::optional<oracle::UnderflowLedger> make_twin(const CaseSpec& spec, uint64_t seed,
                                                 const reference::Data& data,
                                                 const std::string& path);

// One step of a record under `prefix`, as tensors of a file.
void add_step(oracle::TensorFile& file, const std::string& prefix,
              const reference::StepRecord& record);

// What a tensor rank has: of parameters that are cut, part `part` of `parts`.
struct TensorPlace {
  Cuts cuts = {};
  int part = 0;
  int parts = 1;
  // [numel] flat, of a whole parameter's numbers in its shape.
  at::Tensor own(const std::string& name, const at::Tensor& whole) const;
};

class Twin {
 public:
  Twin(const std::string& path, reference::SumOrder order, TensorPlace place = {});

  // [numel] flat, or undefined. `what` is gradient, master, parameter or the name of a state.
  at::Tensor tensor(int step, const std::string& what, const std::string& name) const;
  // Of the first step that is applied.
  at::Tensor other(const std::string& run, const std::string& what, const std::string& name) const;
  float loss(int step, int64_t index) const;
  int first_applied() const;
  double grad_norm(int step) const;
  bool skipped(int step) const;
  double loss_scale(int step) const;       // of its passes; 1 without one
  double threshold() const;                // to clip at; 0: off
  reference::Rates rates(int step) const;  // of its update, by group; empty: never set
  std::string unbounded() const;           // why there are no bounds; empty: there are

 private:
  double number(int step, const std::string& what) const;

  std::shared_ptr<const oracle::TensorFile> file_;  // of the Twin before, where it is the same
  std::string order_;
  TensorPlace place_;
};

}  // namespace equigrad::conformance
