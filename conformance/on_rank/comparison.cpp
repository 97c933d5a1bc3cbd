// What a rank compares: of every step, with the twin and with the bounds.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "conformance/cases/recipe.hpp"
#include "conformance/on_rank/run.hpp"
#include "conformance/oracle/digest.hpp"

namespace equigrad::conformance {
namespace {

oracle::Weights weights_of(const LocalShard& shard) { return {shard.master, shard.state}; }

oracle::Averaging averaging_of(reference::Averaging averaging) {
  using reference::Averaging;
  return averaging == Averaging::BeforeSum ? oracle::Averaging::BeforeSum
         : averaging == Averaging::Around  ? oracle::Averaging::Around
         : averaging == Averaging::Never   ? oracle::Averaging::Never
                                           : oracle::Averaging::AfterSum;
}

}  // namespace

void RankCase::observe(int step, const std::vector<LocalShard>& shards) {
  norm_ = engine_->get_global_grad_norm().value_or(NAN);
  const bool norm_held =
      compare({Phase::Norm, step, "norm of the gradient", "", 0, -1},
              at::full({1}, norm_, at::kDouble), at::full({1}, twin_.grad_norm(step), at::kDouble));
  std::vector<Failure> seen;
  for (const auto& shard : shards) {
    if (auto gradient = check_gradient(step, shard)) seen.push_back(std::move(*gradient));
    auto& copy = before_[shard.name] = shard;
    copy.master = shard.master.clone();
    if (shard.gradient.defined()) copy.gradient = shard.gradient.clone();
    for (auto& [name, state] : copy.state) state = state.clone();
  }
  if (!twin_.skipped(step)) note_gradients(step, seen, norm_held);
}

// What was compared; nothing where there was nothing to compare.
std::optional<Failure> RankCase::check_gradient(int step, const LocalShard& shard) {
  const Site site{Phase::Gradient, step, "gradient", shard.name, shard.begin, -1};
  const auto whole = twin_.tensor(step, "gradient", shard.name);
  if (whole.defined() != shard.gradient.defined()) {
    finding(site, whole.defined() ? "absent, but some rank used the parameter"
                                  : "present, but no rank used the parameter");
    return std::nullopt;
  }
  if (!whole.defined()) return std::nullopt;
  const auto want = whole.slice(0, shard.begin, shard.end);
  const auto got = shard.gradient.flatten();
  gradients_.at(static_cast<std::size_t>(step))[shard.name].held = compare(site, got, want);
  digest(step, "gradient", shard, got);
  if (step == twin_.first_applied() && got.numel() > 0) bound_gradient(step, shard, where_of(site));
  return Failure{site, got, want};
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
  if (sums_exactly(spec_.precision))
    reduction.order = oracle::SumOrder::ExactGrid;
  else
    reduction.order =
        spec_.stage <= 1 ? oracle::SumOrder::AddThenReduce : oracle::SumOrder::ReduceThenAdd;
  const auto precision = recipe_of(spec_, seed_, 0, order_of(spec_)).precision;
  reduction.communication_dtype = precision.communication_dtype;
  const auto lowered = communication_dtypes_.find(shard.name);
  if (!reduction.communication_dtype && lowered != communication_dtypes_.end())
    reduction.communication_dtype = lowered->second;
  reduction.averaging = averaging_of(precision.averaging);
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
  const bool is_start = what.ends_with("before it");
  check({is_start ? Phase::Start : Phase::Scale, is_start ? step : step - 1, what, "", 0, -1},
        at::full({1}, engine_->loss_scale(), at::kDouble),
        at::full({1}, twin_.loss_scale(step), at::kDouble));
}

// A step that is skipped shows nothing to on_step, and counts.
void RankCase::check_boundary(int step) {
  const bool is_skipped = twin_.skipped(step);
  const double norm = engine_->get_global_grad_norm().value_or(0);
  skipped_ += is_skipped ? 1 : 0;
  if (engine_->was_step_applied() == is_skipped) {
    // Nobody saw that gradient; the engine says that it was not finite.
    const bool is_gradient = !is_skipped && !std::isfinite(norm);
    finding({is_gradient ? Phase::Gradient : Phase::Skip, step,
             is_gradient ? "gradient" : "boundary", "", 0, -1},
            is_skipped    ? "the step was applied, but a gradient is not finite"
            : is_gradient ? "not finite, and the step was not applied"
                          : "the step was not applied");
  }
  check({Phase::Scale, step, "skipped_steps", "", 0, -1},
        at::full({1}, engine_->counters().skipped_steps, at::kLong),
        at::full({1}, skipped_, at::kLong));
  const Site boundary{Phase::Skip, step, "boundary", "", 0, -1};
  if (!is_skipped && before_.empty()) finding(boundary, "on_step was not called");
  if (is_skipped && !before_.empty())
    finding(boundary, "on_step was called, but the step is skipped");
  if (is_skipped && std::isfinite(norm))
    finding({Phase::Norm, step, "norm of the gradient", "", 0, -1},
            "finite, but a gradient is not");
}

void RankCase::after_step(int step) {
  check_boundary(step);
  for (const auto& shard : engine_->local_shards()) {
    const auto seen = before_.find(shard.name);
    if (twin_.skipped(step)) break;
    if (seen == before_.end() || seen->second.begin != shard.begin || seen->second.end != shard.end)
      finding({Phase::Update, step, "shard", shard.name, 0, -1}, "on_step did not show it");
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
  const auto check_values = [&](const std::string& what, const at::Tensor& values) {
    const auto want = slice(what);
    const Site site{Phase::Update, step, what, shard.name, shard.begin, -1};
    if (!want.defined()) return finding(site, "the twin has none");
    if (!check(site, values.flatten(), want)) note_update(step, shard);
    digest(step, what, shard, values.flatten());
  };
  check_values("master", shard.master);
  for (const auto& [name, state] : shard.state) check_values(name, state);
  const auto wanted = reference::state_names(rules_.at(shard.name)).size();
  if (wanted != shard.state.size())
    finding({Phase::Update, step, "states", shard.name, shard.begin, -1},
            "expected " + std::to_string(wanted) + " of them, got " +
                std::to_string(shard.state.size()));
}

// What the update began with, for its explanation.
void RankCase::note_update(int step, const LocalShard& shard) {
  const auto before = before_.find(shard.name);
  if (divergences_.all().front().phase != Phase::Update ||
      divergences_.all().front().step != step || before == before_.end() ||
      !before->second.gradient.defined())
    return;
  auto& seen = update_seen_[shard.name];
  seen.spec = update_spec(shard.name);
  ++seen.spec.step;
  seen.before = weights_of(before->second);
  seen.gradient = before->second.gradient.flatten();
  seen.after.master = shard.master.clone();
  for (const auto& [name, state] : shard.state) seen.after.state[name] = state.clone();
}

oracle::UpdateSpec RankCase::update_spec(const std::string& name) const {
  const auto& rule = rules_.at(name);
  oracle::UpdateSpec update;
  update.rule = spec_.optimizer == Rule::Sgd ? oracle::UpdateRule::Sgd : oracle::UpdateRule::AdamW;
  update.lr = rule.lr;
  update.weight_decay = rule.weight_decay;
  update.beta1 = rule.beta1;
  update.beta2 = rule.beta2;
  update.eps = rule.eps;
  update.momentum = rule.momentum;
  const auto count = updates_.find(name);
  update.step = count == updates_.end() ? 0 : count->second;
  return update;
}

void RankCase::check_update(int step, const LocalShard& shard) {
  const auto before = before_.find(shard.name);
  if (before == before_.end() || !before->second.gradient.defined() || shard.begin == shard.end)
    return;
  ++updates_[shard.name];
  const auto update = update_spec(shard.name);
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
    const Site site{Phase::Parameter, step, "parameter", name, 0, -1};
    if (got.sizes().vec() != shape) finding(site, "the shape has changed");
    check(site, got.flatten(), want);
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
