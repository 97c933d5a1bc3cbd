#include "conformance/on_rank/getters.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/verdict/lane_tally.hpp"
#include "reference/models/model.hpp"
#include "reference/norm.hpp"

namespace equigrad::conformance {
namespace {

std::string after_of(const char* when, int micro_batch) {
  return std::string(" ") + when + " step() of micro-batch " + std::to_string(micro_batch + 1);
}

OptimizerConfig::Kind kind_of(reference::Rule rule) {
  return rule == reference::Rule::Sgd    ? OptimizerConfig::Kind::Sgd
         : rule == reference::Rule::Adam ? OptimizerConfig::Kind::Adam
                                         : OptimizerConfig::Kind::AdamW;
}

}  // namespace

GetterJudge::GetterJudge(const CaseFacts& facts, const std::vector<NamedTensors>& groups,
                         const std::unique_ptr<Engine>& engine, Lanes& lanes, ExpectedRates rates)
    : facts_(facts), engine_(engine), lanes_(lanes), rates_(std::move(rates)) {
  for (const auto& group : groups) {
    auto& one = groups_.emplace_back();
    for (const auto& [name, tensor] : group) {
      const auto rule = facts_.rules.find(name);
      if (rule == facts_.rules.end() || !tensor.requires_grad()) continue;
      one = {.rule = rule->second, .is_trained = true};
      if (c10::multiply_integers(facts_.shapes.at(name)) > 0) names_.push_back(name);
    }
  }
}

bool GetterJudge::is_last(int micro_batch) const {
  return micro_batch + 1 == facts_.recipe.accumulation_steps;
}

void GetterJudge::before_step(int step, int micro_batch) {
  const Place place{step, after_of("before", micro_batch)};
  check_state(place, step);
  same(place, "is_gradient_accumulation_boundary",
       engine_->is_gradient_accumulation_boundary() ? 1 : 0, is_last(micro_batch) ? 1 : 0);
  if (step == gradient_step_ && is_last(micro_batch)) check_gradient(place);
}

void GetterJudge::after_step(int step, int micro_batch) {
  ++counted_.micro_steps;
  if (is_last(micro_batch)) {
    applied_ = !facts_.twin.skipped(step);
    ++counted_.global_steps;
    if (!applied_) ++counted_.skipped_steps;
  }
  const Place place{step, after_of("after", micro_batch)};
  check_state(place, is_last(micro_batch) ? step + 1 : step);
  if (is_last(micro_batch)) check_weights(place);
}

void GetterJudge::same(const Place& place, const std::string& what, double got, double want) {
  ++lanes_.compared["getter"];
  if (got == want || (std::isnan(got) && std::isnan(want))) return lanes_.exact.add_held(1);
  lanes_.exact.add_finding(at_step(place.step, "getter " + what + place.after),
                           "got " + exact_text(got) + ", expected " + exact_text(want));
}

// Of the getters that a training loop asks; the loss scale is that of the passes of `scale_step`.
void GetterJudge::check_state(const Place& place, int scale_step) {
  const auto& counters = engine_->counters();
  const auto check = [&](const char* what, int64_t got, int64_t want) {
    same(place, what, static_cast<double>(got), static_cast<double>(want));
  };
  check("micro_steps", counters.micro_steps, counted_.micro_steps);
  check("global_steps", counters.global_steps, counted_.global_steps);
  check("skipped_steps", counters.skipped_steps, counted_.skipped_steps);
  check("was_step_applied", engine_->was_step_applied() ? 1 : 0, applied_ ? 1 : 0);
  const auto norm = engine_->get_global_grad_norm();
  const int64_t boundaries = counted_.global_steps;
  check("get_global_grad_norm is there", norm.has_value() ? 1 : 0, boundaries > 0 ? 1 : 0);
  if (norm && boundaries > 0) {
    const int last = static_cast<int>(boundaries) - 1;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    same(place, "get_global_grad_norm", *norm,
         facts_.twin.skipped(last) ? nan : facts_.twin.grad_norm(last));
  }
  same(place, "loss_scale", engine_->loss_scale(), facts_.twin.loss_scale(scale_step));
  check_groups(place);
  check_layer_drop(place);
}

void GetterJudge::check_groups(const Place& place) {
  reference::Rates want;
  if (rates_) want = rates_(counted_.global_steps - counted_.skipped_steps);
  const auto rates = engine_->get_lr();
  const auto rules = engine_->hyper_parameters();
  const auto count = static_cast<double>(groups_.size());
  same(place, "get_lr groups", static_cast<double>(rates.size()), count);
  same(place, "hyper_parameters groups", static_cast<double>(rules.size()), count);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    if (!groups_[i].is_trained) continue;
    const std::string of = " of group " + std::to_string(i + 1);
    auto rule = groups_[i].rule;
    if (!want.lr.empty()) rule.lr = want.lr.at(i);
    if (!want.beta1.empty()) rule.beta1 = want.beta1.at(i);
    if (i < rates.size()) same(place, "get_lr" + of, rates[i], rule.lr);
    if (i < rules.size()) check_rule(place, of, rules[i], rule);
  }
}

