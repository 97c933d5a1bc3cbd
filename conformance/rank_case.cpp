#include "conformance/rank_case.hpp"

#include <torch/torch.h>

#include <cmath>

#include "conformance/oracle/digest.hpp"
#include "conformance/rank_answer.hpp"
#include "conformance/recipe.hpp"

namespace equigrad::conformance {
namespace {

std::string at_step(int step, const std::string& what) {
  return "step " + std::to_string(step + 1) + " " + what;
}

// Frozen parameters belong to no group of the model; the engine keeps them too.
std::vector<ParameterGroup> engine_groups(reference::Model& model) {
  std::map<std::string, at::Tensor> tensors;
  std::vector<ParameterGroup> groups(1);
  for (const auto& [name, tensor] : reference::unique_parameters(model)) {
    tensors[name] = tensor;
    if (!tensor.requires_grad()) groups[0].parameters.push_back({name, tensor});
  }
  bool first = true;
  for (const auto& from : model.groups()) {
    if (!first) groups.emplace_back();
    first = false;
    groups.back().lr = from.lr;
    groups.back().weight_decay = from.weight_decay;
    for (const auto& name : from.names)
      groups.back().parameters.push_back({name, tensors.at(name)});
  }
  return groups;
}

oracle::Weights weights_of(const LocalShard& shard) { return {shard.master, shard.state}; }

}  // namespace

RankCase::RankCase(const nlohmann::json& request, ranks::RankContext& context,
                   const reference::Data& data)
    : spec_(parse_id(request.at("id"))),
      seed_(request.at("seed")),
      keep_(request.value("keep", "")),
      context_(context),
      data_(data),
      twin_(request.at("twin"), order_of(spec_.stage)),
      model_(reference::make_model(spec_.model, seed_)),
      moment_(std::make_shared<faults::Moment>()) {
  for (const auto& [name, tensor] : reference::unique_parameters(*model_))
    shapes_[name] = tensor.sizes().vec();
  for (const auto& group : model_->groups())
    for (const auto& name : group.names) {
      auto& rule = rules_[name] = optimizer_of(spec_);
      rule.lr = group.lr.value_or(rule.lr);
      rule.weight_decay = group.weight_decay.value_or(rule.weight_decay);
    }
  make_engine(request.value("fault", ""));
}

void RankCase::make_engine(const std::string& fault) {
  context_.note("initialize");
  auto communicator = context_.group();
  if (!fault.empty()) communicator = faults::make_faulty(communicator, fault, moment_);
  const std::string config = config_text(spec_, twin_.threshold(), *model_);
  // Both ways in: a model with several groups by the core, the others as modules.
  engine_ =
      model_->groups().size() > 1
          ? initialize(engine_groups(*model_), parse_config(config, spec_.world), communicator)
          : initialize(*model_, config, communicator);
}

nlohmann::json RankCase::run() {
  gradients_.resize(kSteps);
  for (int step = 0; step < kSteps; ++step) {
    engine_->on_step(
        [this, step](const std::vector<LocalShard>& shards) { observe(step, shards); });
    for (int index = 0; index < spec_.accumulation; ++index) micro_batch(step, index);
    after_step(step);
  }
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
  if (!failures_.empty()) {
    context_.note("explaining a difference");
    engine_.reset();
    const auto diagnosis = diagnose(spec_, seed_, data_, twin_, failures_[0],
                                    shapes_.at(failures_[0].name), keep_, context_.rank());
    answer["text"] = diagnosis.text;
    answer["files"] = diagnosis.files;
  }
  return answer;
}

void RankCase::micro_batch(int step, int index) {
  *moment_ = {step, index};
  context_.note(
      at_step(step, "micro-batch " + std::to_string(index + 1) + " " + word(spec_.style)));
  const auto batch = reference::to_dtype(
      data_.make_batch(spec_.model, {seed_, step, context_.rank(), index}), dtype_of(spec_));
  backward(batch, int64_t{index} * spec_.world + context_.rank(), step);
  context_.note(at_step(step, "step() after micro-batch " + std::to_string(index + 1)));
  engine_->step();
}

void RankCase::backward(const reference::Batch& batch, int64_t loss_index, int step) {
  at::Tensor loss;
  if (spec_.style == Style::TensorBackward) {
    const auto output = model_->output(batch);
    const auto leaf = output.detach().requires_grad_();
    loss = model_->criterion(leaf, batch);
    loss.backward();
    const auto penalty = model_->penalty();
    if (penalty.defined()) {
      torch::autograd::backward({output, penalty}, {leaf.grad(), at::Tensor()});
      loss = loss + penalty;
    } else {
      output.backward(leaf.grad());
    }
  } else {
    loss = model_->loss(batch);
    if (spec_.style == Style::EngineBackward) engine_->backward(loss);
    if (spec_.style == Style::ScaleBackward) engine_->scale(loss).backward();
    if (spec_.style == Style::LossBackward) loss.backward();
  }
  compare(at_step(step, "loss"), loss_index, loss.detach().reshape({1}),
          at::full({1}, twin_.loss(step, loss_index), at::kFloat));
}

bool RankCase::compare(const std::string& where, int64_t begin, const at::Tensor& got,
                       at::Tensor want) {
  const auto report = oracle::compare(got, want);
  // "step 1 gradient fc.weight": the word after the step says what was compared.
  const auto word_at = where.find(' ', 5) + 1;
  compared_[where.substr(word_at, where.find(' ', word_at) - word_at)] += report.compared;
  return exact_.add(where, begin, report);
}

void RankCase::observe(int step, const std::vector<LocalShard>& shards) {
  compare(at_step(step, "norm of the gradient"), 0,
          at::full({1}, engine_->get_global_grad_norm().value_or(NAN), at::kDouble),
          at::full({1}, twin_.grad_norm(step), at::kDouble));
  for (const auto& shard : shards) {
    check_gradient(step, shard);
    auto& copy = before_[shard.name] = shard;
    copy.master = shard.master.clone();
    if (shard.gradient.defined()) copy.gradient = shard.gradient.clone();
    for (auto& [name, state] : copy.state) state = state.clone();
  }
}

void RankCase::check_gradient(int step, const LocalShard& shard) {
  const std::string where = at_step(step, "gradient " + shard.name);
  const auto whole = twin_.tensor(step, "gradient", shard.name);
  if (whole.defined() != shard.gradient.defined())
    return exact_.add_finding(where, whole.defined() ? "absent, but some rank used the parameter"
                                                     : "present, but no rank used the parameter");
  if (!whole.defined()) return;
  const auto want = whole.slice(0, shard.begin, shard.end);
  const auto got = shard.gradient.flatten();
  auto& result = gradients_.at(static_cast<std::size_t>(step))[shard.name];
  result.held = compare(where, shard.begin, got, want);
  if (!result.held && failures_.empty())
    failures_.push_back({step, shard.name, shard.begin, got.clone(), want.clone()});
  digest(step, "gradient", shard, got);
  if (step == 0 && got.numel() > 0) bound_gradient(shard, where);
}

void RankCase::bound_gradient(const LocalShard& shard, const std::string& where) {
  const auto part = [&](const char* run, const char* what) {
    const auto whole = twin_.other(run, what, shard.name);
    TORCH_CHECK(whole.defined(), "[bounded lane] expected a ", run, " run of ", shard.name);
    return whole.slice(0, shard.begin, shard.end);
  };
  oracle::Reduction reduction;
  reduction.world = spec_.world;
  reduction.accumulation_steps = spec_.accumulation;
  reduction.param_dtype = dtype_of(spec_);
  reduction.accumulate_dtype = accumulate_dtype_of(spec_);
  reduction.order =
      spec_.stage <= 1 ? oracle::SumOrder::AddThenReduce : oracle::SumOrder::ReduceThenAdd;
  const double norm = engine_->get_global_grad_norm().value_or(NAN);
  const double threshold = twin_.threshold();
  if (threshold > 0 && norm > threshold)
    reduction.clip_factor = static_cast<float>(threshold / (norm + 1e-6));
  const auto got = shard.gradient.flatten();
  compared_["bound"] += got.numel();
  const auto plain = part("plain", "gradient"), sums = part("plain", "absolute_sum");
  const auto rounding = oracle::check_reduction(got, plain, sums, reduction);
  gradients_[0][shard.name].margin = rounding.margin;
  bounded_.add(where + " (reduction)", shard.begin, rounding);
  // An engine as exact as the plain run is at this bound by definition.
  bounded_.add_pass_or_fail(
      where + " (against higher precision)", shard.begin,
      oracle::check_gradient(got, plain, part("precise", "gradient"), sums, reduction));
}

void RankCase::after_step(int step) {
  if (before_.empty()) exact_.add_finding(at_step(step, "boundary"), "on_step was not called");
  for (const auto& shard : engine_->local_shards()) {
    const auto seen = before_.find(shard.name);
    if (seen == before_.end() || seen->second.begin != shard.begin || seen->second.end != shard.end)
      exact_.add_finding(at_step(step, "shard of " + shard.name), "on_step did not show it");
  }
  for (const auto& shard : engine_->local_shards()) {
    check_shard(step, shard);
    check_update(step, shard);
  }
  before_.clear();
  check_parameters(step);
}

void RankCase::check_shard(int step, const LocalShard& shard) {
  const auto slice = [&](const std::string& what) {
    const auto whole = twin_.tensor(step, what, shard.name);
    return whole.defined() ? whole.slice(0, shard.begin, shard.end) : at::Tensor();
  };
  const auto check = [&](const std::string& what, const at::Tensor& values) {
    const auto want = slice(what);
    const std::string where = at_step(step, what + " " + shard.name);
    if (!want.defined()) return exact_.add_finding(where, "the twin has none");
    compare(where, shard.begin, values.flatten(), want);
    digest(step, what, shard, values.flatten());
  };
  check("master", shard.master);
  for (const auto& [name, state] : shard.state) check(name, state);
  const auto wanted = reference::state_names(rules_.at(shard.name)).size();
  if (wanted != shard.state.size())
    exact_.add_finding(at_step(step, "states of " + shard.name),
                       "expected " + std::to_string(wanted) + " of them, got " +
                           std::to_string(shard.state.size()));
}

void RankCase::check_update(int step, const LocalShard& shard) {
  const auto before = before_.find(shard.name);
  if (before == before_.end() || !before->second.gradient.defined() || shard.begin == shard.end)
    return;
  const auto& rule = rules_.at(shard.name);
  oracle::UpdateSpec update;
  update.rule = spec_.optimizer == Rule::Sgd ? oracle::UpdateRule::Sgd : oracle::UpdateRule::AdamW;
  update.lr = rule.lr;
  update.weight_decay = rule.weight_decay;
  update.beta1 = rule.beta1;
  update.beta2 = rule.beta2;
  update.eps = rule.eps;
  update.momentum = rule.momentum;
  update.step = ++updates_[shard.name];
  compared_["update"] += shard.master.numel();
  bounded_.add(at_step(step, "update of " + shard.name), shard.begin,
               oracle::check_update(update, weights_of(before->second),
                                    before->second.gradient.flatten(), weights_of(shard)));
}

void RankCase::check_parameters(int step) {
  context_.note(at_step(step, "full parameters"));
  for (const auto& [name, shape] : shapes_) {
    const auto got = engine_->full_parameter(name);
    const auto want = twin_.tensor(step, "parameter", name);
    const std::string where = at_step(step, "parameter " + name);
    if (got.sizes().vec() != shape) exact_.add_finding(where, "the shape has changed");
    compare(where, 0, got.flatten(), want);
    const LocalShard whole{name, 0, got.numel(), {}, {}, {}};
    if (context_.rank() == 0) digest(step, "parameter", whole, got.flatten());
  }
}

// At stage 0 every rank holds everything: rank 0 speaks for all.
void RankCase::digest(int step, const std::string& what, const LocalShard& shard,
                      const at::Tensor& values) {
  if (spec_.stage == 0 && context_.rank() != 0) return;
  digest_ += oracle::digest(what + "/" + shard.name, step, shard.begin, values);
  digested_ += values.numel();
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
