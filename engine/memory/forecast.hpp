// Memory model: the bytes that one rank's engine holds, by category, from sizes alone.
//
// With p, a, m, s, w = bytes of an element of the parameters, the accumulation window, the master
// weights, the optimizer state and what is sent; k states; N = elements of all parameters;
// n = elements of this rank's padded shards of the trainable ones (stage 0: of whole ones):
//
//                   between steps                    at the peak of a window, beside that
//   parameters      stages 0-2: N p;  stage 3: the   -
//                   masters if they have the type
//                   and place (offload_*, on CUDA),
//                   else n p; n w where weights
//                   are sent in another type; frozen
//                   ones their shard's p
//   gradients       0                                stages 0, 1: what a later pass has, until it
//                                                    ends: N p;  stages 2, 3: n a, and n 4 of a
//                                                    later pass until it ends;  in the step: n a,
//                                                    and n m if m is another type
//   master_weights  n m                              -
//   optimizer_state n k s                            -
//   buckets         0                                stages 0, 1: the window, N a (padded);
//                                                    stages 2, 3: a group on its way, one that is
//                                                    announced, those being filled (bucket_size)
//   gathered        stage 3: the pages that stay     stages 1, 2: one all-gather of
//                   whole                            allgather_bucket_size, of what is not received
//                                                    in place;  stage 3: pages in use and on their
//                                                    way
//
// With "reduction": "exact" the window's a is 16 at stages 2 and 3, and so is what a later pass
// has; at stages 0 and 1 the buckets' is 16, or w without accumulation.
//
// Invariants: equal to memory/ledger.hpp to the byte, padding included, where is_exact() says so.
// Not exact are the pages of stage 3 that come and go: what is whole at one time depends on the
// model's operators. Parameters are contiguous here; one that is not is gathered beside its own
// memory, and copied. `most_bytes` holds for any order of arrival in which all ranks have the same
// one. Not in it: activations, the memory that collectives receive into, buffers, allocators.
// Units: bytes and elements. A rank's bytes are every rank's: shards are padded to one length.
// Errors: those of layout and of stage_row.
// Depends on: config, layout, stage, memory/ledger. No torch.
// Paper: Rajbhandari et al., arXiv 1910.02054, section 3.1 and figure 1.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/config/config.hpp"
#include "engine/layout/parameter_table.hpp"
#include "engine/memory/ledger.hpp"

namespace equigrad {

struct MemoryOptions {
  int world_size = 1;
  bool on_cuda = false;  // offloaded state is then somewhere else than the parameters
  // The parameters that every pass reaches, in the order in which their gradients arrive; nothing:
  // all trainable ones, those registered last first. A parameter arrives once a pass.
  std::optional<std::vector<std::size_t>> arrivals;
  // Parameters that come and go together at stage 3: those of a leaf module.
  std::vector<std::vector<std::size_t>> leaves = {};
};

struct HeldBytes {
  std::int64_t idle = 0;  // between steps
  std::int64_t peak = 0;  // since the engine was made; at least, where it is not exact
  std::int64_t most = 0;  // the peak at most, whatever arrives when
  bool is_exact = true;
};

struct MemoryForecast {
  std::array<HeldBytes, memory::kCategories> categories;

  const HeldBytes& of(memory::Category category) const {
    return categories[static_cast<std::size_t>(category)];
  }
  std::int64_t idle_bytes() const;
  std::int64_t most_bytes() const;  // categories do not all peak at one time
};

// At least one step of gradient_accumulation_steps passes is taken, or of two and more where the
// caller counts them (managed_gradient_accumulation).
MemoryForecast forecast(const layout::ParameterTable& table, const EngineConfig& config,
                        const MemoryOptions& options);

// Of the buckets and the window, on the way through the first pass of a window.
struct PassBytes {
  std::size_t parameter = 0;  // whose gradient has arrived
  std::int64_t after_bytes = 0;
  std::int64_t most_bytes = 0;  // while it arrives, and what is full leaves
};
std::vector<PassBytes> forecast_pass(const layout::ParameterTable& table,
                                     const EngineConfig& config, const MemoryOptions& options);

// Trainable parameters of these sizes, by registration; under autocast all of safe modules.
layout::ParameterTable table_of_sizes(const std::vector<std::int64_t>& numels,
                                      const EngineConfig& config);

// What an element costs in the limit of many, as in the paper's figure 1; and what does not grow
// with the model: of the sizes of buckets, and of stage3_max_live_parameters.
struct RateOfBytes {
  double idle = 0;
  double peak = 0;
  std::int64_t constant = 0;  // beside the peak; a larger tensor or operator adds to it
};
using MemoryRates = std::array<RateOfBytes, memory::kCategories>;
MemoryRates rates(const EngineConfig& config, const MemoryOptions& options);

}  // namespace equigrad
