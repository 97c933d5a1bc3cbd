// PlantedGround: cases of one model, into which any fault of the catalogue can be planted: what a
// check of this model can see.
//
// Invariants: every case has its twin before the first fault is planted. The calling process is
// forked: it has one thread, and has run nothing of torch.
// Units: none.   Errors: equigrad::Error where a twin cannot be made, and on an interrupt.
// Depends on: check_case.hpp, campaigns/process_slots.hpp.
#pragma once

#include <string>
#include <vector>

#include "conformance/campaigns/process_slots.hpp"
#include "conformance/check/check_case.hpp"

namespace equigrad::conformance {

class PlantedGround {
 public:
  PlantedGround(const MakeSubject& make, std::vector<CaseSpec> specs);

  struct Seen {
    bool acted = false, caught = false, ended = false;  // ended: without an answer
    std::string message;                                // of the first case that caught it
  };
  // Until a case catches it. Empty: no fault.
  Seen plant(const std::string& fault);

 private:
  std::string path_of(const CaseSpec& spec) const;
  Outcomes ask(int world, const nlohmann::json& request, double timeout_s);

  std::vector<CaseSpec> specs_;
  ProcessSlots slots_;
};

// 2 ranks with 3 micro-batches, stage by stage.
std::vector<CaseSpec> every_stage(const std::vector<Precision>& precisions);

}  // namespace equigrad::conformance
