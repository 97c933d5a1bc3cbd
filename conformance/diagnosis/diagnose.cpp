// From what differs at the first divergence to a likely cause.
#include <ATen/ATen.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>

#include "conformance/diagnosis/diagnosis.hpp"
#include "conformance/diagnosis/explain.hpp"
#include "conformance/diagnosis/other_numbers.hpp"
#include "conformance/diagnosis/rerun.hpp"
#include "conformance/diagnosis/update_predictions.hpp"

namespace equigrad::conformance {
namespace {

using oracle::Evidence;

// The narrowest type that a gradient is rounded to on its way.
at::ScalarType rounding_of(const reference::Recipe& recipe) {
  const auto& precision = recipe.precision;
  const std::vector<at::ScalarType> types = {
      recipe.compute_dtype, recipe.accumulate_dtype,
      precision.communication_dtype.value_or(at::kFloat),
      precision.autocast ? precision.autocast->dtype : at::kFloat};
  for (const auto narrow : {at::kBFloat16, at::kHalf})
    if (std::find(types.begin(), types.end(), narrow) != types.end()) return narrow;
  return at::kFloat;
}

class Diagnostician {
 public:
  Diagnostician(const DiagnosisInput& input, const std::vector<Failure>& failures,
                Divergences& divergences)
      : input_(input), failures_(failures), divergences_(divergences), weights_(input) {}

  Diagnosis run() {
    if (failures_.empty()) return {};
    switch (failures_[0].site.phase) {
      case Phase::Gradient:
        return explain_gradients();
      case Phase::Norm:
        return explain_number(other_norms(input_, step()), norm_type(input_, step()));
      case Phase::Forward:
        return explain_number(other_losses(input_, failures_[0].site, weights_),
                              loss_type(failures_[0].got, failures_[0].want));
      case Phase::Start:
      case Phase::Scale:
        return explain_number(other_scales(input_, failures_[0].site), at::kDouble);
      default:
        return explain_tensors();
    }
  }

 private:
  int step() const { return failures_[0].site.step; }

  at::Tensor slice(const Failure& failure, const at::Tensor& whole) const {
    if (!whole.defined()) return whole;
    const int64_t begin = failure.site.begin;
    return whole.flatten().slice(0, begin, begin + failure.want.numel());
  }

  // As the twin has it after a step; after none, the weights that the model was made with.
  at::Tensor twin(int of_step, const std::string& what, const std::string& name) const {
    if (what == "parameter") return weights_.parameter(of_step, name);  // compared whole
    return of_step >= 0 ? input_.twin.tensor(of_step, what, name) : at::Tensor();
  }

  Evidence evidence_of(const Failure& failure) const {
    const auto& site = failure.site;
    Evidence evidence;
    evidence.name = site.parameter;
    evidence.what = site.what == "clipped gradient" ? "gradient" : site.what;
    evidence.is_gradient = evidence.what == "gradient";
    evidence.got = failure.got;
    evidence.want = failure.want;
    for (int step = 0; step < site.step; ++step)
      if (!input_.twin.skipped(step)) ++evidence.held_steps;
    evidence.world = input_.recipe.world;
    evidence.accumulation_steps = input_.recipe.accumulation_steps;
    evidence.shards = input_.stage == 0 ? 1 : input_.recipe.world;
    evidence.begin = site.begin;
    const auto& shapes = evidence.what == "parameter" ? input_.whole_shapes : input_.shapes;
    evidence.shape = shapes.at(site.parameter);
    evidence.whole = twin(site.step, evidence.what, site.parameter);
    for (const auto& [name, shape] : input_.shapes) {
      const auto other = twin(site.step, evidence.what, name);
      if (name != site.parameter && other.defined()) evidence.others[name] = other;
    }
    const auto previous = slice(failure, twin(site.step - 1, evidence.what, site.parameter));
    if (previous.defined() && previous.numel() == failure.want.numel())
      evidence.previous = previous;
    if (evidence.is_gradient) add_gradient(failure, evidence);
    return evidence;
  }

