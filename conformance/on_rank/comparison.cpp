#include "conformance/on_rank/comparison.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "conformance/oracle/digest.hpp"
#include "conformance/oracle/unsplit_bound.hpp"

namespace equigrad::conformance {
namespace {

oracle::Weights weights_of(const LocalShard& shard) { return {shard.master, shard.state}; }

// The engine's shards where they are compared.
std::vector<LocalShard> on_cpu(std::vector<LocalShard> shards) {
  const auto move = [](at::Tensor& tensor) {
    if (tensor.defined()) tensor = tensor.cpu();
  };
  for (auto& shard : shards) {
    move(shard.master);
    move(shard.gradient);
    for (auto& [name, state] : shard.state) move(state);
  }
  return shards;
}

oracle::Averaging averaging_of(reference::Averaging averaging) {
  using reference::Averaging;
  return averaging == Averaging::BeforeSum ? oracle::Averaging::BeforeSum
         : averaging == Averaging::Around  ? oracle::Averaging::Around
         : averaging == Averaging::Never   ? oracle::Averaging::Never
                                           : oracle::Averaging::AfterSum;
}

}  // namespace

bool TwinComparison::check(const Site& site, const at::Tensor& of_engine, const at::Tensor& want) {
  const auto got = of_engine.cpu();
  const bool held = lanes_.compare(site, got, want);
  if (!held) failures_.note(site, got, want);
  return held;
}

void TwinComparison::finding(const Site& site, const std::string& what) {
  lanes_.exact.add_finding(where_of(site), what);
  auto place = site;
  place.what += ": " + what;
  failures_.note(place, {}, {});
}

void TwinComparison::observe(int step, const std::vector<LocalShard>& shards) {
  const double norm = engine_->get_global_grad_norm().value_or(NAN);
  failures_.set_norm(norm);
  const bool norm_held = lanes_.compare(
      {.phase = Phase::Norm, .step = step, .what = "norm of the gradient"},
      at::full({1}, norm, at::kDouble), at::full({1}, facts_.twin.grad_norm(step), at::kDouble));
  std::vector<Failure> seen;
  for (const auto& shard : on_cpu(shards)) {
    if (auto gradient = check_gradient(step, shard)) seen.push_back(std::move(*gradient));
    auto& copy = before_[shard.name] = shard;
    copy.master = shard.master.clone();
    if (shard.gradient.defined()) copy.gradient = shard.gradient.clone();
    for (auto& [name, state] : copy.state) state = state.clone();
  }
  if (!facts_.twin.skipped(step)) failures_.note_gradients(step, seen, norm_held);
}

// What was compared; nothing where there was nothing to compare.
std::optional<Failure> TwinComparison::check_gradient(int step, const LocalShard& shard) {
  const Site site{.phase = Phase::Gradient,
                  .step = step,
                  .what = "gradient",
                  .parameter = shard.name,
                  .begin = shard.begin};
  const auto whole = facts_.twin.tensor(step, "gradient", shard.name);
  if (whole.defined() != shard.gradient.defined()) {
    finding(site, whole.defined() ? "absent, but some rank used the parameter"
                                  : "present, but no rank used the parameter");
    return std::nullopt;
  }
  if (!whole.defined()) return std::nullopt;
  const auto want = whole.slice(0, shard.begin, shard.end);
  const auto got = shard.gradient.flatten();
  gradients_.at(static_cast<std::size_t>(step))[shard.name].held = lanes_.compare(site, got, want);
  digest(site, got);
  if (step == facts_.twin.first_applied() && got.numel() > 0 && facts_.twin.unbounded().empty())
    bound_gradient(step, shard, where_of(site));
  return Failure{site, got, want};
}

oracle::Reduction TwinComparison::reduction_of(int step, const LocalShard& shard) const {
  oracle::Reduction reduction;
  const auto& recipe = facts_.recipe;
  const auto& precision = recipe.precision;
  reduction.world = recipe.world;
  reduction.sequence = recipe.sequence;
  reduction.accumulation_steps = recipe.accumulation_steps;
  reduction.param_dtype = recipe.compute_dtype;
  reduction.accumulate_dtype = recipe.accumulate_dtype;
  reduction.master_dtype = shard.master.scalar_type();
  if (recipe.order == reference::SumOrder::ExactGrid)
    reduction.order = oracle::SumOrder::ExactGrid;
  else
    reduction.order =
        facts_.stage <= 1 ? oracle::SumOrder::AddThenReduce : oracle::SumOrder::ReduceThenAdd;
  reduction.communication_dtype = precision.communication_dtype;
  const auto lowered = facts_.communication_dtypes.find(shard.name);
  if (!reduction.communication_dtype && lowered != facts_.communication_dtypes.end())
    reduction.communication_dtype = lowered->second;
  reduction.averaging = averaging_of(precision.averaging);
  reduction.predivide_factor = precision.predivide_factor;
  reduction.loss_scale = facts_.twin.loss_scale(step);
  const double norm = engine_->get_global_grad_norm().value_or(NAN);
  const double threshold = facts_.twin.threshold();
  if (threshold > 0 && norm > threshold)
    reduction.clip_factor = static_cast<float>(threshold / (norm + 1e-6));
  return reduction;
}

void TwinComparison::bound_gradient(int step, const LocalShard& shard, const std::string& where) {
  const auto part = [&](const char* run, const char* what) {
    const auto whole = facts_.twin.other(run, what, shard.name);
    TORCH_CHECK(whole.defined(), "[bounded lane] expected a ", run, " run of ", shard.name);
    return whole.slice(0, shard.begin, shard.end);
  };
  const auto reduction = reduction_of(step, shard);
  const auto got = shard.gradient.flatten();
  lanes_.compared["bound"] += got.numel();
  const auto plain = part("plain", "gradient"), sums = part("plain", "absolute_sum");
  const auto rounding = oracle::check_reduction(got, plain, sums, reduction);
  gradients_.at(static_cast<std::size_t>(step))[shard.name].margin = rounding.margin;
  lanes_.bounded.add(where + " (reduction)", shard.begin, rounding);
  // An engine as exact as the plain run is at this bound by definition.
  lanes_.bounded.add_pass_or_fail(
      where + " (against higher precision)", shard.begin,
      oracle::check_gradient(got, plain, part("precise", "gradient"), sums, reduction));
  const auto unsplit = facts_.twin.other("unsplit", "gradient", shard.name);
  if (!unsplit.defined()) return;
  const double room =
      oracle::room_of(unsplit, facts_.twin.other("unsplit_precise", "gradient", shard.name));
  lanes_.compared["bound"] += got.numel();
  lanes_.bounded.add_pass_or_fail(
      where + " (against the unsplit model)", shard.begin,
      oracle::check_unsplit(got, part("unsplit_precise", "gradient"), room, sums, reduction));
}

void TwinComparison::check_scale(int step, const std::string& what) {
  const bool is_start = what.ends_with("before it");
  check({.phase = is_start ? Phase::Start : Phase::Scale,
         .step = is_start ? step : step - 1,
         .what = what},
        at::full({1}, engine_->loss_scale(), at::kDouble),
        at::full({1}, facts_.twin.loss_scale(step), at::kDouble));
}

// A step that is skipped shows nothing to on_step, and counts.
void TwinComparison::check_boundary(int step) {
  const bool is_skipped = facts_.twin.skipped(step);
  const double norm = engine_->get_global_grad_norm().value_or(0);
  skipped_ += is_skipped ? 1 : 0;
  if (engine_->was_step_applied() == is_skipped) {
    // Nobody saw that gradient; the engine says that it was not finite.
    const bool is_gradient = !is_skipped && !std::isfinite(norm);
    finding({.phase = is_gradient ? Phase::Gradient : Phase::Skip,
             .step = step,
             .what = is_gradient ? "gradient" : "boundary"},
            is_skipped    ? "the step was applied, but a gradient is not finite"
            : is_gradient ? "not finite, and the step was not applied"
                          : "the step was not applied");
  }
  check({.phase = Phase::Scale, .step = step, .what = "skipped_steps"},
        at::full({1}, engine_->counters().skipped_steps, at::kLong),
        at::full({1}, skipped_, at::kLong));
  const Site boundary{.phase = Phase::Skip, .step = step, .what = "boundary"};
  if (!is_skipped && before_.empty()) finding(boundary, "on_step was not called");
  if (is_skipped && !before_.empty())
    finding(boundary, "on_step was called, but the step is skipped");
  if (is_skipped && std::isfinite(norm))
    finding({.phase = Phase::Norm, .step = step, .what = "norm of the gradient"},
            "finite, but a gradient is not");
}

void TwinComparison::after_step(int step) {
  check_boundary(step);
  const auto shards = on_cpu(engine_->local_shards());
  for (const auto& shard : shards) {
    const auto seen = before_.find(shard.name);
    if (facts_.twin.skipped(step)) break;
    if (seen == before_.end() || seen->second.begin != shard.begin || seen->second.end != shard.end)
      finding({.phase = Phase::Update, .step = step, .what = "shard", .parameter = shard.name},
              "on_step did not show it");
  }
  for (const auto& shard : shards) {
    check_shard(step, shard);
    check_update(step, shard);
  }
  before_.clear();
  check_parameters(step);
}

void TwinComparison::check_shard(int step, const LocalShard& shard) {
  const auto slice = [&](const std::string& what) {
    const auto whole = facts_.twin.tensor(step, what, shard.name);
    return whole.defined() ? whole.slice(0, shard.begin, shard.end) : at::Tensor();
  };
  const auto check_values = [&](const std::string& what, const at::Tensor& values) {
    const auto want = slice(what);
    const Site site{.phase = Phase::Update,
                    .step = step,
                    .what = what,
                    .parameter = shard.name,
                    .begin = shard.begin};
    if (!want.defined()) return finding(site, "the twin has none");
    if (!check(site, values.flatten(), want)) note_update(step, shard);
    digest(site, values.flatten());
  };
  check_values("master", shard.master);
  for (const auto& [name, state] : shard.state) check_values(name, state);
  const auto wanted = reference::state_names(facts_.rules.at(shard.name)).size();
  if (wanted != shard.state.size())
    finding({.phase = Phase::Update,
             .step = step,
             .what = "states",
             .parameter = shard.name,
             .begin = shard.begin},
            "expected " + std::to_string(wanted) + " of them, got " +
                std::to_string(shard.state.size()));
}

// What the update began with, for its explanation.
void TwinComparison::note_update(int step, const LocalShard& shard) {
  const auto before = before_.find(shard.name);
  if (!failures_.wants_update(step) || before == before_.end() ||
      !before->second.gradient.defined())
    return;
  UpdateSeen seen;
  seen.spec = update_of(shard.name, step);
  ++seen.spec.step;
  seen.before = weights_of(before->second);
  seen.gradient = before->second.gradient.flatten();
  seen.after.master = shard.master.clone();
  for (const auto& [name, state] : shard.state) seen.after.state[name] = state.clone();
  failures_.note_update(shard.name, std::move(seen));
}

oracle::UpdateSpec TwinComparison::update_of(const std::string& name, int step) const {
  const auto count = updates_.find(name);
  auto spec = update_spec(facts_, name, count == updates_.end() ? 0 : count->second);
  const auto rates = facts_.twin.rates(step);
  const auto group = facts_.groups.find(name);
  if (group == facts_.groups.end()) return spec;
  if (!rates.lr.empty()) spec.lr = rates.lr.at(group->second);
  if (!rates.beta1.empty()) spec.beta1 = rates.beta1.at(group->second);
  return spec;
}

std::map<std::string, oracle::UpdateSpec> TwinComparison::update_specs() const {
  std::map<std::string, oracle::UpdateSpec> specs;
  for (const auto& [name, rule] : facts_.rules)
    specs[name] = update_of(name, static_cast<int>(gradients_.size()) - 1);
  return specs;
}

void TwinComparison::check_update(int step, const LocalShard& shard) {
  const auto before = before_.find(shard.name);
  if (before == before_.end() || !before->second.gradient.defined() || shard.begin == shard.end)
    return;
  ++updates_[shard.name];
  const auto update = update_of(shard.name, step);
  lanes_.compared["update"] += shard.master.numel();
  lanes_.bounded.add(at_step(step, "update of " + shard.name), shard.begin,
                     oracle::check_update(update, weights_of(before->second),
                                          before->second.gradient.flatten(), weights_of(shard)));
}

void TwinComparison::check_parameters(int step) {
  facts_.context.note(at_step(step, "full parameters"));
  for (const auto& [name, shape] : facts_.whole_shapes) {
    const auto got = engine_->full_parameter(name).cpu();
    const auto want = facts_.twin.tensor(step, "parameter", name);
    const Site site{
        .phase = Phase::Parameter, .step = step, .what = "parameter", .parameter = name};
    if (got.sizes().vec() != shape) finding(site, "the shape has changed");
    check(site, got.flatten(), want);
    if (facts_.context.rank() == 0) digest(site, got.flatten());
  }
}

void TwinComparison::check_buffers(int step, const reference::TensorMap& buffers) {
  const std::string of_rank = "buffer" + std::to_string(facts_.zero_rank());
  for (const auto& [name, got] : buffers) {
    const Site site{.phase = Phase::Forward, .step = step, .what = "buffer", .parameter = name};
    const auto want = facts_.twin.tensor(step, of_rank, name);
    if (!want.defined())
      finding(site, "the twin has none");
    else if (!lanes_.compare(site, got.flatten(), want))
      failures_.note(site, {}, {});
  }
}

// At stage 0 every rank of a ZeRO group holds everything: the first speaks for all.
void TwinComparison::digest(const Site& site, const at::Tensor& values) {
  if (facts_.stage == 0 && facts_.zero_rank() != 0) return;
  const int part = facts_.place.tensor;
  const auto of = site.what + "/" + site.parameter + (part == 0 ? "" : "@t" + std::to_string(part));
  digest_.sum += oracle::digest(of, site.step, site.begin, values);
  digest_.numel += values.numel();
}

// [name, held, margin] of every gradient, step by step: what held beside what did not.
void TwinComparison::add_to(nlohmann::json& answer) const {
  auto steps = nlohmann::json::array();
  for (const auto& gradients : gradients_) {
    auto rows = nlohmann::json::array();
    for (const auto& [name, result] : gradients)
      rows.push_back({name, result.held, exact_text(result.margin)});
    steps.push_back(rows);
  }
  answer["gradients"] = steps;
  const auto unbounded = facts_.twin.unbounded();
  if (!unbounded.empty()) answer["not_compared"]["bound"] = unbounded;
  answer["digest"] = digest_.sum;
  answer["digested"] = digest_.numel;
}

}  // namespace equigrad::conformance
