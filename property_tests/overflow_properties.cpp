// An overflow of one gradient of one rank in one pass leaves every bit of every rank as it was, and
// every rank alike: masters, state, whole parameters, step counts, learning rate. The scale follows
// its rule, the step counts as skipped, and the next clean step is the twin's.
//
//   EQUIGRAD_TRIALS=1000 overflow_properties    that many trials; 150 without it
//
// A gradient is infinite or NaN as it reaches its leaf, or it is finite and overflows by the scale.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>

#include "conformance/oracle/bits.hpp"
#include "engine/engine.hpp"
#include "property_tests/overflow/net.hpp"
#include "property_tests/overflow/settings.hpp"
#include "property_tests/ranks_of_cases.hpp"
#include "reference/stepper.hpp"

namespace equigrad::property_tests::overflow {
namespace {

using conformance::oracle::compare;
using conformance::oracle::describe;

// RapidCheck reads its settings before main.
const bool kTrialsAreSet = [] {
  const char* wanted = std::getenv("EQUIGRAD_TRIALS");
  const char* given = std::getenv("RC_PARAMS");
  const std::string most = "max_success=" + std::string(wanted != nullptr ? wanted : "150");
  return setenv("RC_PARAMS", (most + " " + (given != nullptr ? given : "")).c_str(), 1) == 0;
}();

// An engine and a twin through clean steps, overflows, and a clean step.
class Trial {
 public:
  Trial(const json& one, RankContext& context)
      : one_(one),
        rank_(context.rank()),
        world_(context.world_size()),
        config_(config_of(one)),
        dtype_(mode_of(one).compute),
        overflow_{one.at("kind"), one.at("parameter"), one.at("element")},
        model_(std::make_shared<Net>(one, overflow_)),
        twin_(recipe_of(one, config_), std::make_shared<Net>(one, overflow_)) {
    ParameterGroup all;
    for (const auto& [name, tensor] : reference::unique_parameters(*model_))
      all.parameters.push_back({name, tensor, name == "gain" ? "Net" : "torch.nn.Linear"});
    engine_ = initialize({all}, config_, context.group());
  }

  Verdict verdict() {
    for (int i = 0; i < one_.at("before").get<int>(); ++i) clean_step();
    for (int i = 0; i < one_.at("overflows").get<int>(); ++i) overflowing_step();
    clean_step();
    return {wrong_};
  }

 private:
  using Held = std::map<std::string, at::Tensor>;

  void note(const std::string& what) {
    if (wrong_.empty()) wrong_ = "step " + std::to_string(step_) + ": " + what;
  }
  bool is_here(int64_t rank, int64_t micro) const {
    return rank == one_.at("rank").get<int>() % world_ &&
           micro == one_.at("micro").get<int64_t>() % config_.gradient_accumulation_steps;
  }

  // Every rank's passes and the step, on both sides.
  reference::StepRecord step(bool overflows) {
    twin_.set_lr(engine_->get_lr().front());
    for (int64_t micro = 0; micro < config_.gradient_accumulation_steps; ++micro) {
      for (int rank = 0; rank < world_; ++rank) {
        overflow_.armed = overflows && is_here(rank, micro);
        at::Tensor loss;
        {
          const auto guard = twin_.autocast();
          loss = twin_.model().loss(batch_of(one_, step_, rank, micro, dtype_));
        }
        const auto scaled = loss.to(at::kFloat) * twin_.loss_scale();
        twin_.pass(rank, [&] { scaled.backward(); });
      }
    }
    auto record = twin_.step();
    for (int64_t micro = 0; micro < config_.gradient_accumulation_steps; ++micro) {
      overflow_.armed = overflows && is_here(rank_, micro);
      engine_pass(micro);
      engine_->step();
    }
    ++step_;
    return record;
  }

  void engine_pass(int64_t micro) {
    at::Tensor loss;
    {
      const auto guard = engine_->autocast();
      loss = model_->loss(batch_of(one_, step_, rank_, micro, dtype_));
    }
    if (one_.at("by_scale"))
      engine_->scale(loss).backward();
    else
      engine_->backward(loss);
  }

  Held held() const {
    Held all;
    for (const auto& shard : engine_->local_shards()) {
      all[shard.name + " master"] = shard.master.clone();
      for (const auto& [name, state] : shard.state) all[shard.name + " " + name] = state.clone();
    }
    for (const auto& [name, parameter] : reference::unique_parameters(*model_))
      all[name] = engine_->full_parameter(name);
    return all;
  }

