#include "engine/checkpoint/difference.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "conformance/testing/saved_folder.hpp"
#include "engine/error.hpp"

namespace equigrad::checkpoint {
namespace {

using conformance::damage;
using conformance::engine_of;
using conformance::place_of;
using conformance::save_folder;
using conformance::saved_tensor;
using conformance::SavedFolder;
using conformance::SavedTensor;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr auto kNoNumber = std::numeric_limits<std::uint64_t>::max();

class Difference : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = testing::TempDir() + "equigrad-difference-XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  SavedCheckpoint saved(const std::vector<SavedTensor>& tensors, const SavedFolder& about = {}) {
    const std::string tag = "step" + std::to_string(++count_);
    save_folder(folder_, tag, tensors, about);
    return SavedCheckpoint::open(folder_, tag);
  }
  std::vector<TensorDifference> of(const SavedTensor& a, const SavedTensor& b) {
    return differences(saved({a}), saved({b}));
  }
  // The largest distance of two tensors of one element.
  template <class T>
  std::uint64_t apart(ElementType type, T a, T b) {
    const auto found = of(saved_tensor<T>("x", type, {}, {a}), saved_tensor<T>("x", type, {}, {b}));
    return found.empty() ? 0 : found.at(0).largest_ulps;
  }

  Path folder_;
  int count_ = 0;
};

std::vector<SavedTensor> tensors() {
  return {saved_tensor<float>("master/w", ElementType::F32, {3, 2}, {1, 2, 3, 4, 5, 6}),
          saved_tensor<std::int64_t>("rank0/buffer/count", ElementType::I64, {}, {3}),
          saved_tensor<float>("empty", ElementType::F32, {0, 4}, {})};
}

TEST_F(Difference, ThereIsNoneBetweenCheckpointsOfAnyRanks) {
  auto of_two = tensors();
  of_two.push_back(saved_tensor<std::uint8_t>("rank1/rng/cpu", ElementType::U8, {2}, {1, 2}));
  const auto one = saved(tensors()), two = saved(of_two, {.world_size = 2}),
             three = saved(of_two, {.world_size = 3});
  EXPECT_THAT(differences(one, one), IsEmpty());
  EXPECT_THAT(differences(one, two), IsEmpty());
  EXPECT_THAT(differences(two, one), IsEmpty());
  EXPECT_THAT(differences(three, two), IsEmpty());
  of_two[0].cut = Cut{.dimension = 1, .segments = {2}, .parts = 2};
  EXPECT_THAT(differences(saved(of_two, {.world_size = 2}), two), IsEmpty());
}

TEST_F(Difference, WhatIsOfARankThatBothHaveIsCompared) {
  auto a = tensors(), b = tensors();
  a.push_back(saved_tensor<std::uint8_t>("rank1/rng/cpu", ElementType::U8, {2}, {1, 2}));
  a.push_back(saved_tensor<std::uint8_t>("rank1x", ElementType::U8, {1}, {1}));
  b.push_back(saved_tensor<std::uint8_t>("rank1/rng/cpu", ElementType::U8, {2}, {1, 4}));
  const auto found = differences(saved(a, {.world_size = 2}), saved(b, {.world_size = 2}));
  EXPECT_THAT(found, ElementsAre(TensorDifference{"rank1/rng/cpu", "", 2, 1, 2, 1},
                                 TensorDifference{.name = "rank1x", .what = "only in A"}));
}

TEST_F(Difference, ElementsAreCountedAndTheFirstIsNamed) {
  auto a = tensors(), b = tensors();
  const float next = std::nextafter(4.0F, 5.0F);
  b[0] = saved_tensor<float>("master/w", ElementType::F32, {3, 2}, {1, 2, 3, next, 5, 7});
  for (const int world_size : {1, 2, 4})
    EXPECT_THAT(differences(saved(a), saved(b, {.world_size = world_size})),
                ElementsAre(TensorDifference{"master/w", "", 6, 2, 1 << 21, 3}));
}

TEST_F(Difference, OneBehindThePartThatIsReadAtOnceIsSeen) {
  std::vector<std::uint16_t> values((1 << 20) + 2);
  const auto a = saved_tensor("w", ElementType::BF16, {(1 << 20) + 2}, values);
  values.back() = 5;
  const auto b = saved_tensor("w", ElementType::BF16, {(1 << 20) + 2}, values);
  EXPECT_THAT(of(a, b), ElementsAre(TensorDifference{"w", "", (1 << 20) + 2, 1, 5, (1 << 20) + 1}));
}

