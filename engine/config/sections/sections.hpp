// Sections: the parts of the table, in the order in which they are read, checked and printed. Each
// reads and checks its own keys, whole.
//
// Errors: none here; problems go to the reader and to the checks.
// Depends on: engine/config/schema.hpp. For the sources of the configuration only.
#pragma once

#include "engine/config/schema.hpp"

namespace equigrad {

Section batch_section();
Section optimizer_section();
Section zero_section();
// After the stage is known.
Section offload_section();
// Also of `reduction`, which the types depend on.
Section averaging_section();
Section amp_section();
// After all that chooses types.
Section precision_section();
// After the optimizer is known.
Section scheduler_section();
// But for its sizes, which the batch reads before all others.
Section parallel_section();
Section features_section();

// Reads the sizes of groups, once. A world that they do not divide is a problem of theirs.
void read_group_sizes(Reading& reading);
bool divides_world(const EngineConfig& config, std::int64_t world_size);

// The static loss scale that is written at `path`; `otherwise` ends the problem of a wrong one.
LossScaleConfig static_scale(double value, const std::string& path, const char* otherwise,
                             ConfigReader& reader);

// The loss scale of torch.amp.GradScaler as it is by default.
LossScaleConfig grad_scaler();

}  // namespace equigrad
