// Models: small networks with places where a program can reach in.
//
//   irregular  the zoo's: tied, reused, frozen, empty, scalar, unused, sometimes used
//   tower   below [3, 7] -> [3, 11], above [3, 11] -> [3, 7]
//   heads   a trunk [3, 7] -> [3, 9] and three heads [3, 9] -> [3, 5]
//   wide    [3, 7] -> [3, 600] -> [3, 1400]: its second weight is sent in several pieces
//   experts a gate [3, 7] -> [3, 3] that sends every row to one of three experts, [3, 7] -> [3, 5]
//   dropper two residual blocks [3, 7] -> [3, 7], of which progressive layer drop leaves some out
//
// Invariants: weights depend on (name, seed) only, and none is exactly 0 or 1.
// Shapes: above.   Errors: c10::Error for an unknown name.
// Depends on: reference/models/model.hpp, engine/schedule/progressive_layer_drop.hpp for its state.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/schedule/progressive_layer_drop.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance::contract {

class Tower : public reference::Model {
 public:
  Tower();
  at::Tensor below(const at::Tensor& x);
  at::Tensor above(const at::Tensor& hidden);
  at::Tensor forward(const at::Tensor& x) { return above(below(x)); }
  at::Tensor output(const reference::Batch& batch) override { return forward(batch.input); }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;

  torch::nn::Linear first, second;
};

class Heads : public reference::Model {
 public:
  Heads();
  at::Tensor trunk(const at::Tensor& x);
  at::Tensor head(std::size_t which, const at::Tensor& hidden);
  // Through head `which`, or through those of a bit set.
  at::Tensor loss_through(std::size_t which, const reference::Batch& batch);
  at::Tensor output(const reference::Batch& batch) override;
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;

  torch::nn::Linear base;
  std::vector<torch::nn::Linear> tops;
};

class Wide : public reference::Model {
 public:
  Wide();
  at::Tensor output(const reference::Batch& batch) override;
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;

  torch::nn::Linear first, second;
};

// A mixture of experts: which of them a batch uses depends on its rows, so ranks use different
// ones.
class Experts : public reference::Model {
 public:
  Experts();
  // Row i by expert (the largest gate of it + turn) % 3.
  at::Tensor route(const at::Tensor& x, int64_t turn);
  at::Tensor output(const reference::Batch& batch) override { return route(batch.input, 0); }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;

  torch::nn::Linear gate;
  struct Expert : torch::nn::Module {
    Expert();
    torch::nn::Linear up, down;
  };
  struct Group : torch::nn::Module {
    Group();
    std::vector<std::shared_ptr<Expert>> all;
  };
  std::shared_ptr<Group> experts;
};

// The input's bits decide what is left out, so that ranks leave out different blocks.
class Dropper : public reference::Model {
 public:
  Dropper();
  at::Tensor forward(const at::Tensor& x, const schedule::LayerDropState& drop);
  at::Tensor output(const reference::Batch& batch) override { return forward(batch.input, {}); }
  at::Tensor criterion(const at::Tensor& output, const reference::Batch& batch) override;

  torch::nn::Linear first, second;
};

std::shared_ptr<reference::Model> make_contract_model(const std::string& name, uint64_t seed);

}  // namespace equigrad::conformance::contract
