// Recipe: a case's settings, once as a DeepSpeed configuration for the engine and once as the
// reference's own recipe. The two are written separately on purpose: a key that the engine
// misreads must not be misread by the twin too.
//
// Invariants: equal seeds and cases give equal texts. Half of the tuples have buckets so small that
// a parameter fills one exactly and others are sent alone: in the default matrix some of every
// model at every stage, with momentum and without.
// Units: bucket sizes count elements; threshold is the gradient norm to clip at, 0: off.
// Errors: none of its own.
// Depends on: matrix.hpp, reference/trainer.hpp, engine/config/config.hpp.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "conformance/cases/matrix.hpp"
#include "engine/config/config.hpp"
#include "reference/trainer.hpp"

namespace equigrad::conformance {

constexpr int kSteps = 3;  // optimizer steps of a case

// A loss this large overflows every 16-bit gradient; one micro-batch of one rank has it, in two of
// three cases with a dynamic loss scale.
constexpr double kOverflowFactor = 0x1p100;
struct OverflowingBatch {
  int step = 0;
  int rank = 0;  // of the data ranks
  int micro_batch = 0;
  bool operator==(const OverflowingBatch&) const = default;
};
std::optional<OverflowingBatch> overflowing_batch(const CaseSpec& spec);

reference::OptimizerSpec optimizer_of(const CaseSpec& spec);
at::ScalarType dtype_of(const CaseSpec& spec);
at::ScalarType accumulate_dtype_of(const CaseSpec& spec);
// What the safe modules of autocast and the computation use; nothing without autocast.
std::optional<at::ScalarType> autocast_dtype_of(const CaseSpec& spec);
reference::SumOrder order_of(int stage);  // unless sums are exact
reference::SumOrder order_of(const CaseSpec& spec);

// The twin's recipe, of the ranks that ZeRO shards over.
reference::Recipe recipe_of(const CaseSpec& spec, uint64_t seed, double threshold,
                            reference::SumOrder order);
// The engine's configuration, as JSON text.
std::string config_text(const CaseSpec& spec, double threshold, const reference::Model& model);

// The same with other values for some keys: `knobs` is merged into it, as RFC 7396 says.
std::string with_knobs(const std::string& config_text, const nlohmann::json& knobs);

// The twin of whatever a user's own configuration asks for, as the engine's parser read it: a key
// that is misread there is misread here too, and nobody sees it.
reference::Recipe recipe_of(const EngineConfig& config, int world, uint64_t seed);

}  // namespace equigrad::conformance
