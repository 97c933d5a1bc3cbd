// RestLedger: what the engine's ledger says that this rank holds, beside the forecast: when the
// engine is new and after every step at a boundary all of it, between micro-batches all but the
// gradients that wait.
//
// At stage 3 no page is whole between passes but those that always are, however far the reuse
// distance reaches.
//
// Invariants: equal to the byte, in every category; but for the pages of stage 3 where a parameter
// is not contiguous or has a leaf module, of which there is no forecast.
// Units: bytes.
// Errors: those of memory/forecast.hpp; a difference is a finding in the exact lane, of the kind
// "ledger".
// Depends on: case_facts.hpp, lanes.hpp, placed_failures.hpp, engine/engine.hpp,
// engine/memory/forecast.hpp.
#pragma once

#include <vector>

#include "conformance/on_rank/case_facts.hpp"
#include "conformance/on_rank/lanes.hpp"
#include "conformance/on_rank/placed_failures.hpp"
#include "engine/engine.hpp"
#include "engine/memory/forecast.hpp"

namespace equigrad::conformance {

class RestLedger {
 public:
  // `groups` as the engine's table has them.
  RestLedger(const CaseFacts& facts, const std::vector<NamedTensors>& groups,
             const std::unique_ptr<Engine>& engine, Lanes& lanes);

  void when_new();
  // After a call of step().
  void after_step(int step, int micro_batch);

 private:
  void check(const std::string& where, bool is_rest);

  const CaseFacts& facts_;
  const std::unique_ptr<Engine>& engine_;  // which may be made anew
  Lanes& lanes_;
  bool knows_gathered_;  // what stage 3 keeps whole is forecast
  MemoryForecast forecast_;
};

}  // namespace equigrad::conformance
