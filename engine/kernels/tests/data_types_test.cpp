// What is sent in which type, for every way to say it.
#include "engine/kernels/data_types.hpp"

#include <gtest/gtest.h>

namespace equigrad {
namespace {

TEST(DataTypes, GradientsAndWeightsTravelInTheirOwnTypeUnlessTold) {
  PrecisionConfig precision;
  EXPECT_EQ(gradient_communication_dtypes(precision), CommunicationDtypes{});
  EXPECT_EQ(weight_communication_dtypes(precision), CommunicationDtypes{});
}

TEST(DataTypes, UnderAutocastThoseOfSafeModulesTravelInItsType) {
  PrecisionConfig precision;
  precision.autocast.enabled = true;
  precision.autocast.dtype = DataType::Fp16;
  const CommunicationDtypes want{std::nullopt, at::kHalf};
  EXPECT_EQ(gradient_communication_dtypes(precision), want);
  EXPECT_EQ(weight_communication_dtypes(precision), want);
}

TEST(DataTypes, ACommunicationTypeIsForAllGradientsAndForNoWeight) {
  PrecisionConfig precision;
  precision.communication = DataType::Bf16;
  EXPECT_EQ(gradient_communication_dtypes(precision),
            (CommunicationDtypes{at::kBFloat16, at::kBFloat16}));
  EXPECT_EQ(weight_communication_dtypes(precision), CommunicationDtypes{});
  precision.autocast.enabled = true;
  precision.autocast.dtype = DataType::Fp16;
  EXPECT_EQ(gradient_communication_dtypes(precision),
            (CommunicationDtypes{at::kBFloat16, at::kBFloat16}));
  EXPECT_EQ(weight_communication_dtypes(precision), (CommunicationDtypes{std::nullopt, at::kHalf}));
}

}  // namespace
}  // namespace equigrad
