// HarmlessEvents: what happens before a pass of a generated case, or beside it, and must change
// nothing (HarmlessEvent in generator/workload.hpp).
//
// Invariants: events depend on the execution alone. They are the same on every rank, but for a pass
// that throws on one data rank: where ranks tell each other of a pass, the others run it too and
// get an error.
// Shapes: those of the workload.   Units: steps and micro-batches count from 0.
// Errors: whatever the engine throws; HarmlessEventFailed where an event did not do what it should;
// Error for an event of another version.
// Depends on: generated/model.hpp, other_engine.hpp.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/generated/model.hpp"
#include "conformance/generated/other_engine.hpp"

namespace equigrad::conformance {

// A forward pass of the case's model, as its engine wants it.
using GeneratedForward =
    std::function<at::Tensor(Engine& engine, const Pass& pass, const GeneratedModel::Watch& watch)>;

class HarmlessEvents {
 public:
  HarmlessEvents(const GeneratedCase& one, std::vector<std::string> names, bool is_scaled,
                 GeneratedForward forward);

  void begin(std::shared_ptr<comm::Communicator> group) { group_ = std::move(group); }
  // Those of this pass.
  std::vector<std::string> of(const Pass& pass) const;
  void happen(Engine& engine, const std::string& what, const Pass& pass);
  // What another engine adds to the loss of this pass; undefined: nothing.
  at::Tensor beside(const Pass& pass);
  void taken(int uses) { other().take(uses); }
  void end();

 private:
  OtherEngine& other();
  void cancel(Engine& engine, const Pass& pass);
  void throw_midway(Engine& engine, const Pass& pass, bool is_alone);
  void ask(Engine& engine, const Pass& pass);
  void read(Engine& engine);
  void crowd();

  const GeneratedCase one_;
  const std::vector<std::string> names_;  // a parameter of each group
  const bool is_scaled_;
  GeneratedForward forward_;
  std::shared_ptr<comm::Communicator> group_;
  std::optional<OtherEngine> other_;
  std::vector<std::unique_ptr<OtherEngine>> crowd_;
};

}  // namespace equigrad::conformance
