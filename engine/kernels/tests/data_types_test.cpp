// What travels in which type, for every way to say it.
#include "engine/kernels/data_types.hpp"

#include <gtest/gtest.h>

namespace equigrad {
namespace {

TEST(DataTypes, GradientsAndWeightsTravelInTheirOwnTypeUnlessTold) {
  PrecisionConfig precision;
  EXPECT_EQ(gradients_on_the_wire(precision), WireTypes{});
  EXPECT_EQ(weights_on_the_wire(precision), WireTypes{});
}

TEST(DataTypes, UnderAutocastThoseOfSafeModulesTravelInItsType) {
  PrecisionConfig precision;
  precision.autocast.enabled = true;
  precision.autocast.dtype = DataType::Fp16;
  const WireTypes want{std::nullopt, at::kHalf};
  EXPECT_EQ(gradients_on_the_wire(precision), want);
  EXPECT_EQ(weights_on_the_wire(precision), want);
}

TEST(DataTypes, ACommunicationTypeIsForAllGradientsAndForNoWeight) {
  PrecisionConfig precision;
  precision.communication = DataType::Bf16;
  EXPECT_EQ(gradients_on_the_wire(precision), (WireTypes{at::kBFloat16, at::kBFloat16}));
  EXPECT_EQ(weights_on_the_wire(precision), WireTypes{});
  precision.autocast.enabled = true;
  precision.autocast.dtype = DataType::Fp16;
  EXPECT_EQ(gradients_on_the_wire(precision), (WireTypes{at::kBFloat16, at::kBFloat16}));
  EXPECT_EQ(weights_on_the_wire(precision), (WireTypes{std::nullopt, at::kHalf}));
}

}  // namespace
}  // namespace equigrad