  void add_gradient(const Failure& failure, Evidence& evidence) const {
    const auto& twin = input_.twin;
    const int at = failure.site.step;
    evidence.loss_scale = twin.loss_scale(at);
    evidence.next_loss_scale = twin.loss_scale(at + 1);
    evidence.previous_loss_scale = twin.loss_scale(std::max(at - 1, 0));
    evidence.clip_factor = clip_factor(twin.grad_norm(at), twin.threshold());
    evidence.rounding = rounding_of(input_.recipe);
    const auto& recipe = input_.recipe;
    evidence.divisor = recipe.accumulation_steps * recipe.world / recipe.sequence;
    if (recipe.precision.averaging == reference::Averaging::Never)
      evidence.divisor = recipe.accumulation_steps;
    // Each side clipped by its own norm: what they were before it.
    const double got = clip_factor(input_.norm, twin.threshold());
    if (got == evidence.clip_factor || !std::isfinite(input_.norm)) return;
    const auto type = failure.got.scalar_type();
    evidence.got = (evidence.got.to(at::kDouble) / got).to(type);
    evidence.want =
        (evidence.want.to(at::kDouble) / evidence.clip_factor).to(failure.want.scalar_type());
    evidence.whole = (evidence.whole.to(at::kDouble) / evidence.clip_factor);
    for (auto& [name, other] : evidence.others)
      other = other.to(at::kDouble) / evidence.clip_factor;
    if (evidence.previous.defined())
      evidence.previous =
          evidence.previous.to(at::kDouble) / clip_factor(twin.grad_norm(at - 1), twin.threshold());
    evidence.clip_factor = 1;
    // The factor, the product and what undoes it here, on both sides.
    constexpr int kRoundings = 6;
    const double u = oracle::unit_roundoff(*evidence.rounding);
    evidence.roundings = kRoundings * oracle::unit_roundoff(type) / u;
    evidence.bound = evidence.want.to(at::kDouble).abs() * oracle::gamma(kRoundings, u) +
                     4 * oracle::half_smallest(type);
    evidence.formula = "roundings of clipping, which is undone here";
  }

  Diagnosis explain_gradients() {
    if (input_.recipe.world * input_.recipe.accumulation_steps <= kMostContributions)
      weights_.run(step());
    std::map<std::string, oracle::Explanation> explained;
    for (const auto& failure : failures_) {
      auto evidence = evidence_of(failure);
      for (const auto& row : weights_.contributions(failure.site.parameter)) {
        auto& of_rank = evidence.contributions.emplace_back();
        for (const auto& whole : row) of_rank.push_back(slice(failure, whole));
      }
      const auto explanation = oracle::explain(evidence);
      divergences_.tell(failure.site.parameter, explanation.culprit.micro_batch,
                        explanation.culprit.rank);
      explained[failure.site.parameter] = explanation;
    }
    return told(explained);
  }

  // Of masters, states and published parameters, and of gradients that clipping made wrong.
  Diagnosis explain_tensors() {
    std::map<std::string, oracle::Explanation> explained;
    for (const auto& failure : failures_) {
      if (failure.site.parameter.empty()) continue;
      if (explained.count(failure.site.parameter) != 0) continue;  // the first of its tensors
      auto evidence = evidence_of(failure);
      add_update(failure, evidence);
      explained[failure.site.parameter] = oracle::explain(evidence);
    }
    return told(explained);
  }

  void add_update(const Failure& failure, Evidence& evidence) const {
    const auto& name = failure.site.parameter;
    const auto found = input_.updates.find(name);
    if (found == input_.updates.end()) return;
    const auto& seen = found->second;
    if (failure.site.what != "master" && seen.after.state.count(failure.site.what) == 0) return;
    oracle::UpdateEvidence update;
    update.spec = seen.spec;
    update.before = seen.before;
    update.after = seen.after;
    update.gradient = seen.gradient;
    update.want.master = slice(failure, twin(step(), "master", name));
    for (const auto& [state, values] : seen.after.state)
      update.want.state[state] = slice(failure, twin(step(), state, name));
    if (step() > 0) update.previous_gradient = slice(failure, twin(step() - 1, "gradient", name));
    for (const auto& [other, rule] : input_.rules) update.other_groups.push_back(rule);
    update.world = input_.recipe.world;
    update.accumulation_steps = input_.recipe.accumulation_steps;
    update.loss_scale = input_.twin.loss_scale(step());
    update.clip_factor = clip_factor(input_.twin.grad_norm(step()), input_.twin.threshold());
    for (const auto& one : oracle::update_predictions(update)) {
      const bool is_master = failure.site.what == "master";
      const auto of = [&](const oracle::Weights& weights) {
        return is_master ? weights.master : weights.state.at(failure.site.what);
      };
      evidence.predictions.push_back({.cause = one.cause,
                                      .values = of(one.weights),
                                      .roundings = one.roundings,
                                      .sizes = of(seen.before)});
    }
  }

