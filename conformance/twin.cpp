#include "conformance/twin.hpp"

#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "conformance/recipe.hpp"

namespace equigrad::conformance {
namespace {

using reference::Order;

std::string word(Order order) {
  return order == Order::AddThenReduce ? "add_then_reduce" : "reduce_then_add";
}

// Exact and readable.
std::string hexadecimal(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

// Clipping must act, or must not; the norm of the first step says where the threshold belongs.
double threshold_for(const CaseSpec& spec, uint64_t seed, const reference::Data& data) {
  if (spec.clip == Clip::Off) return 0;
  if (spec.clip == Clip::Below) return 1e6;
  const auto recipe = recipe_of(spec, seed, 0, Order::AddThenReduce);
  return 0.5 * reference::Trainer(recipe, data).train_step().grad_norm;
}

void add_map(oracle::TensorFile& file, const std::string& prefix,
             const reference::TensorMap& tensors) {
  for (const auto& [name, tensor] : tensors) file.tensors[prefix + "/" + name] = tensor;
}

void add_bounded_runs(oracle::TensorFile& file, const CaseSpec& spec, uint64_t seed,
                      const reference::Data& data) {
  auto recipe = recipe_of(spec, seed, 0, Order::Exact);
  recipe.absolute_sums = true;
  const auto plain = reference::Trainer(recipe, data).train_step();
  add_map(file, "plain/0/gradient", plain.gradients);
  add_map(file, "plain/0/absolute_sum", plain.absolute_sum);
  recipe.absolute_sums = false;
  recipe.compute_dtype = spec.precision == Precision::Bf16 ? at::kFloat : at::kDouble;
  add_map(file, "precise/0/gradient", reference::Trainer(recipe, data).train_step().gradients);
}

}  // namespace

void add_step(oracle::TensorFile& file, const std::string& prefix,
              const reference::StepRecord& record) {
  add_map(file, prefix + "/gradient", record.gradients);
  add_map(file, prefix + "/master", record.masters);
  add_map(file, prefix + "/parameter", record.parameters);
  for (const auto& [state, tensors] : record.state) add_map(file, prefix + "/" + state, tensors);
  std::vector<at::Tensor> losses;
  for (const auto& loss : record.losses) losses.push_back(loss.to(at::kFloat).reshape({1}));
  file.tensors[prefix + "/losses"] = at::cat(losses);
  file.metadata[prefix + "/grad_norm"] = hexadecimal(record.grad_norm);
}

void make_twin(const CaseSpec& spec, uint64_t seed, const reference::Data& data,
               const std::string& path) {
  oracle::TensorFile file;
  const double threshold = threshold_for(spec, seed, data);
  file.metadata["threshold"] = hexadecimal(threshold);
  std::vector<Order> orders = {Order::AddThenReduce};
  if (spec.accumulation > 1) orders.push_back(Order::ReduceThenAdd);
  for (const Order order : orders) {
    reference::Trainer trainer(recipe_of(spec, seed, threshold, order), data);
    for (int step = 0; step < kSteps; ++step)
      add_step(file, word(order) + "/" + std::to_string(step), trainer.train_step());
  }
  add_bounded_runs(file, spec, seed, data);
  oracle::write_tensors(path, file.tensors, file.metadata);
}

Twin::Twin(const std::string& path, Order order)
    : file_(oracle::read_tensors(path)), order_(word(order)) {
  // With one micro-batch there is one order only.
  if (file_.metadata.count(order_ + "/0/grad_norm") == 0) order_ = word(Order::AddThenReduce);
  if (file_.metadata.count(order_ + "/0/grad_norm") == 0)
    throw std::runtime_error("[twin] expected a twin's file, got " + path + ".");
}

at::Tensor Twin::tensor(int step, const std::string& what, const std::string& name) const {
  const auto found =
      file_.tensors.find(order_ + "/" + std::to_string(step) + "/" + what + "/" + name);
  return found == file_.tensors.end() ? at::Tensor() : found->second.flatten();
}

at::Tensor Twin::other(const std::string& run, const std::string& what,
                       const std::string& name) const {
  const auto found = file_.tensors.find(run + "/0/" + what + "/" + name);
  return found == file_.tensors.end() ? at::Tensor() : found->second.flatten();
}

float Twin::loss(int step, int64_t index) const {
  return file_.tensors.at(order_ + "/" + std::to_string(step) + "/losses")[index].item<float>();
}

double Twin::grad_norm(int step) const {
  return std::strtod(file_.metadata.at(order_ + "/" + std::to_string(step) + "/grad_norm").c_str(),
                     nullptr);
}

double Twin::threshold() const {
  return std::strtod(file_.metadata.at("threshold").c_str(), nullptr);
}

}  // namespace equigrad::conformance
