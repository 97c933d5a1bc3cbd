// Parts: how the layers of a program's model are computed on a mesh: by this rank alone, with the
// engine's regions, or all ranks' parts on one device, in plain torch.
//
//   column    of whole features, some of the next layer's, on each tensor rank
//   row       of these, whole features: the sum of the ranks' products, and the bias
//   sine      of some features, of the whole sequence: the ranks of a sequence trade rows for
//             features, and back
//   add_up    of a sequence's parts
//
// Invariants: of one rank it is the ordinary computation. Of a sequence's parts only one's own use
// of a parameter gives gradients; those of others are another rank's.
// Shapes: rows [2 / S, features]; Pieces are by tensor rank, or by part of the sequence, as the
// function says: of the engine's there is one, this rank's.
// Errors: those of the engine's regions.
// Depends on: script.hpp, engine/comm/mesh.hpp; conformance/cases/tensor_parts.hpp,
// engine/parallel/layers.hpp (source only).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/mesh.hpp"

namespace equigrad::property_tests::programs {

using Pieces = std::vector<at::Tensor>;

class Parts {
 public:
  virtual ~Parts() = default;
  // By part of the sequence; and which of them is this rank's.
  virtual Pieces rows(const at::Tensor& whole) const = 0;
  virtual std::size_t own() const = 0;
  virtual int64_t sequence() const = 0;  // ranks
  // Of a parameter, what a part of the sequence uses.
  virtual at::Tensor used(const at::Tensor& parameter, std::size_t part) const = 0;
  // By tensor rank.
  virtual Pieces column(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                        std::size_t part) const = 0;
  virtual at::Tensor row(const Pieces& x, const at::Tensor& weight, const at::Tensor& bias,
                         std::size_t part) const = 0;
  // By part of the sequence, then by tensor rank.
  virtual std::vector<Pieces> sine(const std::vector<Pieces>& x) const = 0;
  virtual at::Tensor add_up(const Pieces& sums) const = 0;
  // A column's weight, whole; and the sum of its squares.
  virtual at::Tensor whole_of(const at::Tensor& weight) const = 0;
  virtual at::Tensor squares_of(const at::Tensor& weight) const = 0;
};

// Of this rank. An empty mesh is one rank.
std::unique_ptr<Parts> parts_of_rank(const comm::Mesh& mesh);
// Of all ranks; `own` is the part of the sequence whose gradients count.
std::unique_ptr<Parts> parts_of_all(int64_t tensor, int64_t sequence, std::size_t own);

}  // namespace equigrad::property_tests::programs
