// What is played for W ranks is what W ranks do: every call of every rank, its bytes, its place.
#include "perf/scale/play.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <fstream>
#include <iterator>

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

void expect_played_is_real(int world, int local = 0) {
  const Scratch scratch;
  const json model = gpt(2, 24, 2, 16, 64);
  const Workload workload(model, world, 2, 1, scratch.path());
  auto played_ranks = Player::played(worker(), scratch.path(), {world, local});
  auto real_ranks = Player::real(worker(), scratch.path(), {world, local});
  for (int stage = 0; stage <= 3; ++stage)
    for (const char* reduction : {"pinned", "native", "exact"})
      for (const int64_t accumulation : {1, 2}) {
        SCOPED_TRACE("stage " + std::to_string(stage) + ", " + reduction + ", accumulation " +
                     std::to_string(accumulation) + ", ranks " + std::to_string(world) +
                     ", local " + std::to_string(local));
        const Piece piece{model, workload, 2, config_of(stage, reduction, accumulation)};
        const auto played = played_ranks.step(piece).front();
        EXPECT_GT(played.calls.size(), 3u);
        for (const auto& real : real_ranks.step(piece)) {
          EXPECT_EQ(played.calls, real.calls);
          EXPECT_EQ(played.held_bytes, real.held_bytes);
          EXPECT_EQ(played.held_peak_bytes, real.held_peak_bytes);
          EXPECT_EQ(played.under_way_bytes, real.under_way_bytes);
        }
      }
}

TEST(Play, IsWhatTwoRanksDo) { expect_played_is_real(2); }
TEST(Play, IsWhatFourRanksDo) { expect_played_is_real(4); }
TEST(Play, IsWhatTwoHostsOfTwoRanksDo) { expect_played_is_real(4, 2); }

// EQUIGRAD_SCALE_RANKS=8: that many.
TEST(Play, IsWhatSoManyRanksDo) {
  const char* asked = std::getenv("EQUIGRAD_SCALE_RANKS");
  expect_played_is_real(asked == nullptr ? 3 : std::atoi(asked));
}

// Sums by levels, of several passes, through the whole engine.
TEST(Play, TwoHostsHaveTheBitsOfOne) {
  const Scratch scratch;
  const json model = gpt(2, 24, 2, 16, 64);
  const Workload workload(model, 4, 2, 1, scratch.path());
  for (int stage = 0; stage <= 3; ++stage) {
    std::vector<std::string> files;
    for (const int local : {0, 2}) {
      const auto path = scratch.path() + "/gradients" + std::to_string(local);
      Player::real(worker(), scratch.path(), {4, local})
          .write_gradients({model, workload, 2, config_of(stage, "pinned", 3)}, path);
      std::ifstream file(path, std::ios::binary);
      files.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    }
    EXPECT_GT(files[0].size(), 50'000u);
    EXPECT_EQ(files[0] == files[1], true) << "stage " << stage;
  }
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
  EXPECT_EQ(step.calls, 3);
  EXPECT_EQ(step.agreements, 1);
  EXPECT_EQ(step.words.bytes, 3 * 8);
  EXPECT_EQ(step.all.messages, 3 + 3 + 6);
  EXPECT_EQ(step.all.bytes, 3 * 8 + 3 * 100 + 600);
}

TEST(Traffic, OfOneMessageAndOfARelayByHand) {
  Network network;
  network.ranks_per_host = 4;
  network.within = {1, 100};
  network.between = {10, 50};
  EXPECT_EQ(message(network, 8, 100, false).seconds, 1 + 1);
  EXPECT_EQ(message(network, 8, 100, true).seconds, 10 + 4 * 2);
  const auto relayed = relay(network, 12, 100);  // 1, 2, 4 and 4 ranks' words
  EXPECT_EQ(relayed.messages, 4);
  EXPECT_EQ(relayed.bytes, 1100);
  EXPECT_EQ(relayed.bytes_between, 1100);
  EXPECT_EQ(relayed.seconds, (10 + 2) + (10 + 4 * 2) + 2 * (10 + 4 * 4 * 2));
  EXPECT_EQ(relay(network, 4, 100).messages_between, 0);
}

// Words of any size, and all-gathers of at most 64 KiB a rank.
TEST(Traffic, OfMoreThanEightRanksIsRelayedWhereItIsSmall) {
  const auto messages = [](const char* what, int64_t bytes, int world) {
    const auto calls = json::array({json::array({what, bytes})});
    return traffic_of(calls, world, Network{}).all.messages;
  };
  EXPECT_EQ(messages("words", 100'000, 16), 4);
  EXPECT_EQ(messages("words", 8, 8), 7);
  EXPECT_EQ(messages("all_gather", 1 << 16, 16), 4);
  EXPECT_EQ(messages("all_gather", (1 << 16) + 1, 16), 15);
  EXPECT_EQ(messages("all_to_all", 8, 16), 15);
}

TEST(Network, TakesWholeHosts) {
  EXPECT_EQ(Network{}.local_ranks(4), 4);
  EXPECT_EQ(Network{}.local_ranks(16), 8);
  EXPECT_ANY_THROW(Network{}.local_ranks(12));
}

}  // namespace
}  // namespace equigrad::perf
