#include "conformance/on_rank/run.hpp"

#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include <torch/types.h>

#include <algorithm>
#include <fstream>

#include "conformance/cases/linear_model.hpp"
#include "conformance/cases/model_groups.hpp"
#include "conformance/cases/recipe.hpp"
#include "conformance/faults/adversary.hpp"
#include "conformance/on_rank/answer.hpp"
#include "conformance/on_rank/backward.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::conformance {
namespace {

// Other weights than rank 0's, which every rank must take over.
void unsettle(const torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (auto& parameter : model.parameters()) parameter.mul_(0.75).add_(0.125);
}

// For the folder of a failure.
void keep_config(const nlohmann::json& request, const ranks::RankContext& context,
                 const std::string& config) {
  const std::string path = request.value("config", "");
  if (!path.empty() && context.rank() == 0) std::ofstream(path) << config;
}

std::shared_ptr<OverflowingModel> make_model(const nlohmann::json& request) {
  const auto spec = parse_id(request.at("id"));
  return std::make_shared<OverflowingModel>(make_case_model(spec.model, request.at("seed")));
}

}  // namespace

RankCase::RankCase(const nlohmann::json& request, ranks::RankContext& context,
                   const reference::Data& data)
    : model_(make_model(request)),
      facts_(facts_of(request, context, data, *model_)),
      steps_(request.value("steps", kSteps)),
      moment_(std::make_shared<faults::Moment>()) {
  make_engine(request);
  lanes_.with_other_rules = fault_ != nullptr;
  failures_.emplace(facts_,
                    positions_of(facts_, *model_, engine_->config().zero.reduce_bucket_size));
  comparison_.emplace(facts_, *engine_, steps_, lanes_, *failures_);
}

void RankCase::make_engine(const nlohmann::json& request) {
  const std::string fault = request.value("fault", "");
  // One style in four on a communicator that does everything as late as it may.
  const uint64_t by_style = facts_.spec.style == Style::TensorBackward ? facts_.seed + 1 : 0;
  const uint64_t adversary = request.value("adversary", by_style);
  facts_.context.note("initialize");
  if (facts_.context.rank() != 0) unsettle(*model_);
  auto communicator = faults::adversarial(facts_.context.group(), adversary);
  const bool has_groups = model_->groups().size() > 1;
  if (!fault.empty()) {
    std::vector<std::string> names;  // as the engine's table has them
    if (has_groups) {
      for (const auto& group : groups_of(*model_))
        for (const auto& parameter : group.parameters) names.push_back(parameter.name);
    } else {
      for (const auto& [name, tensor] : reference::unique_parameters(*model_))
        names.push_back(name);
    }
    fault_ = std::make_unique<faults::Planted>(fault, facts_.context.rank(), facts_.spec.world,
                                               moment_, names);
    communicator = fault_->wrap(communicator);
  }
  const auto config = with_knobs(config_text(facts_.spec, facts_.twin.threshold(), *model_),
                                 request.value("knobs", nlohmann::json::object()));
  keep_config(request, facts_.context, config);
  // Both ways in: a model with several groups by the core, the others as modules.
  engine_ = has_groups ? initialize(groups_of(*model_), parse_config(config, facts_.spec.world),
                                    communicator)
                       : initialize(*model_, config, communicator);
}

nlohmann::json run_refused(const nlohmann::json& request, ranks::RankContext& context) {
  const auto spec = parse_id(request.at("id"));
  const auto model = make_case_model(spec.model, request.at("seed"));
  const std::string where = "initialize";
  LaneTally exact;
  try {
    context.note(where);
    const std::string config = config_text(spec, 1, *model);
    keep_config(request, context, config);
    initialize(*model, config, context.group());
    exact.add_finding(where, "was taken, but " + word(spec.precision) +
                                 " is not defined at stage " + std::to_string(spec.stage));
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    const auto keys = refusal_keys(spec.precision, spec.stage);
    const bool is_named = std::any_of(keys.begin(), keys.end(), [&text](const std::string& key) {
      return text.find(key) != std::string::npos;
    });
    if (is_named)
      exact.add_held(1);
    else
      exact.add_finding(where, "refused, but without the name of " + keys.at(0) + ": " + text);
  }
  return {{"exact", exact.to_json()}};
}

