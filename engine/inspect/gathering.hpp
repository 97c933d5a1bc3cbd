// Gathering: engine/api/gathered_parameters.hpp on the engine's own stations.
//
// Invariants: opening and closing meet the other ranks' (agreement/coordinator.hpp); a parameter is
// open once at a time. What is compared is a digest of the bytes, so writes through pointers count
// too.
// Shapes: those of the parameters.
// Errors: those of engine/api/gathered_parameters.hpp.
// Depends on: tensor_access.hpp's Stations, gathered_parameters.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/gathered_parameters.hpp"
#include "engine/inspect/tensor_access.hpp"

namespace equigrad {

class Gathering {
 public:
  // `tensors` by index of the table.
  Gathering(Stations& stations, const std::vector<at::Tensor>& tensors);

  GatheredParameters open(const std::vector<at::Tensor>& parameters,
                          std::optional<int> modifier_rank);
  // An error in a call that must not come while any is open.
  void check_closed(const std::string& where) const;
  // Throws what a destructor could not.
  void rethrow_failure();

 private:
  class Scope;
  struct Opened {
    std::size_t parameter;
    int64_t digest;  // of its bytes
  };
  std::size_t index_of(const at::Tensor& tensor) const;
  std::vector<std::size_t> checked(const std::vector<at::Tensor>& parameters,
                                   std::optional<int> modifier_rank) const;
  void meet_to_open(const std::vector<std::size_t>& parameters, std::optional<int> modifier_rank);
  void close(const std::vector<Opened>& opened, std::optional<int> modifier_rank);
  void close_by_exception(const std::vector<Opened>& opened) noexcept;
  void unpin(const std::vector<Opened>& opened, const std::vector<bool>& written);
  void take_over(std::size_t parameter);
  int64_t digest_of(std::size_t parameter) const;

  Stations& at_;
  const std::vector<at::Tensor>& tensors_;
  std::exception_ptr failure_;
  std::shared_ptr<int> open_;  // how many; scopes that outlive the engine see that it is gone
};

}  // namespace equigrad
