#include "engine/memory/forecast.hpp"

#include <algorithm>

#include "engine/loss/divisors.hpp"
#include "engine/memory/forecast_parts.hpp"

namespace equigrad {
namespace memory {
namespace {

// A sum of a later pass waits in fp32 for the pass to end, or as it is if it is exact.
constexpr std::int64_t kStagedBytes = 4;

std::int64_t state_tensors(const OptimizerConfig& optimizer) {
  if (optimizer.kind != OptimizerConfig::Kind::Sgd) return 2;
  return optimizer.momentum != 0 ? 1 : 0;
}

HeldBytes always(std::int64_t bytes) { return {bytes, bytes, bytes}; }

}  // namespace

Sizes::Sizes(const EngineConfig& config, int world, bool on_cuda)
    : param(bytes_of(config.precision.param)),
      window(bytes_of(config.precision.accumulate)),
      master(bytes_of(config.precision.master)),
      state(state_tensors(config.optimizer) * bytes_of(config.precision.optimizer_state)),
      copies_gradient(on_cuda && config.offload_optimizer.to_cpu) {
  const PrecisionConfig& precision = config.precision;
  const bool each = stage_row(config.zero.stage).gradients_reduced == ReduceWhen::EveryPass;
  const bool is_exact = config.reduction == ReductionOrder::Exact;
  waits_as_sent = is_exact && !each;
  for (const int lower : {0, 1}) {
    const bool cast = lower == 1 && precision.autocast.enabled;
    const std::int64_t autocast = bytes_of(precision.autocast.dtype);
    weight_sent_bytes[lower] = cast ? autocast : param;
    gradient_sent_bytes[lower] = precision.communication ? bytes_of(*precision.communication)
                                 : cast                  ? autocast
                                 : each || waits_as_sent ? param
                                                         : window;
    const DataType sent = precision.communication ? *precision.communication
                          : cast                  ? precision.autocast.dtype
                                                  : precision.accumulate;
    copies_to_send[lower] =
        sent != precision.accumulate || loss::factor_before_sum(config.averaging, world) != 1.0;
    if (waits_as_sent && !config.expects_one_pass()) gradient_sent_bytes[lower] = kExactBytes;
  }
  if (is_exact && each) window = kExactBytes;
  const bool one_place =
      !on_cuda || config.offload_optimizer.to_cpu == config.zero.offload_param.to_cpu;
  masters_are_shards = precision.master == precision.param && one_place;
}

Model::Model(const layout::ParameterTable& of, const EngineConfig& with,
             const MemoryOptions& options)
    : table(of),
      config(with),
      stage(stage_row(config.zero.stage)),
      world(options.world_size),
      on_cuda(options.on_cuda),
      plan(table, stage.shards(world),
           layout::bucket_size(table, config.zero.reduce_bucket_size, leaves_full())),
      sizes(config, world, options.on_cuda) {
  for (std::size_t i = table.size(); i-- > 0;)
    if (table[i].trainable) all.push_back(i);
  arrivals = options.arrivals.value_or(all);
  units = options.leaves;
  std::vector<bool> in_leaf(table.size(), false);
  for (const auto& leaf : units)
    for (const std::size_t i : leaf) in_leaf[i] = true;
  for (std::size_t i = 0; i < table.size(); ++i)
    if (!in_leaf[i]) units.push_back({i});
}

HeldBytes Model::parameters() const {
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!stage.parameters_sharded) {
      bytes += table[i].numel * own_bytes(i);
    } else if (!plan.slot_of(i)) {  // frozen
      bytes += padded_numel(i) / world * own_bytes(i);
    } else if (sent_bytes_of(i) != sizes.param) {
      bytes += padded_numel(i) / world * sent_bytes_of(i);
    }
  }
  if (stage.parameters_sharded && !sizes.masters_are_shards)
    bytes += plan.shard_numel() * sizes.param;
  return always(bytes);
}

