#include "perf/race/workload.hpp"

#include <torch/types.h>

#include <equigrad_build_info.hpp>

#include "conformance/oracle/bits.hpp"
#include "conformance/oracle/tensor_file.hpp"
#include "perf/worker/model.hpp"
#include "reference/models/data.hpp"

namespace equigrad::perf {
namespace {

namespace oracle = conformance::oracle;
using nlohmann::json;

constexpr int64_t kBatches = 8;  // a rank's, then they come again
constexpr uint64_t kSeed = 1;

at::Tensor tokens(const reference::Data& text, const json& model, int64_t rank, int64_t batch) {
  const int64_t context = model.at("context"), vocabulary = model.at("vocabulary");
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < kBatches; ++i) {
    const auto bytes = text.text_batch(batch, context + 1, {kSeed, i, rank, 0});
    all.push_back((bytes.input * 31 + bytes.target).remainder(vocabulary));
  }
  return at::stack(all);
}

at::Tensor numbers(const json& model, int64_t rank) {
  const int64_t width = model.at("width");
  const auto counted = at::arange(kBatches * width, at::kFloat).view({kBatches, width});
  return (counted * 37 + static_cast<double>(rank) * 11).remainder(17) / 64 - 0.125;
}

}  // namespace

Workload::Workload(const json& model, int world, int64_t batch, int64_t accumulation,
                   const std::string& directory)
    : model_(model),
      world_(world),
      batch_(batch),
      accumulation_(accumulation),
      weights_(directory + "/weights.safetensors"),
      batches_(directory + "/batches.safetensors") {
  write_batches();
  write_weights();
}

void Workload::write_batches() {
  const bool is_text = model_.at("kind") == "gpt";
  const reference::Data text(reference::read_text(
      {std::string(build_info::source_directory()) + "/reference/data/plays_slice.txt"}));
  std::map<std::string, at::Tensor> by_rank;
  for (int rank = 0; rank < world_; ++rank)
    by_rank["rank" + std::to_string(rank)] =
        is_text ? tokens(text, model_, rank, batch_) : numbers(model_, rank);
  oracle::write_tensors(batches_, by_rank);
}

void Workload::write_weights() {
  Model model(model_);
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, parameter] : model.parameters()) {
    weights[name] = parameter.detach();
    parameters_ += parameter.numel();
  }
  oracle::write_tensors(weights_, weights);
}

int64_t Workload::tokens_per_step() const {
  const int64_t length = model_.at("kind") == "gpt" ? model_.at("context").get<int64_t>() : 1;
  return length * batch_ * accumulation_ * world_;
}

Workload::Sums Workload::contributions(at::ScalarType dtype) const {
  const auto batches = oracle::read_tensors(batches_).tensors;
  Model model(model_);
  model.read_weights(weights_);
  model.module().to(dtype);
  Sums sums;
  for (int rank = 0; rank < world_; ++rank)
    for (int64_t pass = 0; pass < accumulation_; ++pass) {
      const auto batch = batches.at("rank" + std::to_string(rank))[pass % kBatches];
      model.loss(batch, dtype).backward();
      for (auto& [name, parameter] : model.parameters()) {
        const auto gradient = parameter.grad().to(at::kDouble);
        auto& sum = sums.sum[name];
        auto& absolute = sums.absolute[name];
        sum = sum.defined() ? sum + gradient : gradient;
        absolute = absolute.defined() ? absolute + gradient.abs() : gradient.abs();
        parameter.mutable_grad() = at::Tensor();
      }
    }
  return sums;
}

void Workload::find_exact() {
  if (!exact_.sum.empty()) return;
  plain_ = contributions(at::kFloat);
  exact_ = contributions(at::kDouble);
}

Proof Workload::prove(const std::string& gradients) {
  find_exact();
  return compare(gradients, plain_);
}

std::string Workload::mean_of(const std::vector<std::string>& of_ranks) const {
  std::map<std::string, at::Tensor> mean;
  for (const auto& path : of_ranks)
    for (const auto& [name, gradient] : oracle::read_tensors(path).tensors) {
      auto& sum = mean[name];
      sum = sum.defined() ? sum + gradient.to(at::kDouble) : gradient.to(at::kDouble);
    }
  for (auto& [name, sum] : mean) sum = (sum / static_cast<double>(of_ranks.size())).to(at::kFloat);
  const std::string path = of_ranks.front() + ".mean";
  oracle::write_tensors(path, mean);
  return path;
}

Proof Workload::prove(const std::string& gradients, const std::vector<std::string>& of_ranks) {
  find_exact();
  Sums plain;
  for (const auto& path : of_ranks)
    for (const auto& [name, gradient] : oracle::read_tensors(path).tensors) {
      const auto wide = gradient.to(at::kDouble);
      auto& sum = plain.sum[name];
      auto& absolute = plain.absolute[name];
      sum = sum.defined() ? sum + wide : wide;
      absolute = absolute.defined() ? absolute + wide.abs() : wide.abs();
    }
  return compare(gradients, plain);
}

Proof Workload::compare(const std::string& gradients, const Sums& plain) const {
  oracle::Reduction reduction;
  reduction.world = world_;
  reduction.accumulation_steps = accumulation_;
  // Some of them divide before the sum over ranks, and add in a ring: the most roundings.
  reduction.averaging = oracle::Averaging::BeforeSum;
  reduction.any_order = true;
  const double passes = static_cast<double>(world_ * accumulation_);
  const auto found = oracle::read_tensors(gradients).tensors;
  if (found.size() != exact_.sum.size() || plain.sum.size() != exact_.sum.size())
    throw std::runtime_error("[race] expected " + std::to_string(exact_.sum.size()) +
                             " gradients, got " + std::to_string(found.size()) + ".");
  Proof proof;
  for (const auto& [name, exact] : exact_.sum) {
    const auto got = found.at(name).flatten();
    const auto mean = (plain.sum.at(name) / passes).flatten();
    oracle::merge(proof.report,
                  oracle::check_gradient(got, mean, (exact / passes).flatten(),
                                         (plain.absolute.at(name) / passes).flatten(), reduction));
    proof.differing_elements += got.ne(mean.to(at::kFloat)).sum().item<int64_t>();
  }
  return proof;
}

}  // namespace equigrad::perf