void GetterJudge::check_rule(const Place& place, const std::string& of, const OptimizerConfig& got,
                             const reference::OptimizerSpec& want) {
  const auto check = [&](const char* what, double mine, double theirs) {
    same(place, std::string("hyper_parameters.") + what + of, mine, theirs);
  };
  check("kind", static_cast<double>(got.kind), static_cast<double>(kind_of(want.rule)));
  check("lr", got.lr, want.lr);
  check("weight_decay", got.weight_decay, want.weight_decay);
  if (want.rule == reference::Rule::Sgd) {
    check("momentum", got.momentum, want.momentum);
    check("dampening", got.dampening, want.dampening);
    check("nesterov", got.nesterov ? 1 : 0, want.nesterov ? 1 : 0);
  } else {
    check("beta1", got.beta1, want.beta1);
    check("beta2", got.beta2, want.beta2);
    check("eps", got.eps, want.eps);
  }
}

// Set at a boundary by the number of boundaries before it, skipped ones too.
void GetterJudge::check_layer_drop(const Place& place) {
  const auto state = engine_->layer_drop();
  const auto& config = engine_->config().progressive_layer_drop;
  const auto before = static_cast<double>(std::max<int64_t>(counted_.global_steps - 1, 0));
  const double theta =
      config.enabled ? std::lerp(config.theta, 1.0, std::exp(-config.gamma * before)) : 1.0;
  same(place, "layer_drop", state.progressive_layer_drop ? 1 : 0, config.enabled ? 1 : 0);
  same(place, "layer_drop.pld_theta", state.pld_theta, theta);
}

// Another one in every step, the same on every rank.
const std::string& GetterJudge::sample(int step) const {
  return names_[(facts_.recipe.seed + static_cast<uint64_t>(step)) % names_.size()];
}

// The average so far is all of the window's here, before clipping; the twin's is clipped.
void GetterJudge::check_gradient(const Place& place) {
  if (names_.empty()) return;
  const auto& name = sample(place.step);
  const Site site{.phase = Phase::Gradient,
                  .step = place.step,
                  .what = "getter full_gradient",
                  .parameter = name};
  auto& access = engine_->access();
  const auto whole = access.full_gradient(name);
  const auto slice = access.local_gradient(name);
  const auto want = facts_.twin.tensor(place.step, "gradient", name);
  same(place, "full_gradient of " + name + " is there", whole.defined() ? 1 : 0,
       want.defined() ? 1 : 0);
  same(place, "local_gradient of " + name + " is there", slice.defined() ? 1 : 0,
       want.defined() ? 1 : 0);
  if (!whole.defined() || !slice.defined() || !want.defined()) return;
  if (!facts_.twin.skipped(place.step)) {
    const double factor =
        reference::clip_factor(facts_.twin.grad_norm(place.step), facts_.twin.threshold());
    const auto clipped =
        factor == 1.0 ? whole : (reference::widen(whole) * factor).to(whole.scalar_type());
    lanes_.compare(site, clipped.flatten(), want);
  }
  auto local = site;
  local.what = "getter local_gradient";
  check_slice(local, whole, slice);
}

// Of one parameter, after a step: master and one state.
void GetterJudge::check_weights(const Place& place) {
  if (names_.empty()) return;
  const auto& name = sample(place.step);
  auto& access = engine_->access();
  const auto check = [&](const std::string& what, const std::string& of, const at::Tensor& whole,
                         const at::Tensor& slice) {
    Site site{.phase = Phase::Update,
              .step = place.step,
              .what = "getter full_" + what,
              .parameter = name};
    const auto want = facts_.twin.tensor(place.step, of, name);
    if (want.defined()) lanes_.compare(site, whole.flatten(), want);
    site.what = "getter local_" + what;
    check_slice(site, whole, slice);
  };
  check("master", "master", access.full_master(name), access.local_master(name));
  const auto states = reference::state_names(facts_.rules.at(name));
  if (states.empty()) return;
  const auto& state = states[static_cast<std::size_t>(place.step) % states.size()];
  check("optimizer_state", state, access.full_optimizer_state(name, state),
        access.local_optimizer_state(name, state));
}

// This rank's part of the whole; at stage 0 it is the whole.
void GetterJudge::check_slice(const Site& site, const at::Tensor& whole, const at::Tensor& slice) {
  for (const auto& shard : engine_->local_shards()) {
    if (shard.name != site.parameter) continue;
    auto place = site;
    place.begin = shard.begin;
    lanes_.compare(place, slice, whole.flatten().slice(0, shard.begin, shard.end));
  }
}

}  // namespace equigrad::conformance
