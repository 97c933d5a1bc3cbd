#include "conformance/on_rank/run.hpp"

#include <ATen/autocast_mode.h>
#include <torch/torch.h>

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

// The default of torch_autocast.lower_precision_safe_modules.
bool is_safe(const std::string& module_type) {
  return module_type == "torch.nn.Linear" || module_type == "torch.nn.Conv1d" ||
         module_type == "torch.nn.Conv2d" || module_type == "torch.nn.Conv3d";
}

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

}  // namespace

std::string at_step(int step, const std::string& what) {
  return "step " + std::to_string(step + 1) + " " + what;
}

RankCase::RankCase(const nlohmann::json& request, ranks::RankContext& context,
                   const reference::Data& data)
    : spec_(parse_id(request.at("id"))),
      seed_(request.at("seed")),
      keep_(request.value("keep", "")),
      steps_(request.value("steps", kSteps)),
      context_(context),
      data_(data),
      twin_(request.at("twin"), order_of(spec_)),
      model_(std::make_shared<OverflowingModel>(make_case_model(spec_.model, seed_))),
      moment_(std::make_shared<faults::Moment>()) {
  for (const auto& [name, tensor] : reference::unique_parameters(*model_))
    shapes_[name] = tensor.sizes().vec();
  for (const auto& group : model_->groups())
    for (const auto& name : group.names) {
      auto& rule = rules_[name] = optimizer_of(spec_);
      rule.lr = group.lr.value_or(rule.lr);
      rule.weight_decay = group.weight_decay.value_or(rule.weight_decay);
    }
  if (const auto dtype = autocast_dtype_of(spec_))
    for (const auto& [name, types] : module_types(*model_))
      if (std::all_of(types.begin(), types.end(), is_safe)) communication_dtypes_[name] = *dtype;
  make_engine(request);
  find_positions();
}

void RankCase::make_engine(const nlohmann::json& request) {
  const std::string fault = request.value("fault", "");
  // One style in four on a communicator that does everything as late as it may.
  const uint64_t by_style = spec_.style == Style::TensorBackward ? seed_ + 1 : 0;
  const uint64_t adversary = request.value("adversary", by_style);
  context_.note("initialize");
  if (context_.rank() != 0) unsettle(*model_);
  auto communicator = faults::adversarial(context_.group(), adversary);
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
    fault_ = std::make_unique<faults::Planted>(fault, context_.rank(), spec_.world, moment_, names);
    communicator = fault_->wrap(communicator);
  }
  const auto config = with_knobs(config_text(spec_, twin_.threshold(), *model_),
                                 request.value("knobs", nlohmann::json::object()));
  keep_config(request, context_, config);
  // Both ways in: a model with several groups by the core, the others as modules.
  engine_ = has_groups
                ? initialize(groups_of(*model_), parse_config(config, spec_.world), communicator)
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
  engine_->on_step([this, step](const std::vector<LocalShard>& shards) { observe(step, shards); });
  check_scale(step, "loss_scale before it");
  for (int index = 0; index < spec_.accumulation; ++index) micro_batch(step, index);
  check_scale(step + 1, "loss_scale after step " + std::to_string(step + 1));
  after_step(step);
}

