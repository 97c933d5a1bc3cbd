// SliceOptimizer: an optimizer of the user's, which updates this rank's slices of the parameters.
//
// The engine keeps masters and gradients in flat shards; what an optimizer is given are views of
// them: own() once, when the engine is made, then step() at every boundary, after clipping.
// Invariants: what it does to an element depends on that element alone, its gradient, its states
// and the hyper-parameters, so a slice gets what it would get inside its whole parameter. It is of
// one kind with the same hyper-parameters on every rank. A parameter without a gradient, which no
// rank used, keeps every bit, as torch leaves it.
// Shapes: flat, [end - begin] of the slice, fp32.
// Errors: an exception of step() comes out of the engine's, and the other ranks get an error that
// names the rank; masters may be written in part.
// Depends on: ATen tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace equigrad {

// What this rank owns of a trainable parameter: elements [begin, end) of it, none where the ranks
// before have them all.
struct OwnedSlice {
  std::string name;
  at::Tensor parameter;  // the model's
  int64_t begin = 0;
  int64_t end = 0;
  at::Tensor master;  // a leaf and a view; to be written in place
};

// By name, as large as the slice.
using SliceStates = std::map<std::string, at::Tensor>;

class SliceOptimizer {
 public:
  virtual ~SliceOptimizer() = default;

  // Every trainable parameter that is not empty, once. Their number from then on is the place here.
  // Masters have no values yet.
  virtual void own(const std::vector<OwnedSlice>& slices) = 0;
  // By slice, averaged and clipped; undefined: no rank used the parameter. They may be written.
  virtual void step(const std::vector<at::Tensor>& gradients) = 0;

  virtual std::vector<double> lr() const = 0;  // by group of its own
  // As many, by group. Either may be empty: as it is; beta1 does nothing where there is none.
  virtual void set_rates(const std::vector<double>& lr, const std::vector<double>& beta1) = 0;

  // States of a slice that are as large as it, and exist: the same on every rank.
  virtual std::vector<std::string> state_names(std::size_t slice) const = 0;
  virtual at::Tensor state(std::size_t slice, const std::string& name) = 0;  // not a copy
  virtual int64_t state_bytes() const = 0;                                   // of all tensors
  // What it is: states are given back to one of the same kind alone.
  virtual std::string kind() const = 0;
  // What else a checkpoint keeps of a slice: numbers, as Adam's step, in a text of this class's
  // own, the same on every rank. Empty: nothing.
  virtual std::string numbers(std::size_t slice) const = 0;
  // Instead of what the slice has: copies of these states, and numbers() as they were saved.
  virtual void restore(std::size_t slice, const SliceStates& states,
                       const std::string& numbers) = 0;
};

}  // namespace equigrad
