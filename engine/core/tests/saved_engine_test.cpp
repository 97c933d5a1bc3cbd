// What an engine says of itself comes back with every bit, and what is not that is refused.
#include "engine/core/saved_engine.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "engine/error.hpp"

namespace equigrad::core {
namespace {

using testing::HasSubstr;

SavedEngine unusual() {
  SavedEngine engine;
  engine.stage = 2;
  engine.mesh = comm::MeshSizes{.data = 2, .sequence = 3, .tensor = 5};
  engine.param_type = "F16";
  engine.master_type = "F32";
  engine.optimizer = "sgd";
  engine.parameters = {{"a", {"b", "c"}, {2, 3}, true, 7, 1}, {"d", {}, {}, false, 0, 0}};
  engine.groups = {{.kind = OptimizerConfig::Kind::Sgd,
                    .lr = 0.1 + 0.2,
                    .weight_decay = std::numeric_limits<double>::denorm_min(),
                    .beta1 = 1.0 / 3,
                    .momentum = std::nextafter(0.9, 1.0),
                    .dampening = 1e-300,
                    .nesterov = true},
                   {.kind = OptimizerConfig::Kind::Sgd, .lr = 0}};
  engine.counters.micro_steps = 12;
  engine.counters.global_steps = 6;
  engine.counters.skipped_steps = 1;
  engine.applied = true;
  engine.norm = 1.0 / 7;
  engine.loss_scale_policy = "deepspeed";
  engine.loss_scale = {.scale = 1024,
                       .stepped = true,
                       .overflow = true,
                       .steps = 9,
                       .last_overflow = 4,
                       .hysteresis_left = 2,
                       .good_steps = 5};
  engine.last_batch_iteration = -1;
  engine.theta = 0.7;
  return engine;
}

TEST(SavedEngine, EveryNumberComesBack) {
  const auto want = unusual();
  const auto got = saved_engine_from(nlohmann::json::parse(to_json(want).dump()), "the manifest");
  EXPECT_EQ(to_json(got), to_json(want));
  EXPECT_EQ(got.mesh, want.mesh);
  EXPECT_EQ(got.groups, want.groups);
  EXPECT_EQ(got.loss_scale, want.loss_scale);
  EXPECT_EQ(got.norm, want.norm);
  EXPECT_EQ(got.theta, want.theta);
  EXPECT_EQ(got.last_batch_iteration, want.last_batch_iteration);
  EXPECT_EQ(got.counters.micro_steps, 12);
  EXPECT_EQ(got.counters.skipped_steps, 1);
  ASSERT_EQ(got.parameters.size(), 2);
  EXPECT_EQ(got.find("c"), &got.parameters[0]);
  EXPECT_EQ(got.find("d")->trainable, false);
  EXPECT_EQ(got.find("e"), nullptr);
}

TEST(SavedEngine, WhatIsNotThereAndWhatIsNoNumberComeBackToo) {
  auto engine = unusual();
  engine.norm = std::nan("");
  engine.theta.reset();
  engine.last_batch_iteration.reset();
  auto got = saved_engine_from(nlohmann::json::parse(to_json(engine).dump()), "it");
  EXPECT_TRUE(std::isnan(got.norm.value()));
  EXPECT_FALSE(got.theta || got.last_batch_iteration);
  engine.norm.reset();
  got = saved_engine_from(to_json(engine), "it");
  EXPECT_FALSE(got.norm.has_value());
  engine.norm = std::numeric_limits<double>::infinity();
  EXPECT_EQ(saved_engine_from(to_json(engine), "it").norm, engine.norm);
}

TEST(SavedEngine, EveryKeyThatIsMissingOrOfAnotherKindIsAnError) {
  const auto whole = to_json(unusual());
  for (const auto& [key, value] : whole.items()) {
    for (const bool is_missing : {true, false}) {
      if (is_missing && key == "mesh") continue;  // of an engine that had none
      auto changed = whole;
      if (is_missing)
        changed.erase(key);
      else
        changed[key] = value.is_object() ? nlohmann::json(3) : nlohmann::json::object({{"x", 1}});
      try {
        saved_engine_from(changed, "the manifest");
        ADD_FAILURE() << key << " was not missed";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("the manifest"));
      }
    }
  }
  auto other = whole;
  other["optimizer"] = "lion";
  EXPECT_THROW(saved_engine_from(other, "it"), Error);
}

TEST(SavedEngine, TypesGoBothWays) {
  for (const auto type : {at::kBool, at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                          at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
    EXPECT_EQ(scalar_type_of(element_type_of(type, "x")), type);
  EXPECT_THROW(element_type_of(at::kComplexFloat, "x"), Error);
}

}  // namespace
}  // namespace equigrad::core