HeldBytes Model::gradients() const {
  const std::int64_t numel = plan.shard_numel();
  const bool converted = sizes.window != sizes.master;
  const std::int64_t step = numel * std::max(sizes.window + (converted ? sizes.master : 0),
                                             sizes.master * (sizes.copies_gradient ? 2 : 1));
  HeldBytes held{0, step, step};
  if (config.expects_one_pass()) return held;
  const auto later_pass = [&](const std::vector<std::size_t>& reached) {
    if (each_pass())
      return numel * (sizes.window + std::max(kStagedBytes, is_exact() ? kExactBytes : 0));
    std::int64_t bytes = 0;
    for (const std::size_t i : reached) bytes += table[i].numel * sizes.param;
    return bytes;
  };
  held.peak = std::max(held.peak, later_pass(arrivals));
  held.most = std::max(held.most, later_pass(all));
  return held;
}

}  // namespace memory

using memory::Category;
using memory::Model;
using memory::Sizes;

std::int64_t MemoryForecast::idle_bytes() const {
  std::int64_t bytes = 0;
  for (const HeldBytes& held : categories) bytes += held.idle;
  return bytes;
}

std::int64_t MemoryForecast::most_bytes() const {
  std::int64_t bytes = 0;
  for (const HeldBytes& held : categories) bytes += held.most;
  return bytes;
}

MemoryForecast forecast(const layout::ParameterTable& table, const EngineConfig& config,
                        const MemoryOptions& options) {
  const Model model(table, config, options);
  const std::int64_t numel = model.plan.shard_numel();
  return {{model.parameters(), model.gradients(), memory::always(numel * model.sizes.master),
           memory::always(numel * model.sizes.state), model.buckets(), model.gathered()}};
}

std::vector<PassBytes> forecast_pass(const layout::ParameterTable& table,
                                     const EngineConfig& config, const MemoryOptions& options) {
  return Model(table, config, options).pass();
}

layout::ParameterTable table_of_sizes(const std::vector<std::int64_t>& numels,
                                      const EngineConfig& config) {
  std::vector<layout::Registration> registrations;
  const bool safe = config.precision.autocast.enabled &&
                    !config.precision.autocast.lower_precision_safe_modules.empty();
  for (std::size_t i = 0; i < numels.size(); ++i)
    registrations.push_back({"p" + std::to_string(i), &numels[i], {numels[i]}, true, 0, safe});
  return layout::ParameterTable(registrations);
}

MemoryRates rates(const EngineConfig& config, const MemoryOptions& options) {
  // What does not grow with the model is left out by making it nothing: one element a bucket, an
  // all-gather, a page.
  const Stage stage = stage_row(config.zero.stage);
  const Sizes sizes(config, options.world_size, options.on_cuda);
  EngineConfig fine = config;
  fine.zero.reduce_bucket_size = fine.zero.allgather_bucket_size = 1;
  fine.zero.stage3_param_persistence_threshold = 0;
  constexpr std::int64_t kTensors = 4096;
  const std::vector<std::int64_t> numels(kTensors, options.world_size);
  const auto held = forecast(table_of_sizes(numels, fine), fine, options);
  const auto total = static_cast<double>(kTensors * options.world_size);
  MemoryRates all;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].idle = static_cast<double>(held.categories[i].idle) / total;
    all[i].peak = static_cast<double>(held.categories[i].peak) / total;
  }
  auto& buckets = all[static_cast<std::size_t>(Category::Buckets)];
  auto& gathered = all[static_cast<std::size_t>(Category::Gathered)];
  gathered = {};
  const auto sent_bytes = std::max(sizes.gradient_sent_bytes[0], sizes.gradient_sent_bytes[1]);
  // One on its way, one announced, a large one, and one that small ones share.
  if (stage.gradients_reduced == ReduceWhen::EveryPass)
    buckets = {0, 0, 4 * config.zero.reduce_bucket_size * sent_bytes};
  else if (fine.reduces_eagerly(options.world_size) &&
           (sizes.copies_to_send[0] || sizes.copies_to_send[1]))
    buckets.constant = 2 * config.zero.reduce_bucket_size * sent_bytes;
  if (stage.parameters_sharded)
    gathered.constant = config.zero.stage3_max_live_parameters * sizes.param;
  else if (stage.shards(options.world_size) > 1)
    gathered.constant = config.zero.allgather_bucket_size * sizes.weight_sent_bytes[0];
  return all;
}

}  // namespace equigrad
