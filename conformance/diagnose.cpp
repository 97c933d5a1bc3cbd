// From a wrong gradient to a likely cause: computes every rank's contributions anew and asks the
// oracle.
#include <sys/stat.h>
#include <torch/torch.h>

#include "conformance/dots_model.hpp"
#include "conformance/oracle/explain.hpp"
#include "conformance/rank_case.hpp"
#include "conformance/recipe.hpp"

namespace equigrad::conformance {
namespace {

// [rank][micro_batch], of the first step: later steps would need the weights of then.
std::vector<std::vector<at::Tensor>> contributions_of(const CaseSpec& spec, uint64_t seed,
                                                      const reference::Data& data, double scale,
                                                      const GradientFailure& failure) {
  std::vector<std::vector<at::Tensor>> contributions;
  const auto model = make_case_model(spec.model, seed);
  model->to(dtype_of(spec));
  for (int rank = 0; rank < spec.world; ++rank) {
    auto& of_rank = contributions.emplace_back();
    for (int index = 0; index < spec.accumulation; ++index) {
      model->zero_grad();
      const auto batch = make_case_batch(data, spec.model, {seed, failure.step, rank, index});
      (model->loss(reference::to_dtype(batch, dtype_of(spec))) * scale).backward();
      at::Tensor gradient = at::zeros_like(failure.want);
      for (const auto& [name, parameter] : reference::unique_parameters(*model))
        if (name == failure.name && parameter.grad().defined())
          gradient = parameter.grad()
                         .flatten()
                         .slice(0, failure.begin, failure.begin + failure.want.numel())
                         .to(at::kFloat)
                         .div(scale);
      of_rank.push_back(gradient);
    }
  }
  return contributions;
}

// What was compared, and what it was made of; returns the names of the files.
std::vector<std::string> keep_tensors(const std::string& keep, int rank,
                                      const GradientFailure& failure,
                                      const oracle::Evidence& evidence) {
  const std::string name = "rank" + std::to_string(rank);
  const std::map<std::string, std::string> metadata = {{"tensor", failure.name},
                                                       {"step", std::to_string(failure.step + 1)},
                                                       {"begin", std::to_string(failure.begin)}};
  mkdir(keep.substr(0, keep.rfind('/')).c_str(), 0777);  // several ranks may: who is first does
  mkdir(keep.c_str(), 0777);
  std::map<std::string, at::Tensor> compared = {{"got", failure.got}, {"want", failure.want}};
  if (evidence.previous.defined()) compared["previous"] = evidence.previous;
  oracle::write_tensors(keep + "/" + name + ".safetensors", compared, metadata);
  if (evidence.contributions.empty()) return {name + ".safetensors"};
  std::map<std::string, at::Tensor> inputs;
  for (std::size_t from = 0; from < evidence.contributions.size(); ++from)
    for (std::size_t index = 0; index < evidence.contributions[from].size(); ++index)
      inputs["rank" + std::to_string(from) + "/micro_batch" + std::to_string(index)] =
          evidence.contributions[from][index];
  oracle::write_tensors(keep + "/" + name + ".inputs.safetensors", inputs, metadata);
  return {name + ".safetensors", name + ".inputs.safetensors"};
}

}  // namespace

Diagnosis diagnose(const CaseSpec& spec, uint64_t seed, const reference::Data& data,
                   const Twin& twin, const GradientFailure& failure,
                   const std::vector<int64_t>& shape, const std::string& keep, int rank) {
  oracle::Evidence evidence;
  evidence.name = failure.name;
  evidence.got = failure.got;
  evidence.want = failure.want;
  evidence.world = spec.world;
  evidence.accumulation_steps = spec.accumulation;
  evidence.shards = spec.stage == 0 ? 1 : spec.world;
  evidence.begin = failure.begin;
  evidence.shape = shape;
  if (failure.step == 0) {
    evidence.contributions = contributions_of(spec, seed, data, twin.loss_scale(0), failure);
  } else {
    const auto previous = twin.tensor(failure.step - 1, "gradient", failure.name);
    if (previous.defined())
      evidence.previous =
          previous.slice(0, failure.begin, failure.begin + failure.want.numel()).clone();
  }
  Diagnosis diagnosis;
  diagnosis.text = oracle::explain(evidence).text;
  if (!keep.empty()) diagnosis.files = keep_tensors(keep, rank, failure, evidence);
  return diagnosis;
}

}  // namespace equigrad::conformance
