// Gathering: engine/api/gathered_parameters.hpp on the engine's own stations.
//
// Invariants: opening and closing meet the other ranks' (agreement/coordinator.hpp); a parameter is
// open once at a time. What is compared is a digest of the bytes, so writes through pointers count
// too. Of a parameter that a tensor group splits the model's tensor has the whole's data and shape
// while it is open; what was written is cut again at the end. There all ranks of the mesh meet.
// Shapes: those of the parameters.
// Errors: those of engine/api/gathered_parameters.hpp.
// Depends on: tensor_access.hpp's Stations, gathered_parameters.hpp, comm/mesh.hpp,
// parallel/regions.hpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/gathered_parameters.hpp"
#include "engine/comm/mesh.hpp"
#include "engine/inspect/tensor_access.hpp"
#include "engine/parallel/split.hpp"

namespace equigrad {

class Gathering {
 public:
  // By index of the table; `mesh` has the tensor group that splits some.
  Gathering(Stations& stations, const std::vector<at::Tensor>& tensors,
            const std::vector<std::optional<parallel::Split>>& splits, const comm::Mesh& mesh);

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
    at::Tensor part;         // this rank's data, of a parameter that is split
    int64_t before, digest;  // of the bytes of the rank's own tensor, and of the whole
  };
  struct Ended {
    bool is_wrong;            // somebody wrote who may not
    std::vector<bool> marks;  // written, on any rank
  };
  comm::Communicator& ranks() const;  // who opens and closes together
  std::size_t index_of(const at::Tensor& tensor) const;
  std::vector<std::size_t> checked(const std::vector<at::Tensor>& parameters,
                                   std::optional<int> modifier_rank) const;
  void meet_to_open(const std::vector<std::size_t>& parameters, std::optional<int> modifier_rank);
  void open_one(std::size_t parameter, std::vector<Opened>& opened);
  Ended meet_to_close(const std::vector<bool>& written, bool is_wrong);
  Ended hear_the_mesh(const std::vector<bool>& written, int64_t what);
  void close(const std::vector<Opened>& opened, std::optional<int> modifier_rank);
  void put_parts_back(const std::vector<Opened>& opened);
  void take_parts(const Opened& one);
  void close_by_exception(const std::vector<Opened>& opened) noexcept;
  void unpin(const std::vector<Opened>& opened, const std::vector<bool>& written);
  void take_over(std::size_t parameter);
  int64_t digest_of(std::size_t parameter) const;

  Stations& at_;
  const std::vector<at::Tensor>& tensors_;
  const std::vector<std::optional<parallel::Split>>& splits_;
  comm::Mesh mesh_;
  std::exception_ptr failure_;
  std::shared_ptr<int> open_;  // how many; scopes that outlive the engine see that it is gone
};

}  // namespace equigrad
