#include "conformance/contract/players/models.hpp"

#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <bit>
#include <cmath>

namespace equigrad::conformance::contract {
namespace {

// Uniform in [-w, w) with variance 1 / columns, never 0.
void fill(reference::Model& model, uint64_t seed) {
  uint64_t key = reference::hash(seed);
  for (auto& [name, parameter] : reference::unique_parameters(model)) {
    key = reference::hash(key);
    const auto columns = static_cast<double>(parameter.dim() > 1 ? parameter.size(1) : 30);
    auto weights = parameter.detach();
    for (int64_t i = 0; i < weights.numel(); ++i) {
      const uint64_t bits = reference::hash(key + static_cast<uint64_t>(i)) >> 40 | 1;
      const double uniform = static_cast<double>(bits) / (1 << 23) - 1;
      weights.mutable_data_ptr<float>()[i] = static_cast<float>(uniform * std::sqrt(3.0 / columns));
    }
  }
}

}  // namespace

Tower::Tower()
    : first(register_module("first", torch::nn::Linear(7, 11))),
      second(register_module("second", torch::nn::Linear(11, 7))) {}

at::Tensor Tower::below(const at::Tensor& x) { return at::tanh(first(x)); }

at::Tensor Tower::above(const at::Tensor& hidden) { return second(at::gelu(hidden)); }

at::Tensor Tower::criterion(const at::Tensor& output, const reference::Batch& batch) {
  return at::cross_entropy_loss(output.to(at::kFloat), batch.target);
}

Heads::Heads() : base(register_module("base", torch::nn::Linear(7, 9))) {
  for (const char* name : {"a", "b", "c"})
    tops.push_back(register_module(name, torch::nn::Linear(9, 5)));
}

at::Tensor Heads::trunk(const at::Tensor& x) { return at::tanh(base(x)); }

at::Tensor Heads::head(std::size_t which, const at::Tensor& hidden) { return tops[which](hidden); }

at::Tensor Heads::loss_through(std::size_t which, const reference::Batch& batch) {
  return criterion(head(which, trunk(batch.input)), batch);
}

at::Tensor Heads::output(const reference::Batch& batch) { return head(0, trunk(batch.input)); }

at::Tensor Heads::criterion(const at::Tensor& output, const reference::Batch& batch) {
  return at::cross_entropy_loss(output.to(at::kFloat), batch.target);
}

Wide::Wide()
    : first(register_module("first", torch::nn::Linear(7, 600))),
      second(register_module("second", torch::nn::Linear(600, 1400))) {}

at::Tensor Wide::output(const reference::Batch& batch) {
  return second(at::gelu(first(batch.input)));
}

at::Tensor Wide::criterion(const at::Tensor& output, const reference::Batch& batch) {
  return at::cross_entropy_loss(output.to(at::kFloat), batch.target);
}

Experts::Expert::Expert()
    : up(register_module("up", torch::nn::Linear(7, 11))),
      down(register_module("down", torch::nn::Linear(11, 5))) {}

Experts::Group::Group() {
  for (const char* name : {"0", "1", "2"})
    all.push_back(register_module(name, std::make_shared<Expert>()));
}

Experts::Experts()
    : gate(register_module("gate", torch::nn::Linear(7, 3))),
      experts(register_module("experts", std::make_shared<Group>())) {}

at::Tensor Experts::route(const at::Tensor& x, int64_t turn) {
  const auto gates = at::softmax(gate(x), 1);
  const auto chosen = gates.argmax(1);
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < x.size(0); ++i) {
    const int64_t which = chosen[i].item<int64_t>();
    auto& expert = *experts->all[static_cast<std::size_t>((which + turn) % 3)];
    rows.push_back(expert.down(at::gelu(expert.up(x.narrow(0, i, 1)))) * gates[i][which]);
  }
  return at::cat(rows);
}

at::Tensor Experts::criterion(const at::Tensor& output, const reference::Batch& batch) {
  return at::cross_entropy_loss(output.to(at::kFloat), batch.target);
}

Dropper::Dropper()
    : first(register_module("first", torch::nn::Linear(7, 7))),
      second(register_module("second", torch::nn::Linear(7, 7))) {}

// Block l of L is kept with probability 1 - (1 - theta) l / L, and divided by it.
at::Tensor Dropper::forward(const at::Tensor& x, const schedule::LayerDropState& drop) {
  const auto wide = x.to(at::kFloat).contiguous();
  uint64_t key = 0;
  for (int64_t i = 0; i < wide.numel(); ++i)
    key = reference::hash(key ^ std::bit_cast<uint32_t>(wide.const_data_ptr<float>()[i]));
  auto hidden = x;
  int block = 0;
  for (auto* one : {&first, &second}) {
    const auto keep = static_cast<float>(1 - (1 - drop.pld_theta) * ++block / 2);
    key = reference::hash(key);
    const bool kept = static_cast<double>(key >> 11) < keep * 0x1p53;
    if (kept || !drop.progressive_layer_drop) hidden = hidden + at::tanh((*one)(hidden)) / keep;
  }
  return hidden;
}

at::Tensor Dropper::criterion(const at::Tensor& output, const reference::Batch& batch) {
  return at::cross_entropy_loss(output.to(at::kFloat), batch.target);
}

std::shared_ptr<reference::Model> make_contract_model(const std::string& name, uint64_t seed) {
  std::shared_ptr<reference::Model> model;
  if (name == "tower") model = std::make_shared<Tower>();
  if (name == "wide") model = std::make_shared<Wide>();
  if (name == "experts") model = std::make_shared<Experts>();
  if (name == "dropper") model = std::make_shared<Dropper>();
  if (name == "heads") model = std::make_shared<Heads>();
  if (!model) return reference::make_model(name, seed);
  fill(*model, seed);
  return model;
}

}  // namespace equigrad::conformance::contract
