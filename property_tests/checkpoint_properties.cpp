// A run that is cut into parts, each on ranks and at a stage of its own, which hand it on in files,
// holds at the end the bits of the run that was not cut. In the exact order, of which alone this is
// true.
//
//   part 0 on 4 ranks, stage 3 -> part 1 on 1 rank, stage 0 -> part 2 on 3 ranks, ...
//
// Ranks of a part are processes of their own among the pool's, and none is left of it but the
// files.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "conformance/on_rank/program.hpp"
#include "conformance/oracle/digest.hpp"
#include "conformance/ranks/private_directory.hpp"
#include "engine/engine.hpp"
#include "property_tests/ranks_of_cases.hpp"
#include "reference/models/data.hpp"
#include "reference/models/model.hpp"

namespace equigrad::property_tests {
namespace {

using conformance::oracle::digest;

constexpr int64_t kBatches = 12;  // a window, whatever ranks there are

const reference::Data& data() {
  static const auto files = conformance::find_data("", false);
  static const reference::Data all(reference::read_text({files.text}));
  return all;
}

std::string config_of(const json& one) {
  const int world = one.at("world");
  json config = {{"train_micro_batch_size_per_gpu", 1},
                 {"gradient_accumulation_steps", kBatches / world},
                 {"optimizer", one.at("optimizer")},
                 {"reduction", "exact"},
                 {"gradient_clipping", 1.0},
                 {"zero_optimization",
                  {{"stage", one.at("stage")}, {"reduce_bucket_size", one.at("bucket")}}}};
  config.update(one.at("keys"));
  return config.dump();
}

at::ScalarType dtype_of(const EngineConfig& config) {
  if (config.precision.param == DataType::Fp32) return at::kFloat;
  return config.precision.param == DataType::Bf16 ? at::kBFloat16 : at::kHalf;
}

std::string folder_of(const RankContext& context) { return context.directory() + "/handed-on"; }

// Windows [first, first + windows), and what is held after them.
Verdict part_of(const json& one, RankContext& context) {
  const int64_t first = one.at("first"), windows = one.at("windows"), seed = one.at("seed");
  const bool loads = one.at("loads");
  // Weights that are loaded are none of those that the model is made with.
  const auto model = reference::make_gpt({.layers = 1, .dim = 16, .heads = 2, .context = 16},
                                         static_cast<uint64_t>(loads ? seed + first : seed));
  const auto engine = initialize(*model, config_of(one), context.group());
  if (loads && !engine->load_checkpoint(folder_of(context))) return {"nothing was loaded", 0};
  const auto dtype = dtype_of(engine->config());
  for (int64_t window = first; window < first + windows; ++window)
    for (int64_t number = context.rank(); number < kBatches; number += context.world_size()) {
      const auto batch = data().text_batch(
          1, 16, {static_cast<uint64_t>(seed), window, /*rank=*/0, /*micro_batch=*/number});
      engine->backward(model->loss(reference::to_dtype(batch, dtype)));
      engine->step();
    }
  if (engine->counters().global_steps != first + windows) return {"steps are missing", 0};
  if (one.at("saves")) engine->save_checkpoint(folder_of(context));
  Verdict verdict;
  if (engine->config().zero.stage == 0 && context.rank() > 0) return verdict;
  for (const auto& shard : engine->local_shards()) {
    verdict.digest += digest("master" + shard.name, 0, shard.begin, shard.master);
    for (const auto& [name, state] : shard.state)
      verdict.digest += digest(name + shard.name, 0, shard.begin, state);
  }
  if (context.rank() > 0) return verdict;
  const auto scale = at::full({1}, engine->loss_scale(), at::kDouble);
  verdict.digest += digest("scale", 0, 0, scale);
  return verdict;
}

Verdict remove_folder(const json&, RankContext& context) {
  conformance::ranks::remove_private_directory(folder_of(context));
  return {};
}

RanksOfCases& ranks() {
  static RanksOfCases all(4, {{"part", part_of}, {"remove", remove_folder}});
  return all;
}

struct Part {
  int world, stage, windows;
};

// Empty if the parts and the whole hold the same bits.
std::string differ(json one, const std::vector<Part>& parts, const Part& whole) {
  one["check"] = "part";
  one["loads"] = one["saves"] = false;
  one["first"] = 0;
  const auto with = [&](const Part& part) {
    auto made = one;
    made["world"] = part.world;
    made["stage"] = part.stage;
    made["windows"] = part.windows;
    return made;
  };
  const auto want = ranks().run(with(whole));
  if (!want.wrong.empty()) return want.wrong;
  Verdict got;
  int first = 0;
  for (const auto& part : parts) {
    auto made = with(part);
    made["first"] = first;
    made["loads"] = first > 0;
    made["saves"] = true;
    first += part.windows;
    got = ranks().run(made);
    if (!got.wrong.empty()) break;
  }
  ranks().run({{"check", "remove"}, {"world", 1}});
  if (!got.wrong.empty()) return got.wrong;
  return got.digest == want.digest ? "" : "different bits after parts of " + one.dump();
}

int sum_of(const std::vector<Part>& parts) {
  return std::accumulate(parts.begin(), parts.end(), 0,
                         [](int sum, const Part& part) { return sum + part.windows; });
}

// Its loss scale doubles every 20 steps, overflows, and is halved.
TEST(Checkpoints, OfARunOnTextAreHandedOnEightTimesIn200Steps) {
  const std::vector<Part> parts = {{4, 3, 30}, {1, 0, 20}, {3, 2, 25}, {2, 1, 25}, {4, 1, 20},
                                   {1, 3, 10}, {3, 0, 20}, {2, 2, 20}, {4, 2, 30}};
  ASSERT_EQ(sum_of(parts), 200);
  const json one = {
      {"seed", 5},
      {"bucket", 700},
      {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 3e-3}}}}},
      {"keys",
       {{"fp16",
         {{"enabled", true},
          {"initial_scale_power", 12},
          {"loss_scale_window", 20},
          {"hysteresis", 2}}},
        {"data_types", {{"grad_accum_dtype", "fp32"}}},
        {"scheduler",
         {{"type", "WarmupDecayLR"},
          {"params",
           {{"warmup_max_lr", 3e-3}, {"warmup_num_steps", 40}, {"total_num_steps", 220}}}}}}}};
  EXPECT_EQ(differ(one, parts, {2, 0, 200}), "");
}

