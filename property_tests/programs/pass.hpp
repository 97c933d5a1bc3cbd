// Pass: one backward pass in one of the four styles, the engine's or plain torch's.
//
// Invariants: a player that has no engine makes the same torch calls in the same order.
// Shapes: losses are scalars.   Units: styles 0 engine.backward, 1 scale, 2 loss.backward, 3
// output.backward(gradient); in fp16 the last two are of scaled tensors.
// Errors: what the backward throws.
// Depends on: network.hpp, engine/engine.hpp.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/engine.hpp"
#include "property_tests/programs/network.hpp"

namespace equigrad::property_tests::programs {

using Roots = std::vector<Kept>;

struct PassOptions {
  int style = 0;
  bool retain = false, scale_wrt_gas = true;
  bool infinite = false;
  std::size_t engine = 0;  // whose backward or scale is called
  bool fp16 = false;       // every pass is scaled
  double scale = 1;        // by this much where there is no engine
};

PassOptions pass_options(const json& call, const json& setting, int rank);

// What engine.backward returns; of plain torch, the loss itself.
at::Tensor differentiate(const Roots& roots, const PassOptions& options, Engine* engine);

}  // namespace equigrad::property_tests::programs