  // The text of the first divergence, or, where its cause is a guess, of the first one that is
  // sure.
  Diagnosis told(const std::map<std::string, oracle::Explanation>& explained) {
    if (explained.empty()) return {};
    auto name = divergences_.first().parameter;
    if (explained.count(name) == 0) name = explained.begin()->first;
    if (!explained.at(name).is_sure)
      for (const auto& [other, explanation] : explained)
        if (explanation.is_sure) {
          name = other;
          break;
        }
    Diagnosis diagnosis{explained.at(name).text, {}};
    keep(name, diagnosis);
    return diagnosis;
  }

  // `rounding`: the type whose ulp roundings count in.
  Diagnosis explain_number(std::vector<oracle::Prediction> predictions,
                           at::ScalarType rounding) const {
    const auto& failure = failures_[0];
    Evidence evidence;
    evidence.name = failure.site.what;
    evidence.what = failure.site.what;
    evidence.is_gradient = false;
    evidence.is_number = true;
    evidence.rounding = rounding;
    const bool is_count = !failure.want.is_floating_point();
    evidence.got = is_count ? failure.got.to(at::kDouble) : failure.got;
    evidence.want = is_count ? failure.want.to(at::kDouble) : failure.want;
    for (auto& prediction : predictions)
      prediction.values = prediction.values.to(evidence.want.scalar_type()).reshape({1});
    evidence.predictions = std::move(predictions);
    evidence.shape = {1};
    return {oracle::explain(evidence).text, {}};
  }

  // What was compared, and what it was made of.
  void keep(const std::string& of, Diagnosis& diagnosis) const {
    if (input_.keep.empty()) return;
    const auto failure = std::find_if(failures_.begin(), failures_.end(),
                                      [&](const auto& one) { return one.site.parameter == of; });
    const std::string name = "rank" + std::to_string(input_.rank);
    const std::map<std::string, std::string> metadata = {
        {"tensor", of},
        {"what", failure->site.what},
        {"step", std::to_string(failure->site.step + 1)},
        {"begin", std::to_string(failure->site.begin)}};
    mkdir(input_.keep.substr(0, input_.keep.rfind('/')).c_str(), 0777);  // who is first does
    mkdir(input_.keep.c_str(), 0777);
    const auto add = [&](const std::string& file, const std::map<std::string, at::Tensor>& parts) {
      if (parts.empty()) return;
      oracle::write_tensors(input_.keep + "/" + file, parts, metadata);
      diagnosis.files.push_back(file);
    };
    add(name + ".safetensors", {{"got", failure->got}, {"want", failure->want}});
    std::map<std::string, at::Tensor> inputs;
    const auto contributions = weights_.contributions(of);
    for (std::size_t from = 0; from < contributions.size(); ++from)
      for (std::size_t index = 0; index < contributions[from].size(); ++index)
        inputs["rank" + std::to_string(from) + "/micro_batch" + std::to_string(index)] =
            slice(*failure, contributions[from][index]).clone();
    const auto update = input_.updates.find(of);
    if (update != input_.updates.end()) {
      inputs["before/master"] = update->second.before.master;
      inputs["before/gradient"] = update->second.gradient;
      for (const auto& [state, values] : update->second.before.state)
        inputs["before/" + state] = values;
    }
    add(name + ".inputs.safetensors", inputs);
  }

  static constexpr int kMostContributions = 64;

  const DiagnosisInput& input_;
  const std::vector<Failure>& failures_;
  Divergences& divergences_;
  Rerun weights_;
};

}  // namespace

Diagnosis diagnose(const DiagnosisInput& input, const std::vector<Failure>& failures,
                   Divergences& divergences) {
  return Diagnostician(input, failures, divergences).run();
}

}  // namespace equigrad::conformance
