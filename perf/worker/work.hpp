// Work: one rank's training, the engine's or plain LibTorch's, a step at a time.
//
//   engine     equigrad::initialize with the request's configuration, as a user calls it
//   libtorch   forward, backward, ATen's fused AdamW; no communication: what a step costs alone
//
// Models: "gpt" is the reference's, or where ranks share it shared_gpt.hpp; "dots" has many small
// parameters, loss = (sum of p . x)^2.
// Invariants: weights and batches come from the request's files; step i takes the batches that
//   follow those of step i - 1, round and round.
// Shapes: batches [count, batch, context + 1] int64 for gpt, [count, width] float for dots.
// Errors: std::runtime_error, equigrad::Error.
// Depends on: engine.hpp, comm/mesh.hpp, parameter/operator_observer, reference/models/model.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/comm/mesh.hpp"

namespace equigrad::perf {

class Work {
 public:
  // What begins: "forward", "backward", "step"; and without an engine, when an operator is about
  // to read parameters, "use", and when the gradient of one is there, "gradient".
  using Enter =
      std::function<void(const std::string& what, const std::vector<std::size_t>& parameters)>;

  virtual ~Work() = default;
  // Nothing: nobody wants to know.
  virtual void step(const Enter& enter) = 0;
  void step() { step(nullptr); }
  // One step too; what it gives is whole and averaged. Collective.
  virtual std::map<std::string, at::Tensor> step_with_gradients() = 0;
  // {"held_bytes", "held_peak_bytes", "held": by category, "gathering": engine_types.hpp's
  // GatherTraffic} of its own books; null without any.
  virtual nlohmann::json ledger() const { return nullptr; }
  // Bytes by memory/ledger.hpp's categories, now.
  virtual nlohmann::json held() const = 0;
};

// Ranks that share a model, or a sequence, take the same batches.
std::unique_ptr<Work> make_work(const nlohmann::json& request, const comm::Mesh& ranks);

}  // namespace equigrad::perf
