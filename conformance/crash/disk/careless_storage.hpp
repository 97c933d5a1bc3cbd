// CarelessStorage: a saver as it should not be: steps of the protocol are left out, come too early,
// or in another way. Each must be found by the points that are tried, or they would not find it in
// the engine either.
//
// Invariants: without a loss of power nobody sees a difference, but of parts: who loads them does.
// Units: none.
// Errors: equigrad::Error for a name that is none.
// Depends on: forwarding_storage, operation; engine/checkpoint/manifest, in the source.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "conformance/crash/disk/forwarding_storage.hpp"
#include "conformance/crash/disk/operation.hpp"

namespace equigrad::conformance::crash {

struct Carelessness {
  std::string name;
  std::string what;
  bool needs_error = false;  // shows only where a sync fails
  bool of_reader = false;    // of who loads: nothing is done to the storage
  bool of_parts = false;  // shows only where a tensor group saves parts, to engines that load them
};

const std::vector<Carelessness>& carelessnesses();
const Carelessness& carelessness(const std::string& name);

// `folder`: of the tags, and of latest.
std::shared_ptr<Storage> careless(const std::string& name, std::shared_ptr<Storage> storage,
                                  const std::string& folder);
// Takes from the record what the careless one did not do, where no storage can leave it out.
std::vector<Operation> as_done(const std::string& name, std::vector<Operation> operations);

}  // namespace equigrad::conformance::crash