void RankCase::play(int step) {
  engine_->on_step(
      [this, step](const std::vector<LocalShard>& shards) { comparison_->observe(step, shards); });
  comparison_->check_scale(step, "loss_scale before it");
  for (int index = 0; index < facts_.spec.accumulation; ++index) micro_batch(step, index);
  comparison_->check_scale(step + 1, "loss_scale after step " + std::to_string(step + 1));
  comparison_->after_step(step);
}

// What differed before an exception is told with it.
nlohmann::json RankCase::run() {
  const auto autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  try {
    for (int step = 0; step < steps_; ++step) play(step);
  } catch (const comm::CommunicationError&) {
    throw;
  } catch (const std::exception& error) {
    if (failures_->empty()) throw;
    const std::string text = error.what();
    lanes_.exact.add_finding(at_step(moment_->step, "exception"),
                             text.substr(0, text.find("\nException raised from ")));
  }
  if (at::autocast::get_autocast_dtype(at::kCPU) != autocast_dtype)
    lanes_.exact.add_finding("after the last step",
                             "the thread's autocast type is another than before");
  return answer();
}

nlohmann::json RankCase::answer() {
  std::map<std::string, int64_t> numels;  // of the trainable parameters
  for (const auto& [name, rule] : facts_.rules)
    numels[name] = c10::multiply_integers(facts_.shapes.at(name));
  nlohmann::json answer = {{"exact", lanes_.exact.to_json()},
                           {"bounded", lanes_.bounded.to_json()},
                           {"cover", cover_rows(numels, *engine_)},
                           {"memory", memory_rows(*engine_)},
                           {"compared", lanes_.compared}};
  comparison_->add_to(answer);
  if (fault_) {
    answer["acted"] = fault_->act().to_json();
    answer["rules"] = lanes_.other_rules.to_json();
  }
  auto specs = comparison_->update_specs();
  if (failures_->has_tensors()) {  // to run ranks again takes memory: the engine goes first
    facts_.context.note("explaining a difference");
    comparison_.reset();
    engine_.reset();
  }
  failures_->explain(std::move(specs), answer);
  if (!lanes_.first.where.empty() && !facts_.keep.empty())
    answer["files"].push_back(lanes_.first.write(facts_.keep, facts_.context.rank()));
  return answer;
}

void RankCase::micro_batch(int step, int index) {
  *moment_ = {step, index, facts_.spec.accumulation};
  facts_.context.note(
      at_step(step, "micro-batch " + std::to_string(index + 1) + " " + word(facts_.spec.style)) +
      acts_so_far());
  const auto batch = reference::to_dtype(
      make_case_batch(
          facts_.data, facts_.spec.model,
          {.seed = facts_.seed, .step = step, .rank = facts_.context.rank(), .micro_batch = index}),
      dtype_of(facts_.spec));
  model_->set_loss_factor(overflowing_batch(facts_.spec) ==
                                  OverflowingBatch{step, facts_.context.rank(), index}
                              ? kOverflowFactor
                              : 1);
  try {
    const auto loss = rank_backward(*engine_, *model_, batch, facts_.spec);
    const int64_t loss_index = int64_t{index} * facts_.spec.world + facts_.context.rank();
    comparison_->check({.phase = Phase::Forward,
                        .step = step,
                        .what = "loss",
                        .begin = loss_index,
                        .micro_batch = index},
                       loss.reshape({1}),
                       at::full({1}, facts_.twin.loss(step, loss_index), at::kFloat));
  } catch (const RefusalMissing& missing) {
    comparison_->finding(
        {.phase = Phase::Forward, .step = step, .what = "loss.backward()", .micro_batch = index},
        missing.what());
  }
  facts_.context.note(at_step(step, "step() after micro-batch " + std::to_string(index + 1)) +
                      acts_so_far());
  engine_->step();
}

// For whoever reads the last note of a rank that did not answer.
std::string RankCase::acts_so_far() const {
  if (!fault_ || fault_->act().times == 0) return {};
  return ", the planted fault acted in " + at_step(fault_->act().first.step, "");
}

}  // namespace equigrad::conformance
