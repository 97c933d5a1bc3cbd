// What zero::Init leaves of a parameter: its shard, and an error for who reads the rest.
#include "engine/parameter/early_shards.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

namespace equigrad::parameter {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

at::Tensor taken() {
  const auto parameter = at::arange(6, at::kFloat).view({2, 3}).clone();
  keep_early_shard(parameter, {at::zeros({3}), 7, 1, 2});
  return parameter;
}

TEST(EarlyShards, WhatIsTakenHasItsShapeAndNoData) {
  const auto parameter = taken();
  EXPECT_EQ(parameter.sizes(), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(parameter.t().sizes(), (std::vector<int64_t>{3, 2}));
  const auto message = HasSubstr("parameter 7, got its data asked for");
  EXPECT_THAT([&] { parameter.const_data_ptr<float>(); }, ThrowsMessage<c10::Error>(message));
  EXPECT_THAT([&] { parameter.mutable_data_ptr<float>(); }, ThrowsMessage<c10::Error>(message));
  EXPECT_THAT([&] { parameter.add(1); }, ThrowsMessage<c10::Error>(message));
  EXPECT_THAT([&] { parameter.t().contiguous(); }, ThrowsMessage<c10::Error>(message));
}

TEST(EarlyShards, AShardIsOfItsParameterUntilSomethingElseFillsIt) {
  auto parameter = taken();
  ASSERT_TRUE(early_shard(parameter));
  EXPECT_EQ(early_shard(parameter)->number, 7);
  EXPECT_EQ(early_shard(parameter)->rank, 1);
  EXPECT_EQ(early_shard(parameter)->world_size, 2);
  EXPECT_FALSE(early_shard(parameter.t()));
  parameter.set_data(at::zeros({2, 3}));
  EXPECT_FALSE(early_shard(parameter));
  EXPECT_EQ(parameter.sum().item<float>(), 0);
}

TEST(EarlyShards, WhatIsGivenBackIsThere) {
  const auto parameter = taken();
  const auto shard = early_shard(parameter)->shard.storage().getWeakStorageImpl();
  give_back(parameter, at::arange(6, at::kFloat).view({2, 3}).clone());
  EXPECT_TRUE(shard.expired());
  EXPECT_FALSE(early_shard(parameter));
  EXPECT_EQ(parameter.sum().item<float>(), 15);
}

TEST(EarlyShards, AShardGoesWithItsParameter) {
  c10::weak_intrusive_ptr<c10::StorageImpl> shard_of_the_dead(
      c10::intrusive_ptr<c10::StorageImpl>{});
  {
    const auto parameter = taken();
    const auto early = early_shard(parameter);
    shard_of_the_dead = early->shard.storage().getWeakStorageImpl();
  }
  const auto other = taken();  // entries of the dead go when one comes
  EXPECT_TRUE(shard_of_the_dead.expired());
}

}  // namespace
}  // namespace equigrad::parameter
