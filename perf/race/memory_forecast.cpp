#include "perf/race/memory_forecast.hpp"

#include <algorithm>
#include <map>

#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/partition.hpp"
#include "engine/layout/stage.hpp"
#include "engine/memory/forecast.hpp"
#include "perf/race/receiving_blocks.hpp"

namespace equigrad::perf {
namespace {

using memory::Category;

// The pages of stage 3 that are whole, beside those that always are.
class Pages {
 public:
  Pages(const std::vector<int64_t>& numels, const EngineConfig& config, int world,
        const HeldBytes& gathered, const std::vector<Moment>& moments)
      : most_bytes_(gathered.most - gathered.idle) {
    const auto& zero = config.zero;
    for (std::size_t i = 0; i < numels.size(); ++i) {
      numel_ += numels[i];
      if (numels[i] <= zero.stage3_param_persistence_threshold) continue;
      bytes_[i] = layout::Partition(numels[i], world).padded_numel() * 4;
      if (numels[i] < layout::kAloneNumel) room_bytes_ += bytes_[i];
    }
    fits_ = std::min({zero.stage3_max_live_parameters, zero.stage3_prefetch_bucket_size,
                      zero.stage3_max_reuse_distance}) >= numel_;
    for (std::size_t at = 0; at < moments.size(); ++at)
      if (moments[at].begins == "use")
        for (const std::size_t i : moments[at].parameters) last_use_[i] = at;
  }

  // Of an operator that reads one at least: what only the one before it needed goes.
  void use(const std::vector<std::size_t>& parameters, std::size_t at) {
    std::vector<std::size_t> pages;
    for (const std::size_t i : parameters)
      if (bytes_.count(i) != 0) pages.push_back(i);
    if (pages.empty()) return;
    if (current_.empty())
      for (const auto& [page, bytes] : bytes_) now_bytes_ += last_use_.count(page) ? bytes : 0;
    for (const std::size_t page : current_)
      if (last_use_.at(page) < at) now_bytes_ -= bytes_.at(page);
    current_ = pages;
  }
  int64_t bytes() const { return fits_ ? now_bytes_ + room_bytes_ : most_bytes_; }

 private:
  int64_t most_bytes_, now_bytes_ = 0, numel_ = 0;
  int64_t room_bytes_ = 0;  // that small ones arrive in
  bool fits_;
  std::map<std::size_t, int64_t> bytes_;  // of those that come and go
  std::map<std::size_t, std::size_t> last_use_;
  std::vector<std::size_t> current_;
};

std::vector<std::size_t> arrivals_of(const std::vector<Moment>& moments) {
  std::vector<std::size_t> arrivals;
  for (const auto& moment : moments)
    if (moment.begins == "gradient") arrivals.push_back(moment.parameters.at(0));
  return arrivals;
}

// Beyond what is held between steps: in backward, what operators have beside what the engine has.
int64_t pass_bytes(const std::vector<int64_t>& numels, int world,
                   const std::vector<PassBytes>& timeline, Pages pages,
                   const std::vector<Moment>& alone) {
  const int64_t idle_bytes = alone.front().live_bytes;
  int64_t most = 0, held = 0, gradients = 0;
  auto arrival = timeline.begin();
  for (std::size_t at = 1; at < alone.size() && alone[at].begins != "step"; ++at) {
    const auto& moment = alone[at];
    if (moment.begins == "use") pages.use(moment.parameters, at);
    if (moment.begins == "gradient") {
      const int64_t numel = numels[moment.parameters.at(0)], own_bytes = numel * 4;
      gradients += own_bytes;
      // A large gradient without padding is the bucket; another one goes when it has been copied.
      const bool is_copied = numel < layout::kAloneNumel || numel % world != 0;
      most = std::max(most, moment.start_bytes - idle_bytes - gradients +
                                (is_copied ? own_bytes : 0) + arrival->most_bytes + pages.bytes());
      held = (arrival++)->after_bytes;
    }
    most = std::max(most,
                    moment.live_bytes - idle_bytes - moment.gradient_bytes + held + pages.bytes());
  }
  return most;
}

}  // namespace

int64_t forecast_peak_bytes(const std::vector<int64_t>& numels, const EngineConfig& config,
                            int world, const std::vector<Moment>& alone) {
  const auto table = table_of_sizes(numels, config);
  const auto stage = stage_row(config.zero.stage);
  const layout::BucketPlan plan(
      table, stage.shards(world),
      layout::bucket_size(table, config.zero.reduce_bucket_size,
                          stage.sends_full_buckets(config.reduces_eagerly(world))));
  const MemoryOptions options{world, false, arrivals_of(alone)};
  const auto held = forecast(table, config, options);
  const auto& gathered = held.of(Category::Gathered);
  const Pages pages(stage.parameters_sharded ? numels : std::vector<int64_t>(), config, world,
                    gathered, alone);
  const int64_t step_bytes =
      held.of(Category::Gradients).peak +
      std::max(held.of(Category::Buckets).peak, gathered.peak - gathered.idle);
  const int64_t beyond_bytes =
      pass_bytes(numels, world, forecast_pass(table, config, options), pages, alone);
  const int64_t other_bytes = alone.front().live_bytes - alone.front().held_bytes;
  return held.idle_bytes() + receiving_bytes(plan, world) + other_bytes +
         std::max(beyond_bytes, step_bytes);
}

}  // namespace equigrad::perf
