#include "perf/scale/others.hpp"

#include <algorithm>
#include <numeric>

namespace equigrad::perf {
namespace {

constexpr std::int64_t kBytes = 4;                                  // of an element
constexpr std::int64_t kFirstBucket = 1 << 20, kBucket = 25 << 20;  // DDP's, bytes
constexpr std::int64_t kReduceNumel = 500'000'000, kPrefetchNumel = 50'000'000;
constexpr std::int64_t kPersistentNumel = 100'000, kLiveNumel = 1'000'000'000;

std::int64_t sum_of(const std::vector<std::int64_t>& numels) {
  return std::accumulate(numels.begin(), numels.end(), std::int64_t{0});
}

class Step {
 public:
  Step(int world, const Network& network) : world_(world), network_(network) {}

  // `rounds` as in ring().
  void send(std::int64_t numel, int rounds) {
    if (numel == 0) return;
    ++step_.collectives;
    step_.all += ring(network_, world_, numel * kBytes, rounds);
  }
  OtherStep holding(std::int64_t bytes) {
    step_.held_bytes = bytes;
    return step_;
  }

 private:
  int world_;
  const Network& network_;
  OtherStep step_;
};

// Of at most `most` elements, a larger parameter alone, the last one first.
std::vector<std::int64_t> buckets_of(const std::vector<std::int64_t>& numels, std::int64_t most) {
  std::vector<std::int64_t> buckets;
  std::int64_t open = 0;
  for (auto at = numels.rbegin(); at != numels.rend(); ++at) {
    if (open + *at > most && open > 0) {
      buckets.push_back(open);
      open = 0;
    }
    open += *at;
  }
  buckets.push_back(open);
  return buckets;
}

std::int64_t large_numel(const std::vector<std::int64_t>& numels) {
  std::int64_t large = 0;
  for (const auto numel : numels)
    if (numel > kPersistentNumel) large += numel;
  return large;
}

void gather_parameters(Step& step, std::int64_t large) {
  const int times = large > kLiveNumel ? 2 : 1;
  for (int time = 0; time < times; ++time)
    for (std::int64_t left = large; left > 0; left -= kPrefetchNumel)
      step.send(std::min(left, kPrefetchNumel), 1);
}

}  // namespace

OtherStep ddp_step(const std::vector<std::int64_t>& numels, int world, const Network& network) {
  Step step(world, network);
  std::int64_t open = 0, limit = kFirstBucket / kBytes;
  for (auto at = numels.rbegin(); at != numels.rend(); ++at) {
    open += *at;
    if (open < limit) continue;
    step.send(open, 2);
    open = 0;
    limit = kBucket / kBytes;
  }
  step.send(open, 2);
  return step.holding(5 * kBytes * sum_of(numels));
}

OtherStep deepspeed_step(int stage, const std::vector<std::int64_t>& numels, int passes, int world,
                         const Network& network) {
  if (stage == 0) return ddp_step(numels, world, network);
  Step step(world, network);
  const std::int64_t numel = sum_of(numels), large = large_numel(numels);
  for (int pass = 0; pass < (stage == 1 ? 1 : passes); ++pass) {
    if (stage == 3) gather_parameters(step, large);
    for (const auto bucket : buckets_of(numels, kReduceNumel))
      step.send(bucket, stage == 3 ? 1 : 2);
  }
  step.send(stage == 3 ? numel - large : numel, 1);
  const auto sharded = [&](bool is_sharded) { return kBytes * numel / (is_sharded ? world : 1); };
  return step.holding(sharded(stage >= 3) + sharded(stage >= 2) + 3 * sharded(true));
}

}  // namespace equigrad::perf