// What differed before an exception is told with it.
nlohmann::json RankCase::run() {
  gradients_.resize(static_cast<std::size_t>(steps_));
  const auto autocast_dtype = at::autocast::get_autocast_dtype(at::kCPU);
  try {
    for (int step = 0; step < steps_; ++step) play(step);
  } catch (const comm::CommunicationError&) {
    throw;
  } catch (const std::exception& error) {
    if (divergences_.all().empty()) throw;
    const std::string text = error.what();
    exact_.add_finding(at_step(moment_->step, "exception"),
                       text.substr(0, text.find("\nException raised from ")));
  }
  if (at::autocast::get_autocast_dtype(at::kCPU) != autocast_dtype)
    exact_.add_finding("after the last step", "the thread's autocast type is another than before");
  std::map<std::string, int64_t> numels;  // of the trainable parameters
  for (const auto& [name, rule] : rules_) numels[name] = c10::multiply_integers(shapes_.at(name));
  nlohmann::json answer = {{"exact", exact_.to_json()},
                           {"bounded", bounded_.to_json()},
                           {"digest", digest_},
                           {"digested", digested_},
                           {"cover", cover_rows(numels, *engine_)},
                           {"memory", memory_rows(*engine_)},
                           {"compared", compared_},
                           {"gradients", gradient_rows()}};
  if (fault_) {
    answer["acted"] = fault_->act().to_json();
    answer["rules"] = other_rules_.to_json();
  }
  explain(answer);
  if (!first_.where.empty() && !keep_.empty())
    answer["files"].push_back(first_.write(keep_, context_.rank()));
  return answer;
}

void RankCase::micro_batch(int step, int index) {
  *moment_ = {step, index, spec_.accumulation};
  context_.note(
      at_step(step, "micro-batch " + std::to_string(index + 1) + " " + word(spec_.style)) +
      acts_so_far());
  const auto batch = reference::to_dtype(
      make_case_batch(data_, spec_.model, {seed_, step, context_.rank(), index}), dtype_of(spec_));
  model_->set_loss_factor(overflowing_batch(spec_) == OverflowingBatch{step, context_.rank(), index}
                              ? kOverflowFactor
                              : 1);
  try {
    const auto loss = rank_backward(*engine_, *model_, batch, spec_);
    const int64_t loss_index = int64_t{index} * spec_.world + context_.rank();
    check({Phase::Forward, step, "loss", "", loss_index, index}, loss.reshape({1}),
          at::full({1}, twin_.loss(step, loss_index), at::kFloat));
  } catch (const RefusalMissing& missing) {
    finding({Phase::Forward, step, "loss.backward()", "", 0, index}, missing.what());
  }
  context_.note(at_step(step, "step() after micro-batch " + std::to_string(index + 1)) +
                acts_so_far());
  engine_->step();
}

// Where engine and twin part, and what it looks like.
void RankCase::explain(nlohmann::json& answer) {
  if (!failures_.empty()) {
    context_.note("explaining a difference");
    engine_.reset();
    DiagnosisInput input{spec_,
                         seed_,
                         data_,
                         twin_,
                         shapes_,
                         keep_,
                         context_.rank(),
                         failed_norm_,
                         communication_dtypes_,
                         {},
                         update_seen_};
    for (const auto& [name, rule] : rules_) input.rules[name] = update_spec(name);
    const auto diagnosis = diagnose(input, failures_, divergences_);
    answer["text"] = diagnosis.text;
    answer["files"] = diagnosis.files;
  }
  answer["divergences"] = divergences_.to_json();
}

void RankCase::see_with_other_rules(const std::string& where, const at::Tensor& got,
                                    const at::Tensor& want) {
  const auto is = [&](const char* kind) { return where.find(kind) != std::string::npos; };
  if (is(" gradient ") || is(" master ") || is(" parameter ")) other_rules_.see_tensor(got, want);
  if (where.ends_with(" loss")) other_rules_.see_loss(got.item<float>(), want.item<float>());
}

// For whoever reads the last note of a rank that did not answer.
std::string RankCase::acts_so_far() const {
  if (!fault_ || fault_->act().times == 0) return {};
  return ", the planted fault acted in " + at_step(fault_->act().first.step, "");
}

// [name, held, margin] of every gradient, step by step: what held beside what did not.
nlohmann::json RankCase::gradient_rows() const {
  auto steps = nlohmann::json::array();
  for (const auto& gradients : gradients_) {
    auto rows = nlohmann::json::array();
    for (const auto& [name, result] : gradients)
      rows.push_back({name, result.held, exact_text(result.margin)});
    steps.push_back(rows);
  }
  return steps;
}

}  // namespace equigrad::conformance
