// What a rank compares: of every step, with the twin and with the bounds.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "conformance/oracle/digest.hpp"
#include "conformance/rank_case.hpp"
#include "conformance/recipe.hpp"

namespace equigrad::conformance {
namespace {

oracle::Weights weights_of(const LocalShard& shard) { return {shard.master, shard.state}; }

oracle::Division division_of(reference::Averaging averaging) {
  using reference::Averaging;
  return averaging == Averaging::BeforeSum ? oracle::Division::BeforeSum
         : averaging == Averaging::Around  ? oracle::Division::Around
         : averaging == Averaging::Never   ? oracle::Division::Never
                                           : oracle::Division::AfterSum;
}

}  // namespace

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
  if (step == twin_.first_applied() && got.numel() > 0) bound_gradient(step, shard, where);
}

void RankCase::bound_gradient(int step, const LocalShard& shard, const std::string& where) {
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
  reduction.master_dtype = shard.master.scalar_type();
  reduction.order =
      spec_.stage <= 1 ? oracle::SumOrder::AddThenReduce : oracle::SumOrder::ReduceThenAdd;
  const auto precision = recipe_of(spec_, seed_, 0, order_of(spec_.stage)).precision;
  reduction.travels_in = precision.communication_dtype;
  const auto lowered = travels_in_.find(shard.name);
  if (!reduction.travels_in && lowered != travels_in_.end()) reduction.travels_in = lowered->second;
  reduction.division = division_of(precision.averaging);
  reduction.predivide_factor = precision.predivide_factor;
  reduction.loss_scale = twin_.loss_scale(step);
  const double norm = engine_->get_global_grad_norm().value_or(NAN);
  const double threshold = twin_.threshold();
  if (threshold > 0 && norm > threshold)
    reduction.clip_factor = static_cast<float>(threshold / (norm + 1e-6));
  const auto got = shard.gradient.flatten();
  compared_["bound"] += got.numel();
  const auto plain = part("plain", "gradient"), sums = part("plain", "absolute_sum");
  const auto rounding = oracle::check_reduction(got, plain, sums, reduction);
  gradients_.at(static_cast<std::size_t>(step))[shard.name].margin = rounding.margin;
  bounded_.add(where + " (reduction)", shard.begin, rounding);
  // An engine as exact as the plain run is at this bound by definition.
  bounded_.add_pass_or_fail(
      where + " (against higher precision)", shard.begin,
      oracle::check_gradient(got, plain, part("precise", "gradient"), sums, reduction));
}

void RankCase::check_scale(int step, const std::string& what) {
  compare(at_step(std::min(step, steps_ - 1), what), 0,
          at::full({1}, engine_->loss_scale(), at::kDouble),
          at::full({1}, twin_.loss_scale(step), at::kDouble));
}

// A step that is skipped shows nothing to on_step, and counts.
void RankCase::check_boundary(int step) {
  const bool is_skipped = twin_.skipped(step);
  skipped_ += is_skipped ? 1 : 0;
  compare(at_step(step, "skipped_steps"), 0,
          at::full({1}, engine_->counters().skipped_steps, at::kLong),
          at::full({1}, skipped_, at::kLong));
  if (engine_->was_step_applied() == is_skipped)
    exact_.add_finding(at_step(step, "boundary"), is_skipped ? "the step was applied, but a "
                                                               "gradient is not finite"
                                                             : "the step was not applied");
  if (!is_skipped && before_.empty())
    exact_.add_finding(at_step(step, "boundary"), "on_step was not called");
  if (is_skipped && !before_.empty())
    exact_.add_finding(at_step(step, "boundary"), "on_step was called, but the step is skipped");
  if (is_skipped && std::isfinite(engine_->get_global_grad_norm().value_or(0)))
    exact_.add_finding(at_step(step, "norm of the gradient"), "finite, but a gradient is not");
}

void RankCase::after_step(int step) {
  check_boundary(step);
  for (const auto& shard : engine_->local_shards()) {
    const auto seen = before_.find(shard.name);
    if (twin_.skipped(step)) break;
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

}  // namespace equigrad::conformance
