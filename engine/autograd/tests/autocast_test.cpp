// The guard: what operators compute in while it lives, and what is left when it dies.
#include "engine/autograd/autocast.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>

#include "conformance/testing/sample.hpp"

namespace equigrad {
namespace {

using conformance::sample;

at::ScalarType type_of_a_product() {
  return at::matmul(sample(4, 1).view({2, 2}), sample(4, 2).view({2, 2})).scalar_type();
}

TEST(Autocast, ProductsAreInItsTypeAsLongAsTheGuardLives) {
  for (const auto& [dtype, want] :
       {std::pair(DataType::Bf16, at::kBFloat16), std::pair(DataType::Fp16, at::kHalf)}) {
    EXPECT_EQ(type_of_a_product(), at::kFloat);
    const auto guard = make_autocast_guard({true, dtype, {}}, c10::kCPU);
    EXPECT_EQ(type_of_a_product(), want);
  }
  EXPECT_EQ(type_of_a_product(), at::kFloat);
}

TEST(Autocast, WithoutItThereIsNoGuard) {
  EXPECT_EQ(make_autocast_guard({}, c10::kCPU), nullptr);
  EXPECT_EQ(type_of_a_product(), at::kFloat);
}

TEST(Autocast, WhatWasSetBeforeComesBackAlsoAfterAThrow) {
  const auto before = at::autocast::get_autocast_dtype(c10::kCPU);
  {
    const auto outer = make_autocast_guard({true, DataType::Fp16, {}}, c10::kCPU);
    try {
      const auto inner = make_autocast_guard({true, DataType::Bf16, {}}, c10::kCPU);
      EXPECT_EQ(type_of_a_product(), at::kBFloat16);
      throw std::runtime_error("a model's");
    } catch (const std::runtime_error&) {
    }
    EXPECT_EQ(type_of_a_product(), at::kHalf);
  }
  EXPECT_EQ(at::autocast::get_autocast_dtype(c10::kCPU), before);
  EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
}

// The cache of casts must not outlive the guard: the weights change between two of them.
TEST(Autocast, ACastOfAWeightIsNotKeptFromOneGuardToTheNext) {
  auto weight = at::ones({2, 2}).requires_grad_();
  const auto product = [&] {
    const auto guard = make_autocast_guard({true, DataType::Bf16, {}}, c10::kCPU);
    return at::matmul(at::ones({2, 2}), weight)[0][0].item<float>();
  };
  EXPECT_EQ(product(), 2.0F);
  weight.detach().fill_(3.0);
  EXPECT_EQ(product(), 6.0F);
}

// torch gives the cast that it keeps to whoever reads the weight, whatever type that one asks for.
TEST(Autocast, ACastToAnotherTypeIsTakenNeitherFromTheCallersGuardNorByIt) {
  const auto weight = at::ones({2, 2}).requires_grad_();
  const auto type = [&] { return at::matmul(at::ones({2, 2}), weight).scalar_type(); };
  const auto outer = make_autocast_guard({true, DataType::Fp16, {}}, c10::kCPU);
  EXPECT_EQ(type(), at::kHalf);
  {
    const auto inner = make_autocast_guard({true, DataType::Bf16, {}}, c10::kCPU);
    EXPECT_EQ(type(), at::kBFloat16);
  }
  EXPECT_EQ(type(), at::kHalf);
}

}  // namespace
}  // namespace equigrad
