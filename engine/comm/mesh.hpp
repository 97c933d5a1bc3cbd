// Mesh: ranks in a grid of data x sequence x tensor, and the groups that its lines and planes are.
//
//   rank = (data * S + sequence) * T + tensor        of W = D * S * T ranks
//
//   world()      all W ranks
//   zero()       those of one place along tensor, D * S of them: ZeRO shards over them, and their
//                gradients are added
//   tensor()     those of one place along data and sequence, T of them: each has a part of a split
//                parameter, and all see the same data
//   sequence()   those of one place along data and tensor, S of them: each has a part of every
//                sequence, and all parameters
//
// Tensor ranks are neighbours, as in Megatron-LM (Narayanan et al., 2021, arXiv:2104.04473): they
// exchange most, so they belong on one host.
//
// Invariants: sizes are at least 1, their product is the number of ranks; groups are made in the
// same order on every rank. tensor() and sequence() are null where their size is 1. One
// communicator alone is a mesh of data only; none is the empty mesh, which is false.
// Errors: equigrad::Error for sizes that do not make up the ranks, and for a part without the rank.
// Depends on: comm/communicator.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.hpp"

namespace equigrad::comm {

struct MeshSizes {
  int data = 1;
  int sequence = 1;
  int tensor = 1;
  int world_size() const { return data * sequence * tensor; }
  bool operator==(const MeshSizes&) const = default;
};

// A rank's place along each axis.
struct MeshPlace {
  int data = 0;
  int sequence = 0;
  int tensor = 0;
  bool operator==(const MeshPlace&) const = default;
};

MeshPlace place_of(int rank, const MeshSizes& sizes);
// Data takes what sequence and tensor leave.
MeshSizes mesh_sizes(int world_size, int sequence, int tensor);

// Makes this rank's communicator of one group, under a name that no other group has.
using ConnectGroup = std::function<std::shared_ptr<Communicator>(const std::string& group, int rank,
                                                                 int group_size)>;

class Mesh {
 public:
  Mesh() = default;
  Mesh(std::nullptr_t) {}
  template <std::derived_from<Communicator> C>
  Mesh(std::shared_ptr<C> ranks) : Mesh(std::shared_ptr<Communicator>(std::move(ranks)), 0) {}

  explicit operator bool() const { return world_ != nullptr; }
  const MeshSizes& sizes() const { return sizes_; }
  const std::shared_ptr<Communicator>& world() const { return world_; }
  const std::shared_ptr<Communicator>& zero() const { return zero_; }
  const std::shared_ptr<Communicator>& tensor() const { return tensor_; }
  const std::shared_ptr<Communicator>& sequence() const { return sequence_; }

 private:
  friend Mesh make_mesh(int rank, const MeshSizes& sizes, const ConnectGroup& connect);
  Mesh(std::shared_ptr<Communicator> ranks, int);

  MeshSizes sizes_;
  std::shared_ptr<Communicator> world_, zero_, tensor_, sequence_;
};

Mesh make_mesh(int rank, const MeshSizes& sizes, const ConnectGroup& connect);

// As connect() (communicator.hpp), with all groups of the mesh.
Mesh connect_mesh(const LaunchEnvironment& launch, c10::DeviceType device,
                  std::chrono::milliseconds timeout, const MeshSizes& sizes);
// Of a launch whose ranks make several meshes: the one of ranks [first, first + W), of which this
// is one. Every rank of the launch calls it, each for its mesh.
Mesh connect_part(const LaunchEnvironment& launch, c10::DeviceType device,
                  std::chrono::milliseconds timeout, int first, const MeshSizes& sizes);
// As connect_gloo().
Mesh connect_gloo_mesh(int rank, const MeshSizes& sizes, const std::string& rendezvous,
                       std::chrono::milliseconds timeout);

}  // namespace equigrad::comm
