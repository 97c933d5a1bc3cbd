// Memory parts: what the memory model is made of: sizes of elements, the plan, the transient
// categories. For memory_*.cpp only.
//
// Invariants, units, errors: those of memory/forecast.hpp.
// Depends on: memory/forecast.hpp, layout, stage.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/layout/bucket_plan.hpp"
#include "engine/layout/partition.hpp"
#include "engine/layout/stage.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::memory {

// As kernels/exact_tensor.hpp has it: two doubles.
constexpr std::int64_t kExactBytes = 16;

inline std::int64_t bytes_of(DataType type) { return type == DataType::Fp32 ? 4 : 2; }

// Bytes of an element, of each thing.
struct Sizes {
  std::int64_t param, window, master, state;
  std::int64_t weight_sent_bytes[2], gradient_sent_bytes[2];  // by lower_precision
  bool masters_are_shards;                                    // stage 3
  bool copies_gradient;                                       // to where the masters are
  bool waits_as_sent;      // what buckets hold for the step: exact order
  bool copies_to_send[2];  // by lower_precision, what they hold for the step

  Sizes(const EngineConfig& config, int world, bool on_cuda);
};

// Everything that a forecast is made of.
struct Model {
  const layout::ParameterTable& table;
  const EngineConfig& config;
  Stage stage;
  int world;
  bool on_cuda;
  layout::BucketPlan plan;
  Sizes sizes;
  std::vector<std::size_t> all;                 // trainable, registered last first
  std::vector<std::size_t> arrivals;            // in a pass
  std::vector<std::vector<std::size_t>> units;  // of pages that come and go together

  Model(const layout::ParameterTable& of, const EngineConfig& with, const MemoryOptions& options);

  HeldBytes parameters() const;
  HeldBytes gradients() const;
  HeldBytes buckets() const;
  std::vector<PassBytes> pass() const;
  HeldBytes gathered() const { return stage.parameters_sharded ? pages() : all_gathers(); }

 private:
  HeldBytes all_gathers() const;
  HeldBytes pages() const;
  bool is_exact() const { return config.reduction == ReductionOrder::Exact; }
  bool each_pass() const { return stage.gradients_reduced == ReduceWhen::EveryPass; }
  bool leaves_full() const { return stage.sends_full_buckets(config.reduces_eagerly(world)); }
  std::int64_t padded_numel(std::size_t i) const {
    return layout::Partition(table[i].numel, world).padded_numel();
  }
  bool is_persistent(std::size_t i) const {
    return table[i].numel <= config.zero.stage3_param_persistence_threshold;
  }
  // Keeps its memory from the beginning, without padding.
  bool is_resident(std::size_t i) const {
    return !on_cuda && is_persistent(i) && is_small(i) && sent_bytes_of(i) == sizes.param;
  }
  bool is_small(std::size_t i) const { return table[i].numel < layout::kAloneNumel; }
  std::int64_t whole_bytes(std::size_t i) const {
    return (is_resident(i) ? table[i].numel : padded_numel(i)) * sizes.param;
  }
  std::int64_t sent_bytes_of(std::size_t i) const {
    const auto at = plan.slot_of(i);
    return sizes.weight_sent_bytes[at && plan.buckets()[at->bucket].lower_precision ? 1 : 0];
  }
  std::int64_t persistent_peak() const;
  std::int64_t live_bytes() const;
};

}  // namespace equigrad::memory
