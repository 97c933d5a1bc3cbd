// RankModel: the model that a case trains on one rank, and its passes in one of the call styles,
// every call of the engine under a CallerWatch.
//
// Invariants: every rank's model is made alike; what a rank takes over from another one is
// unsettled before the engine is made.
// Shapes: a loss is [1], fp32.   Units: none.
// Errors: whatever the engine or the model throw; RefusalMissing as on_rank/backward.hpp has it.
// Depends on: cases/case_model.hpp, on_rank/caller_state.hpp, on_rank/placed_failures.hpp,
// engine/engine.hpp.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "conformance/cases/case_model.hpp"
#include "conformance/on_rank/caller_state.hpp"
#include "conformance/on_rank/placed_failures.hpp"
#include "engine/engine.hpp"

namespace equigrad::conformance {

class RankModel {
 public:
  virtual ~RankModel() = default;
  // Called once, before anything is made of the parameters: a model that is split becomes this
  // rank's part.
  virtual void join(const comm::Mesh&) {}
  // The parameters as the engine's table has them, group by group.
  virtual std::vector<NamedTensors> groups() = 0;
  virtual std::unique_ptr<Engine> make_engine(const std::string& config, comm::Mesh ranks) = 0;
  // A forward and a backward pass; gives what Forward::loss() says.
  virtual at::Tensor run_pass(Engine& engine, const Pass& pass, CallerWatch& caller) = 0;
  // Copies of the buffers of this rank.
  virtual reference::TensorMap buffers();
  // The engine has gone, and another will be made: other weights than any so far.
  virtual void renew() {}
  // What it made beside the engine goes.
  virtual void end() {}
  // The engine has gone; what is wrong then is an exception.
  virtual void without_engine() {}
  // Other weights than those that this rank must take over.
  void unsettle(const std::function<bool(const std::string& name)>& is_taken_over);
};

// A model of the zoo on its own data, which must outlive it.
std::unique_ptr<RankModel> zoo_rank_model(const CaseSpec& spec, uint64_t seed,
                                          const reference::Data& data);

}  // namespace equigrad::conformance
