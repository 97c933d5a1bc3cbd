#include <ATen/ATen.h>

#include <algorithm>

#include "conformance/contract/players/reentrant.hpp"
#include "property_tests/numbers.hpp"
#include "property_tests/relations/probe_network.hpp"

namespace equigrad::property_tests::relations {
namespace {

at::Tensor whole(uint64_t seed, uint64_t stream, int64_t numel, uint64_t most) {
  return numbers(seed, stream, numel, [most](uint64_t bits) {
    return static_cast<float>(bits % (2 * most + 1)) - static_cast<float>(most);
  });
}

uint64_t stream(const Source& from) {
  return static_cast<uint64_t>(1000 + 2 * (from.step * 10'000 + from.rank * 100 + from.micro));
}

}  // namespace

ProbeNetwork::ProbeNetwork(const json& one, bool reversed)
    : kind_(one.at("model")), seed_(one.at("seed")), rows_(one.value("rows", 2)) {
  const int64_t hidden = kind_ == kConv ? 18 : kind_ == kEmbedding ? 12 : 5;
  add("first", kind_ == kConv        ? std::vector<int64_t>{2, 4}
               : kind_ == kEmbedding ? std::vector<int64_t>{7, 4}
               : kind_ == kLinear    ? std::vector<int64_t>{3, 5}
                                     : std::vector<int64_t>{5, 5});
  add("unused", {4});
  if (kind_ != kLinear) {
    add("bias", {hidden});
    add("second", {3, hidden});
    add("last bias", {3});
    add("beside", {3});
  }
  add("frozen", {3}).requires_grad_(false);
  add("empty", {0});
  if (reversed) std::reverse(parameters.begin(), parameters.end());
}

const at::Tensor& ProbeNetwork::operator[](const std::string& name) const {
  return std::find_if(parameters.begin(), parameters.end(),
                      [&](const NamedParameter& one) { return one.name == name; })
      ->tensor;
}

at::Tensor ProbeNetwork::input(const Source& from, at::ScalarType dtype) const {
  const uint64_t at = stream(from);
  if (kind_ == kEmbedding) return whole(seed_, at, rows_ * 3, 3).to(at::kLong).add(3).view({-1, 3});
  if (kind_ == kConv) return uniform(seed_, at, rows_ * 16, 1).to(dtype).view({-1, 4, 4});
  if (kind_ == kLattice) return whole(seed_, at, rows_ * 5, 1).to(dtype).view({-1, 5});
  return uniform(seed_, at, rows_ * 5, 1).to(dtype).view({-1, 5});
}

at::Tensor ProbeNetwork::target(const Source& from) const {
  const uint64_t at = stream(from) + 1;
  const auto target =
      kind_ == kLattice ? whole(seed_, at, rows_ * 3, 1) : uniform(seed_, at, rows_ * 3, 1);
  return target.view({-1, 3});
}

at::Tensor ProbeNetwork::hidden(const at::Tensor& input) const {
  const auto& first = (*this)["first"];
  if (kind_ == kLattice) return at::relu(at::linear(input, first, (*this)["bias"]));
  if (kind_ == kMlp) return at::tanh(watched(at::linear(input, first, (*this)["bias"])));
  const auto front =
      kind_ == kEmbedding
          ? at::embedding(first, input)
          : at::linear(input.unfold(1, 2, 1).unfold(2, 2, 1).reshape({input.size(0), 9, 4}), first);
  return at::tanh(watched(front.reshape({input.size(0), -1}) + (*this)["bias"]));
}

at::Tensor ProbeNetwork::output(const at::Tensor& input, bool checkpointed) const {
  if (kind_ == kLinear) return at::linear(input, (*this)["first"]);
  const auto last = [this](const at::Tensor& x) {
    const auto wave = kind_ == kLattice ? x : watched(at::sin(watched(x)));
    return at::linear(wave, (*this)["second"], (*this)["last bias"]);
  };
  const auto x = hidden(input);
  return checkpointed ? conformance::Reentrant::apply(last, x) : watched(last(x));
}

at::Tensor ProbeNetwork::loss(const at::Tensor& output, const at::Tensor& target) const {
  const auto wide = output.to(at::kFloat);
  if (kind_ >= kLattice) return (wide * target).sum();
  return (wide - target).square().mean();
}

at::Tensor ProbeNetwork::beside_loss() const {
  return (*this)["beside"].to(at::kFloat).cos().sum();
}

at::Tensor ProbeNetwork::watched(const at::Tensor& node) const {
  if (!node.requires_grad()) return node;
  node.register_hook([this](const at::Tensor& gradient) {
    const auto size = gradient.abs();
    const auto nonzero = size.masked_select(size != 0);
    if (nonzero.numel() > 0) least = std::min(least, nonzero.min().item<float>());
  });
  return node;
}

at::Tensor ProbeNetwork::add(const std::string& name, const std::vector<int64_t>& shape) {
  const uint64_t at = parameters.size() + 1;
  const auto numel = c10::multiply_integers(shape);
  const auto values =
      kind_ == kLattice ? whole(seed_, at, numel, 1) : uniform(seed_, at, numel, 0.7F);
  parameters.push_back({name, values.view(shape).clone()});
  return parameters.back().tensor.requires_grad_(true);
}

}  // namespace equigrad::property_tests::relations
