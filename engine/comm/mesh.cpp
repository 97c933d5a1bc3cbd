#include "engine/comm/mesh.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "engine/error.hpp"

namespace equigrad::comm {

MeshPlace place_of(int rank, const MeshSizes& sizes) {
  return {.data = rank / (sizes.tensor * sizes.sequence),
          .sequence = rank / sizes.tensor % sizes.sequence,
          .tensor = rank % sizes.tensor};
}

MeshSizes mesh_sizes(int world_size, int sequence, int tensor) {
  const bool divides = sequence >= 1 && tensor >= 1 && world_size % (sequence * tensor) == 0;
  if (divides)
    return {.data = world_size / (sequence * tensor), .sequence = sequence, .tensor = tensor};
  throw Error(
      "comm.mesh",
      fmt::format("expected ranks in a grid of data x sequence {} x tensor {}, got {} ranks, "
                  "which is no multiple of {}. Start a multiple of it, or configure other "
                  "sizes (\"tensor_parallel\": {{\"autotp_size\"}}, "
                  "\"sequence_parallel_size\").",
                  sequence, tensor, world_size, sequence * tensor));
}

Mesh::Mesh(std::shared_ptr<Communicator> ranks, int) {
  if (!ranks) return;
  sizes_.data = ranks->world_size();
  world_ = zero_ = std::move(ranks);
}

namespace {

// The ranks of a group, by their numbers among all: from `first`, every `stride`-th.
void call_ranks(Communicator& group, int first, int stride) {
  std::vector<int> names;
  for (int rank = 0; rank < group.world_size(); ++rank) names.push_back(first + rank * stride);
  group.call_ranks(std::move(names));
}

}  // namespace

Mesh make_mesh(int rank, const MeshSizes& sizes, const ConnectGroup& connect) {
  const auto place = place_of(rank, sizes);
  const int world_size = sizes.world_size();
  EQUIGRAD_CHECK(0 <= rank && rank < world_size, "comm.mesh", "a rank has a place in its mesh");
  Mesh mesh;
  mesh.sizes_ = sizes;
  mesh.world_ = connect("world", rank, world_size);
  mesh.zero_ = sizes.tensor == 1 ? mesh.world_
                                 : connect(fmt::format("zero/{}", place.tensor),
                                           rank / sizes.tensor, sizes.data * sizes.sequence);
  if (sizes.tensor > 1)
    mesh.tensor_ =
        sizes.tensor == world_size
            ? mesh.world_
            : connect(fmt::format("tensor/{}", rank / sizes.tensor), place.tensor, sizes.tensor);
  if (sizes.sequence > 1)
    mesh.sequence_ = sizes.sequence == world_size
                         ? mesh.world_
                         : connect(fmt::format("sequence/{}/{}", place.data, place.tensor),
                                   place.sequence, sizes.sequence);
  if (mesh.zero_ != mesh.world_) call_ranks(*mesh.zero_, place.tensor, sizes.tensor);
  if (mesh.tensor_ && mesh.tensor_ != mesh.world_)
    call_ranks(*mesh.tensor_, rank - place.tensor, 1);
  if (mesh.sequence_ && mesh.sequence_ != mesh.world_)
    call_ranks(*mesh.sequence_, rank - place.sequence * sizes.tensor, sizes.tensor);
  return mesh;
}

}  // namespace equigrad::comm
