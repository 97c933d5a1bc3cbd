// KeptFailures: what a run keeps of the cases that went wrong, in a folder a case.
//
//   <folder>/<id>/rank<N>[.first|.inputs].safetensors     written by the ranks
//   <folder>/<id>/config.json                             what initialize() got, byte for byte
//
// Invariants: nothing is left of a case that passed. Once the tensors of a run take more than
// kMostTensorBytes, those of later cases are not kept any more; their configurations are.
// Units: bytes.   Errors: none: what cannot be written is not in the record.
// Depends on: reports/record.hpp, nlohmann-json, POSIX.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "reports/record.hpp"

namespace equigrad::conformance {

constexpr int64_t kMostTensorBytes = int64_t{256} << 20;

class KeptFailures {
 public:
  // An empty folder: nothing is kept. `scratch`: a folder of the run's own.
  KeptFailures(std::string folder, bool tensors, std::string scratch);

  // Adds to the request of a case what its ranks need to know.
  void ask(nlohmann::json& request, const std::string& id) const;
  // To be called once for every request that was asked, however it ended.
  void ended(const reports::Case& record);
  // Writes the configurations of the cases that went wrong, and adds them to their files.
  void give(std::vector<reports::Case>& cases) const;

 private:
  std::string scratch_of(const std::string& id) const { return scratch_ + "/config." + id; }

  std::string folder_;
  bool tensors_;
  std::string scratch_;
  int64_t tensor_bytes_ = 0;
  std::map<std::string, std::string> configs_;  // by id
};

}  // namespace equigrad::conformance
