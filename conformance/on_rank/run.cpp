#include "conformance/on_rank/run.hpp"

#include <torch/types.h>

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "conformance/cases/linear_model.hpp"
#include "conformance/faults/adversary.hpp"
#include "conformance/on_rank/answer.hpp"
#include "conformance/on_rank/backward.hpp"
#include "conformance/ranks/private_directory.hpp"
#include "engine/comm/communication_error.hpp"

namespace equigrad::conformance {
namespace {

// One set of ranks may be of several meshes, whose groups have other ranks.
std::string group_name(const std::string& of_mesh, const comm::MeshSizes& sizes) {
  if (of_mesh == "world") return of_mesh;
  return std::to_string(sizes.data) + "x" + std::to_string(sizes.sequence) + "x" +
         std::to_string(sizes.tensor) + "/" + of_mesh;
}

}  // namespace

void keep_config(const nlohmann::json& request, const ranks::RankContext& context,
                 const std::string& config) {
  const std::string path = request.value("config", "");
  if (!path.empty() && context.rank() == 0) std::ofstream(path) << config;
}

nlohmann::json run_case(const nlohmann::json& request, ranks::RankContext& context,
                        const reference::Data& data) {
  const auto spec = parse_id(request.at("id"));
  const uint64_t seed = request.at("seed");
  const auto model = make_case_model(spec.model, seed);
  const auto place = tensor_place(context.rank(), spec);
  Twin twin(request.at("twin"), order_of(spec), place);
  const double threshold = twin.threshold();
  CaseFacts facts{.stage = spec.stage,
                  .recipe = recipe_of(spec, seed, threshold, order_of(spec)),
                  .keep = request.value("keep", ""),
                  .context = context,
                  .make_model = zoo_model(spec, seed, data),
                  .twin = std::move(twin),
                  .tensor_rank = place};
  add_model(facts, *model);
  // One style in four on a communicator that does everything as late as it may.
  const uint64_t by_style = spec.style == Style::TensorBackward ? seed + 1 : 0;
  // Another one is saved before its last step, and goes on in a new engine on other weights.
  const int resumed = spec.style == Style::LossBackward ? kSteps - 1 : -1;
  RankCaseOptions options{.config = with_knobs(config_text(spec, threshold, *model),
                                               request.value("knobs", nlohmann::json::object())),
                          .style = word(spec.style),
                          .fault = request.value("fault", ""),
                          .adversary = request.value("adversary", by_style),
                          .steps = request.value("steps", kSteps),
                          .resumed_before = request.value("resumed_before", resumed)};
  keep_config(request, context, options.config);
  return RankCase(std::move(facts), zoo_rank_model(spec, seed, data), std::move(options)).run();
}

RankCase::RankCase(CaseFacts facts, std::unique_ptr<RankModel> model, RankCaseOptions options)
    : facts_(std::move(facts)),
      model_(std::move(model)),
      options_(std::move(options)),
      moment_(std::make_shared<faults::Moment>()) {
  make_engine();
  lanes_.with_other_rules = fault_ != nullptr;
  const auto groups = model_->groups();
  failures_.emplace(facts_,
                    positions_of(facts_, groups, engine_->config().zero.reduce_bucket_size));
  comparison_.emplace(facts_, engine_, options_.steps, lanes_, *failures_);
  beside_.getters.emplace(facts_, groups, engine_, lanes_, options_.rates)
      .read_gradient_in(options_.gradient_step);
  beside_.rest.emplace(facts_, groups, engine_, lanes_).when_new();
}

void RankCase::make_engine() {
  auto& context = facts_.context;
  context.note("initialize");
  if (!options_.fault.empty()) {
    std::vector<std::string> names;  // as the engine's table has them
    for (const auto& group : model_->groups())
      for (const auto& [name, tensor] : group) names.push_back(name);
    fault_ = std::make_unique<faults::Planted>(
        options_.fault, facts_.zero_rank(), static_cast<int>(facts_.recipe.world), moment_, names);
  }
  const bool has_groups = facts_.sizes.sequence * facts_.sizes.tensor > 1;
  ranks_ = comm::make_mesh(
      context.rank(), facts_.sizes, [&](const std::string& name, int rank, int size) {
        const auto real = context.group(group_name(name, facts_.sizes), rank, size);
        const auto group = faults::adversarial(real, options_.adversary, has_groups);
        return fault_ ? fault_->wrap(group) : group;
      });
  model_->join(ranks_);
  // What a rank is the first to have is taken over by the others.
  model_->unsettle([this](const std::string& name) {
    return facts_.zero_rank() > 0 ||
           (facts_.place.tensor > 0 && !facts_.tensor_rank.cuts.contains(name));
  });
  engine_ = beside_.caller.around("initialize()", {Share::Callback},
                                  [&] { return model_->make_engine(options_.config, ranks_); });
}

// Saved, thrown away, and loaded by another one that has other weights: nothing has happened.
void RankCase::resume(int step) {
  auto& caller = beside_.caller;
  auto& context = facts_.context;
  const auto folder = context.directory() + "/" + context.set() + ".resumed";
  context.note(at_step(step, "save_checkpoint()") + acts_so_far());
  caller.around("save_checkpoint()", {}, [&] { engine_->save_checkpoint(folder, "resumed"); });
  caller.around("the destruction of the engine", {Share::Callback}, [&] { engine_.reset(); });
  model_->renew();
  context.note(at_step(step, "initialize()") + acts_so_far());
  caller.around("initialize()", {Share::Callback},
                [&] { engine_ = model_->make_engine(options_.config, ranks_); });
  context.note(at_step(step, "load_checkpoint()") + acts_so_far());
  caller.around("load_checkpoint()", {}, [&] { engine_->load_checkpoint(folder, "resumed"); });
  // Who still reads a file has it mapped.
  if (context.rank() == 0) ranks::remove_private_directory(folder);
}

// What the model's own passes draw and set is not the engine's.
void RankCase::end_engine() {
  facts_.context.note(at_step(options_.steps - 1, "destruction of the engine") + acts_so_far());
  beside_.caller.enter(options_.steps - 1);
  beside_.getters.reset();
  beside_.rest.reset();
  comparison_.reset();
  model_->end();
  beside_.caller.around("the destruction of the engine", {Share::Callback},
                        [this] { engine_.reset(); });
  model_->without_engine();
  beside_.caller.judge("the case", beside_.before, {Share::Setting, Share::Generator});
  lanes_.compared["caller"] += beside_.caller.calls();
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
  beside_.caller.enter(step, 0);
  if (step == options_.resumed_before) resume(step);
  engine_->on_step(
      [this, step](const std::vector<LocalShard>& shards) { comparison_->observe(step, shards); });
  comparison_->check_scale(step, "loss_scale before it");
  for (int index = 0; index < facts_.recipe.accumulation_steps; ++index) micro_batch(step, index);
  comparison_->check_scale(step + 1, "loss_scale after step " + std::to_string(step + 1));
  beside_.caller.around("local_shards() and full_parameter()", {},
                        [&] { comparison_->after_step(step); });
  comparison_->check_buffers(step, model_->buffers());
}

// What differed before an exception is told with it.
nlohmann::json RankCase::run() {
  try {
    for (int step = 0; step < options_.steps; ++step) play(step);
  } catch (const comm::CommunicationError&) {
    throw;
  } catch (const std::exception& error) {
    const std::string text = error.what(), &before = lanes_.exact.first();
    if (failures_->empty() && before.empty()) throw;
    if (failures_->empty()) throw std::runtime_error(text + "\n  before it: " + before);
    lanes_.exact.add_finding(at_step(moment_->step, "exception"),
                             text.substr(0, text.find("\nException raised from ")));
  }
  return answer();
}

nlohmann::json RankCase::answer() {
  std::map<std::string, int64_t> numels;  // of the trainable parameters
  for (const auto& [name, rule] : facts_.rules)
    numels[name] = c10::multiply_integers(facts_.shapes.at(name));
  nlohmann::json answer = {{"cover", cover_rows(numels, *engine_)},
                           {"tensor_rank", facts_.place.tensor},
                           {"memory", memory_rows(*engine_)}};
  comparison_->add_to(answer);
  auto specs = comparison_->update_specs();
  if (fault_) answer["acted"] = fault_->act().to_json();
  end_engine();
  answer["exact"] = lanes_.exact.to_json();
  answer["bounded"] = lanes_.bounded.to_json();
  answer["compared"] = lanes_.compared;
  if (fault_) answer["rules"] = lanes_.other_rules.to_json();
  if (failures_->has_tensors()) facts_.context.note("explaining a difference");
  failures_->explain(std::move(specs), answer);
  if (!lanes_.first.where.empty() && !facts_.keep.empty())
    answer["files"].push_back(lanes_.first.write(facts_.keep, facts_.context.rank()));
  return answer;
}

void RankCase::micro_batch(int step, int index) {
  *moment_ = {step, index, static_cast<int>(facts_.recipe.accumulation_steps)};
  beside_.caller.enter(step, index);
  take_pass(step, index);
  take_step(step, index);
}

void RankCase::take_pass(int step, int index) {
  facts_.context.note(
      at_step(step, "micro-batch " + std::to_string(index + 1) + " " + options_.style) +
      acts_so_far());
  try {
    const auto loss = model_->run_pass(*engine_, {step, facts_.zero_rank(), index}, beside_.caller);
    const int64_t loss_index = index * facts_.recipe.world + facts_.zero_rank();
    comparison_->check({.phase = Phase::Forward,
                        .step = step,
                        .what = "loss",
                        .begin = loss_index,
                        .micro_batch = index},
                       loss, at::full({1}, facts_.twin.loss(step, loss_index), at::kFloat));
  } catch (const RefusalMissing& missing) {
    comparison_->finding(
        {.phase = Phase::Forward, .step = step, .what = "loss.backward()", .micro_batch = index},
        missing.what());
  }
}

void RankCase::take_step(int step, int index) {
  auto& caller = beside_.caller;
  const std::string after = " after micro-batch " + std::to_string(index + 1);
  facts_.context.note(at_step(step, "getters" + after) + acts_so_far());
  caller.around("the getters", {}, [&] { beside_.getters->before_step(step, index); });
  facts_.context.note(at_step(step, "step()" + after) + acts_so_far());
  const auto take = [&] { engine_->step(); };
  if (engine_->config().flops_profiler.enabled)  // which watches operators from a step on
    caller.around("step()", {Share::Callback}, take);
  else
    caller.around("step()", {}, take);
  beside_.rest->after_step(step, index);
  facts_.context.note(at_step(step, "getters after step()" + after) + acts_so_far());
  caller.around("the getters", {}, [&] { beside_.getters->after_step(step, index); });
}

// For whoever reads the last note of a rank that did not answer.
std::string RankCase::acts_so_far() const {
  if (!fault_ || fault_->act().times == 0) return {};
  return ", the planted fault acted in " + at_step(fault_->act().first.step, "");
}

}  // namespace equigrad::conformance
