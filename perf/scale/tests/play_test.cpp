// What is played for W ranks is what W ranks do: every call of every rank, its bytes, its place.
#include "perf/scale/play.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <equigrad_build_info.hpp>

#include "engine/config/config.hpp"
#include "perf/race/scratch.hpp"
#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;

std::string worker() {
  const char* path = std::getenv("EQUIGRAD_PERF_WORKER");
  return path != nullptr ? path : std::string(build_info::binary_directory()) + "/perf_worker";
}

// More buckets, all-gathers and pages than one.
json config_of(int stage, const std::string& reduction, int64_t accumulation) {
  return engine_config(stage, 2, accumulation,
                       {{"reduction", reduction},
                        {"gradient_clipping", 1.0},
                        {"zero_optimization",
                         {{"reduce_bucket_size", 8'000},
                          {"allgather_bucket_size", 8'000},
                          {"stage3_prefetch_bucket_size", 4'000},
                          {"stage3_max_live_parameters", 8'000},
                          {"stage3_param_persistence_threshold", 100}}}});
}

void expect_played_is_real(int world) {
  const Scratch scratch;
  const json model = gpt(2, 24, 2, 16, 64);
  const Workload workload(model, world, 2, 1, scratch.path());
  for (int stage = 0; stage <= 3; ++stage)
    for (const char* reduction : {"pinned", "native", "exact"})
      for (const int64_t accumulation : {1, 2}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", " + reduction + ", accumulation " +
                     std::to_string(accumulation) + ", ranks " + std::to_string(world));
        const Piece piece{model, workload, 2, config_of(stage, reduction, accumulation)};
        const auto played = play_step(worker(), scratch.path(), piece, world);
        EXPECT_GT(played.calls.size(), 3u);
        for (const auto& real : record_step(worker(), scratch.path(), piece, world)) {
          EXPECT_EQ(played.calls, real.calls);
          EXPECT_EQ(played.held_bytes, real.held_bytes);
          EXPECT_EQ(played.held_peak_bytes, real.held_peak_bytes);
          EXPECT_EQ(played.under_way_bytes, real.under_way_bytes);
        }
      }
}

TEST(Play, IsWhatTwoRanksDo) { expect_played_is_real(2); }
TEST(Play, IsWhatFourRanksDo) { expect_played_is_real(4); }

// EQUIGRAD_SCALE_RANKS=8: that many.
TEST(Play, IsWhatSoManyRanksDo) {
  const char* asked = std::getenv("EQUIGRAD_SCALE_RANKS");
  expect_played_is_real(asked == nullptr ? 3 : std::atoi(asked));
}

TEST(Traffic, OfAllToAllByHand) {
  Network network;
  network.ranks_per_host = 4;
  network.within = {1, 100};
  network.between = {10, 50};
  const auto two_hosts = all_to_all(network, 8, 200);
  EXPECT_EQ(two_hosts.messages, 7);
  EXPECT_EQ(two_hosts.messages_between, 4);
  EXPECT_EQ(two_hosts.bytes, 1400);
  EXPECT_EQ(two_hosts.bytes_between, 800);
  EXPECT_EQ(two_hosts.seconds, 3 * (1 + 2) + 4 * (10 + 4 * 4)) << "four ranks share the way out";
  EXPECT_EQ(all_to_all(network, 2, 200).seconds, 1 + 2);
}

TEST(Traffic, OfARingByHand) {
  Network network;
  network.ranks_per_host = 4;
  network.within = {1, 100};
  network.between = {10, 50};
  const auto all_reduce = ring(network, 8, 800, 2);
  EXPECT_EQ(all_reduce.messages, 14);
  EXPECT_EQ(all_reduce.bytes, 1400);
  EXPECT_EQ(all_reduce.seconds, 14 * (10 + 2)) << "as slow as the way to the next host";
  EXPECT_EQ(ring(network, 4, 400, 1).seconds, 3 * (1 + 1));
  EXPECT_EQ(ring(network, 1, 400, 1).messages, 0);
}

TEST(Traffic, OfCallsIsTheirSum) {
  Network network;
  const json calls = json::array({json::array({"words", 8}), json::array({"all_to_all", 100}),
                                  json::array({"all_reduce", 400})});
  const auto step = traffic_of(calls, 4, network);
  EXPECT_EQ(step.collectives, 3);
  EXPECT_EQ(step.agreements, 1);
  EXPECT_EQ(step.words.bytes, 3 * 8);
  EXPECT_EQ(step.all.messages, 3 + 3 + 6);
  EXPECT_EQ(step.all.bytes, 3 * 8 + 3 * 100 + 600);
}

TEST(Network, TakesWholeHosts) {
  EXPECT_EQ(Network{}.local_ranks(4), 4);
  EXPECT_EQ(Network{}.local_ranks(16), 8);
  EXPECT_ANY_THROW(Network{}.local_ranks(12));
}

}  // namespace
}  // namespace equigrad::perf