TEST(Checkpoints, ThatLoseAStepAreSeen) {
  const json one = {{"seed", 5},
                    {"bucket", 700},
                    {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 3e-3}}}}},
                    {"keys", json::object()}};
  EXPECT_EQ(differ(one, {{2, 1, 2}, {3, 2, 1}}, {1, 0, 3}), "");
  EXPECT_NE(differ(one, {{2, 1, 2}, {3, 2, 1}}, {1, 0, 2}), "");
}

json any_optimizer() {
  if (*rc::gen::arbitrary<bool>())
    return {{"type", "SGD"}, {"params", {{"lr", 0.05}, {"momentum", *rc::gen::element(0.0, 0.9)}}}};
  return {{"type", *rc::gen::element<std::string>("Adam", "AdamW")},
          {"params", {{"lr", 0.01}, {"weight_decay", *rc::gen::element(0.0, 0.1)}}}};
}

json any_precision() {
  const json sums = {{"grad_accum_dtype", "fp32"}};
  const int kind = *rc::gen::inRange(0, 3);
  if (kind == 0) return json::object();
  if (kind == 1) return {{"bf16", {{"enabled", true}}}, {"data_types", sums}};
  return {{"fp16",
           {{"enabled", true},
            {"initial_scale_power", *rc::gen::inRange(4, 14)},
            {"loss_scale_window", *rc::gen::inRange(1, 4)}}},
          {"data_types", sums}};
}

RC_GTEST_PROP(Checkpoints, AreHandedOnToAnyRanksAtAnyStage, ()) {
  const auto any_part = [] {
    return Part{*rc::gen::inRange(1, 5), *rc::gen::inRange(0, 4), *rc::gen::inRange(1, 4)};
  };
  const json one = {{"seed", *rc::gen::noShrink(rc::gen::inRange(0, 1 << 30))},
                    {"bucket", *rc::gen::inRange(1, 3000)},
                    {"optimizer", any_optimizer()},
                    {"keys", any_precision()}};
  std::vector<Part> parts(static_cast<std::size_t>(*rc::gen::inRange(2, 6)));
  for (auto& part : parts) part = any_part();
  auto whole = any_part();
  whole.windows = sum_of(parts);
  RC_ASSERT(differ(one, parts, whole) == "");
}

}  // namespace
}  // namespace equigrad::property_tests
