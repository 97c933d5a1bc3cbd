// Optimizer: AdamW, Adam and SGD as plain loops over one parameter, one rounding an operation.
//
// Sources: Adam, Kingma & Ba 2015 (arXiv 1412.6980), algorithm 1; AdamW, Loshchilov & Hutter 2019
// (arXiv 1711.05101), algorithm 2; momentum, Sutskever et al. 2013, equations 1-4, in the form of
// torch.optim.SGD. optimizer.cpp quotes the lines.
//
// Invariants: all settings are combined in double and rounded once to Real; then every +, -, *, /
//   and sqrt is one correctly rounded operation on Real, never fused. An element's update depends
//   on that element alone, so a slice of a parameter is updated as in the whole.
// Shapes: every pointer has numel elements.   Errors: none.
// Depends on: the C++ standard library only. Compile with -ffp-contract=off.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equigrad::reference {

enum class Rule { AdamW, Adam, Sgd };

struct OptimizerSpec {
  Rule rule = Rule::AdamW;
  double lr = 1e-3;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;
  double dampening = 0;
  bool nesterov = false;

  bool operator==(const OptimizerSpec&) const = default;
};

// exp_avg, exp_avg_sq (Adam, AdamW); momentum_buffer (SGD with momentum); or none.
// Each state tensor has the parameter's shape and starts as zeros.
std::vector<std::string> state_names(const OptimizerSpec& spec);

// The `step`-th update (from 1) of one parameter: writes parameter and the states, which come in
// the order of state_names().
template <class Real>
void update(const OptimizerSpec& spec, int64_t step, int64_t numel, Real* parameter,
            const std::vector<Real*>& states, const Real* gradient);

}  // namespace equigrad::reference