TEST_F(Difference, UlpsAreNumbersBetweenInEveryType) {
  EXPECT_EQ(apart<std::uint16_t>(ElementType::F16, 0x3C00, 0x3C02), 2u);
  EXPECT_EQ(apart<std::uint16_t>(ElementType::F16, 0x7BFF, 0x7C00), 1u) << "infinity is the next";
  EXPECT_EQ(apart<std::uint16_t>(ElementType::F16, 0x7C00, 0x7C01), kNoNumber);
  EXPECT_EQ(apart<std::uint16_t>(ElementType::BF16, 0x7C00, 0x7C01), 1u);
  EXPECT_EQ(apart<std::uint16_t>(ElementType::BF16, 0x0001, 0x8001), 2u);
  EXPECT_EQ(apart<float>(ElementType::F32, -1, std::nextafter(-1.0F, 0.0F)), 1u);
  EXPECT_EQ(apart<float>(ElementType::F32, -INFINITY, INFINITY), 2u * 0x7F800000U);
  EXPECT_EQ(apart<double>(ElementType::F64, 1, 1 + std::ldexp(1, -50)), 4u);
  EXPECT_EQ(apart<double>(ElementType::F64, -INFINITY, INFINITY), 2u * 0x7FF0000000000000U);
  EXPECT_EQ(apart<std::uint8_t>(ElementType::Bool, 0, 1), 1u);
  EXPECT_EQ(apart<std::uint8_t>(ElementType::U8, 0, 255), 255u);
  EXPECT_EQ(apart<std::int8_t>(ElementType::I8, -128, 127), 255u);
  EXPECT_EQ(apart<std::int16_t>(ElementType::I16, -5, 7), 12u);
  EXPECT_EQ(apart<std::int32_t>(ElementType::I32, INT32_MIN, INT32_MAX), 0xFFFFFFFFU);
  EXPECT_EQ(apart<std::int64_t>(ElementType::I64, INT64_MIN, INT64_MAX), kNoNumber);
}

TEST_F(Difference, ZerosAreEqualAndSoAreNansButNotToNumbers) {
  EXPECT_EQ(apart<float>(ElementType::F32, 0.0F, -0.0F), 0u);
  EXPECT_EQ(apart<std::uint32_t>(ElementType::F32, 0x7FC00000, 0xFF800001), 0u);
  EXPECT_EQ(apart<float>(ElementType::F32, NAN, INFINITY), kNoNumber);
  EXPECT_EQ(apart<double>(ElementType::F64, 0, NAN), kNoNumber);
}

TEST_F(Difference, OtherTypesShapesAndNamesAreSaid) {
  const auto a = saved_tensor<float>("w", ElementType::F32, {2}, {1, 2});
  EXPECT_THAT(of(a, saved_tensor<std::int32_t>("w", ElementType::I32, {2}, {1, 2})),
              ElementsAre(TensorDifference{.name = "w", .what = "type F32 and I32"}));
  EXPECT_THAT(of(a, saved_tensor<float>("w", ElementType::F32, {2, 1}, {1, 2})),
              ElementsAre(TensorDifference{.name = "w", .what = "shape [2] and [2, 1]"}));
  EXPECT_THAT(of(a, saved_tensor<float>("v", ElementType::F32, {2}, {1, 2})),
              ElementsAre(TensorDifference{.name = "v", .what = "only in B"},
                          TensorDifference{.name = "w", .what = "only in A"}));
}

TEST_F(Difference, WhatHasBeenChangedIsAnErrorAndNoDifference) {
  const auto a = saved(tensors()), b = saved(tensors());
  damage(place_of(b, "master/w", 5));
  EXPECT_THROW(differences(a, b), Error);
  EXPECT_THROW(differences(b, a), Error);
}

TEST_F(Difference, SettingsAreComparedByPath) {
  Manifest a, b;
  a.engine = b.engine = engine_of({{"w"}});
  b.world_size = 4;
  b.id = "other";
  b.engine["stage"] = 1;
  EXPECT_THAT(setting_differences(a, b), IsEmpty());
  b.engine["counters"]["global_steps"] = 8;
  b.engine["parameters"][0]["steps"] = 6;
  b.engine["schedule"] = {{"last_batch_iteration", 7}};
  b.client_state = "mine";
  EXPECT_THAT(setting_differences(a, b),
              ElementsAre(SettingDifference{"/client_state", "null", "\"mine\""},
                          SettingDifference{"/engine/counters/global_steps", "7", "8"},
                          SettingDifference{"/engine/parameters/w/steps", "7", "6"},
                          SettingDifference{"/engine/schedule", "null", ""},
                          SettingDifference{"/engine/schedule/last_batch_iteration", "", "7"}));
}

}  // namespace
}  // namespace equigrad::checkpoint