  void overflowing_step() {
    const auto before = held();
    const auto lr = engine_->get_lr();
    const auto counters = engine_->counters();
    const auto record = step(true);
    if (!record.skipped) note("the twin did not overflow");
    if (engine_->was_step_applied()) note("the step was applied");
    if (engine_->counters().skipped_steps != counters.skipped_steps + 1) note("skipped_steps");
    if (engine_->counters().global_steps != counters.global_steps + 1) note("global_steps");
    if (engine_->get_lr() != lr) note("the learning rate moved");
    check_scale();
    const auto after = held();
    for (const auto& [name, tensor] : before) {
      const auto report = compare(after.at(name), tensor);
      if (!report.equal()) note(name + " was written: " + describe(report));
    }
  }

  void clean_step() {
    const auto record = step(false);
    if (record.skipped) note("the twin overflowed in a clean step");
    if (!engine_->was_step_applied()) note("a clean step was skipped");
    check_scale();
    for (const auto& shard : engine_->local_shards()) {
      const auto slice = [&](const at::Tensor& whole) {
        return whole.flatten().slice(0, shard.begin, shard.end);
      };
      check(shard.name + " master", shard.master, slice(record.masters.at(shard.name)));
      for (const auto& [name, state] : shard.state)
        check(shard.name + " " + name, state, slice(record.state.at(name).at(shard.name)));
    }
    for (const auto& [name, parameter] : record.parameters)
      check(name, engine_->full_parameter(name), parameter);
  }

  void check(const std::string& what, const at::Tensor& got, const at::Tensor& want) {
    const auto report = compare(got, want);
    if (!report.equal()) note(what + " is not the twin's: " + describe(report));
  }
  void check_scale() {
    if (engine_->loss_scale() == twin_.loss_scale()) return;
    note("loss scale " + std::to_string(engine_->loss_scale()) + ", the twin's is " +
         std::to_string(twin_.loss_scale()));
  }

  const json& one_;
  int rank_, world_;
  EngineConfig config_;
  at::ScalarType dtype_;
  Overflow overflow_;
  std::shared_ptr<Net> model_;
  reference::Stepper twin_;
  std::unique_ptr<Engine> engine_;
  int64_t step_ = 0;
  std::string wrong_;
};

RanksOfCases& ranks() {
  static RanksOfCases all(4, {{"trial", [](const json& one, RankContext& context) {
                                 return Trial(one, context).verdict();
                               }}});
  return all;
}

// Of all values, however early in the run.
int below(int end) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, end)); }

std::string one_of(const std::vector<std::string>& words) {
  return words[static_cast<std::size_t>(below(static_cast<int>(words.size())))];
}

json any_trial() {
  const auto mode = one_of({"fp16", "fp16-static", "fp16-masters", "autocast", "bf16"});
  std::vector<std::string> kinds{"inf", "-inf", "nan"};
  if (mode != "bf16") kinds.push_back("scaled");  // without a scale nothing overflows by it
  json widths;
  for (int left = 2 + below(3); left > 0; --left) widths.push_back(1 + below(12));
  return {{"check", "trial"},
          {"mode", mode},
          {"kind", one_of(kinds)},
          {"world", 2 + below(3)},
          {"stage", below(4)},
          {"accumulation", 1 + below(3)},
          {"fp32_sums", below(2) == 1},
          {"by_scale", below(2) == 1},
          {"widths", widths},
          {"parameter", below(7)},
          {"element", below(144)},
          {"rank", below(4)},
          {"micro", below(3)},
          {"before", below(3)},
          {"overflows", 1 + below(3)},
          {"power", 4 + below(4)},  // three overflows leave 2 at least
          {"window", 1 + below(3)},
          {"hysteresis", 1 + below(2)},
          {"consecutive", below(2) == 1},
          {"clip", below(2) == 1 ? 0.05 : 0.0},
          {"largest", below(2) == 1},
          {"rule", below(3)},
          {"warmup", below(2) == 1},
          {"bucket", *rc::gen::element(1000, 1, 20, 60)},
          {"persistent", *rc::gen::element(0, 1000)},
          {"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))}};
}

RC_GTEST_PROP(Overflow, OnOneRankLeavesEveryBitOfEveryRank, ()) {
  RC_ASSERT(ranks().wrong(any_trial()) == "");
}

}  // namespace
}  // namespace equigrad::property_tests::overflow
