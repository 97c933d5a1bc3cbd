// Explain: turns a wrong gradient into a place and a likely cause.
//
// The commonest fault is a wrong coefficient on (rank, micro-batch): lost, doubled, divided twice,
// not averaged. Each hypothesis predicts the wrong elements from the right ones, and is offered
// only where its prediction is what was got, but for its own roundings, on the elements that it
// claims, and these are too many to be an accident (search.hpp). Otherwise no known fault explains
// it.
//
// Invariants: says nothing about right or wrong: it is asked only after a comparison failed. The
//   first hypothesis has the least residual; a simpler one comes first among equals.
// Shapes: `got` and `want` are the same flat slice [begin, begin + numel) of one parameter, or all
//   of it; contributions and previous are like `want`. Units: ulp of `got`'s dtype.
// Errors: std::runtime_error for sizes that do not agree.
// Depends on: bits.hpp, coefficients.hpp, ATen.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "conformance/diagnosis/coefficients.hpp"

namespace equigrad::conformance::oracle {

// What the values would be under a fault that whoever asks knows of.
struct Prediction {
  std::string cause;
  at::Tensor values;
  double roundings = 0;   // by which what is got may differ, in ulp of the largest number
  at::Tensor sizes = {};  // of that number, element by element; undefined: of got and values
};

struct Evidence {
  std::string name;  // of the parameter
  at::Tensor got;
  at::Tensor want;
  int64_t world = 1;
  int64_t accumulation_steps = 1;
  int64_t shards = 1;          // pieces the parameter is cut into: 1 at stage 0, else world
  int64_t begin = 0;           // of `got` in the whole parameter
  std::vector<int64_t> shape;  // of the whole parameter; empty: want.sizes()
  // Optional from here on.
  at::Tensor bound;     // a difference within it is none; without it any differing bit counts
  std::string formula;  // what the bound is made of, for the reader
  std::vector<std::vector<at::Tensor>> contributions;  // [rank][micro_batch], not averaged
  at::Tensor previous;                                 // the right value one step earlier
  at::Tensor whole;                          // the right value of the whole parameter, flat
  std::map<std::string, at::Tensor> others;  // right values of other parameters, whole
  std::string what = "gradient";             // that the values are: gradient, master, parameter
  bool is_gradient = true;                   // which alone is averaged, scaled and clipped
  bool is_number = false;                    // one value of the run: of no place, no shard
  std::vector<Prediction> predictions;
  double loss_scale = 1, previous_loss_scale = 1, next_loss_scale = 1;
  double clip_factor = 1;                  // of the right gradient; 1: none, or undone
  int64_t held_steps = 0;                  // before this one, taken and right
  int64_t divisor = 0;                     // of an average; 0: world accumulation_steps
  std::optional<at::ScalarType> rounding;  // the narrowest type on the way, whose ulp count
  double roundings = 0;                    // of got and want, beside those of a hypothesis
};

struct Hypothesis {
  std::string text;         // "got = 0.5000 x want on 12/12 -> averaged twice over world 2"
  std::string cause;        // "averaged twice over world 2"
  double residual_ulp = 0;  // of the worst element that it claims
  int64_t explained = 0;    // wrong elements that it claims
  Matrix coefficients;      // where it is one of contributions; empty: it is not
};

struct Explanation {
  int64_t compared = 0;
  int64_t differing = 0;
  int64_t not_finite = 0;
  int64_t worst_index = -1;  // flat, in the whole parameter
  double worst_got = 0;
  double worst_want = 0;
  std::string where;
  std::vector<Hypothesis> hypotheses;  // best first
  bool is_sure = false;                // the best one claims nine of ten wrong elements
  Culprit culprit;                     // where it is sure and knows it
  std::string text;                    // the lines for the reader, each ended by a newline
};

Explanation explain(const Evidence& evidence);

// "36 864"
std::string with_thousands(int64_t number);

}  // namespace equigrad::conformance::oracle
