#include "conformance/generated/harmless_events.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <utility>

#include "conformance/generated/core.hpp"
#include "engine/error.hpp"
#include "reference/models/data.hpp"

namespace equigrad::conformance {
namespace {

constexpr const char* kPlanted = "planted by a generated case";

// Passes of events are no passes of the case.
Pass another(const Pass& pass, int offset) {
  return {pass.step, pass.rank, pass.micro_batch + offset};
}

void throws_in_backward(const at::Tensor& sum) {
  sum.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error(kPlanted); });
}

// A rank that is told of another's first does not come to its own.
bool is_expected(const std::string& error) {
  return error.find(kPlanted) != std::string::npos ||
         error.find("got an exception on rank") != std::string::npos;
}

}  // namespace

HarmlessEvents::HarmlessEvents(const GeneratedCase& one, std::vector<std::string> names,
                               bool is_scaled, GeneratedForward forward)
    : one_(one), names_(std::move(names)), is_scaled_(is_scaled), forward_(std::move(forward)) {}

void HarmlessEvents::end() {
  other_.reset();
  crowd_.clear();
}

std::vector<std::string> HarmlessEvents::of(const Pass& pass) const {
  std::vector<std::string> found;
  for (const auto& event : one_.execution.events)
    if (event.step == pass.step && event.micro_batch == pass.micro_batch)
      found.push_back(event.what);
  return found;
}

OtherEngine& HarmlessEvents::other() {
  const auto dice = reference::hash(one_.execution.seed ^ 0x0de4);
  if (!other_) other_.emplace(group_, static_cast<int>(dice % 4));
  return *other_;
}

// Engines under one scaled loss share a scale, which this other one has not.
at::Tensor HarmlessEvents::beside(const Pass& pass) {
  const auto events = of(pass);
  const bool is_shared = std::find(events.begin(), events.end(), "together") != events.end();
  return is_shared && !is_scaled_ ? other().term() : at::Tensor();
}

void HarmlessEvents::happen(Engine& engine, const std::string& what, const Pass& pass) {
  if (what == "together") return;  // in the pass itself
  if (what == "cancelled") return cancel(engine, pass);
  if (what == "thrown") return throw_midway(engine, pass, false);
  if (what == "thrown_alone") return throw_midway(engine, pass, true);
  if (what == "asked") return ask(engine, pass);
  if (what == "read") return read(engine);
  if (what == "bystander") return other().step();
  if (what == "crowd") return crowd();
  if (what != "evaluated")
    throw Error("generated case",
                "expected cancelled, evaluated, thrown, thrown_alone, asked, read, bystander, "
                "together or crowd, got \"" +
                    what + "\". Take a file of this version.");
  const at::NoGradGuard no_grad;
  forward_(engine, another(pass, 1000), {});
}

// Its window was empty.
void HarmlessEvents::cancel(Engine& engine, const Pass& pass) {
  engine.backward(forward_(engine, another(pass, 1000), {}));
  engine.zero_grad();
}

// On one rank alone, or on those that share one's model and sequence, which would wait for it for
// ever: where gradients are sent in every pass the others run it too, and are told. Elsewhere those
// just run it once more.
void HarmlessEvents::throw_midway(Engine& engine, const Pass& pass, bool is_alone) {
  const auto dice = reference::hash(one_.execution.seed + static_cast<uint64_t>(pass.step));
  const int bad = static_cast<int>(dice % static_cast<uint64_t>(one_.workload.data_ranks()));
  const bool is_bad = !is_alone || data_rank_of(one_.workload, pass) == bad;
  if (!is_bad && one_.execution.stage < 2) return;
  // At the first term, which comes last, or before all of them.
  bool is_planted = reference::hash(one_.execution.seed) % 2 != 0;
  const bool is_late = !is_planted;
  auto loss = forward_(engine, another(pass, 2000), [&](const at::Tensor& sum) {
    if (is_planted || !is_bad || !sum.requires_grad()) return;
    throws_in_backward(sum);
    is_planted = true;
  });
  if (is_bad && !(is_late && is_planted)) throws_in_backward(loss);
  // Of another engine that takes part nothing may stay either.
  if (other_ && !is_scaled_ && !is_alone) loss = loss + other_->term();
  try {
    engine.backward(loss);
  } catch (const std::exception& error) {
    if (is_expected(error.what())) return;
    throw;
  }
  throw HarmlessEventFailed(
      "a pass that throws on " +
      (is_alone ? "data rank " + std::to_string(bad) : std::string("every rank")) +
      " ended without an exception");
}

void HarmlessEvents::ask(Engine& engine, const Pass& pass) {
  const auto probe = at::full({}, 2.0, at::kFloat).set_requires_grad(true);
  const auto loss = forward_(engine, another(pass, 3000), {});
  const auto given = torch::autograd::grad({loss * probe}, {probe});
  if (!given.at(0).equal(loss.detach()) && !loss.isnan().item<bool>())
    throw HarmlessEventFailed("autograd::grad of the loss by its factor is not the loss");
}

void HarmlessEvents::read(Engine& engine) {
  auto& access = engine.access();
  const auto same = [](const at::Tensor& a, const at::Tensor& b) {
    return (a == b).logical_or(a.isnan().logical_and(b.isnan())).all().item<bool>();
  };
  const auto shards = engine.local_shards();
  for (const auto& name : names_) {
    engine.full_parameter(name);
    const auto gradient = access.full_gradient(name);
    const auto again = access.full_gradient(name);
    if (gradient.defined() != again.defined() || (gradient.defined() && !same(gradient, again)))
      throw HarmlessEventFailed("full_gradient is another one when it is asked again: " + name);
    const auto found = std::find_if(shards.begin(), shards.end(),
                                    [&](const LocalShard& one) { return one.name == name; });
    if (found == shards.end()) continue;  // no element of it is anywhere
    const auto whole = access.full_master(name).flatten();
    if (!same(whole.slice(0, found->begin, found->end), found->master.flatten()))
      throw HarmlessEventFailed("a slice of full_master is not the local one: " + name);
  }
  engine.get_lr();
  engine.hyper_parameters();
}

// Engines that stay to the end, and some that go at once; 70 of them now and then.
void HarmlessEvents::crowd() {
  const auto dice = reference::hash(one_.execution.seed ^ 0xc40d);
  const std::size_t count = dice % 16 == 0 ? 70 : 1 + dice % 5;
  for (std::size_t i = 0; i < count; ++i) {
    auto engine = std::make_unique<OtherEngine>(group_, static_cast<int>(i % 4));
    engine->step();
    if (i % 3 != 0) crowd_.push_back(std::move(engine));
  }
  for (const auto& engine : crowd_) engine->step();
}

}  // namespace equigrad::conformance
