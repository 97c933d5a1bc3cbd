// Split: how one tensor is cut along one dimension into equal parts, one for each rank of a tensor
// group, segment by segment, and put together again.
//
// A packed weight is several matrices one after the other along that dimension, such as gate and
// up, or query, key and value. Each segment is cut by itself; a rank's part has its piece of each,
// in the same order, so the part is packed like the whole.
//
//   segments 4 4, two ranks:   whole   g0 g1 g2 g3 | u0 u1 u2 u3
//                              rank 0  g0 g1 u0 u1       rank 1  g2 g3 u2 u3
//
// Invariants: the segments' lengths add up to the whole's size along the dimension. For every rank
// count that divides each segment, the runs of all ranks name every index of the whole once, and
// those of one rank every index of its part once, in the order of both.
// Shapes: whole `shape`; a part has the same but for shape[dimension] / size.
// Units: offsets and lengths count indices along the dimension.
// Errors: equigrad::Error for a split that does not fit its shape, a segment that the number of
// ranks does not divide, a rank outside. No cut is ever uneven.
// Depends on: engine/error.hpp.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equigrad::parallel {

struct Split {
  std::int64_t dimension = 0;
  std::vector<std::int64_t> segments;
  std::vector<std::int64_t> shape;  // of the whole
  bool operator==(const Split&) const = default;
};

// `length` indices from `whole` of the whole are those from `local` of a rank's part.
struct Run {
  std::int64_t whole = 0;
  std::int64_t local = 0;
  std::int64_t length = 0;
  bool operator==(const Run&) const = default;
};

// As errors show sizes: [2, 3].
std::string shape_text(const std::vector<std::int64_t>& sizes);

// One segment: the dimension is cut as it is.
Split unpacked(const std::vector<std::int64_t>& shape, std::int64_t dimension);

// Throws unless `split` can be cut into `size` equal parts; `name` is the tensor's, for the error.
void check_split(const Split& split, std::int64_t size, const std::string& name);

// The shape of every rank's part.
std::vector<std::int64_t> local_shape(const Split& split, std::int64_t size);

// Of one rank, in the order of the whole; neighbours are joined.
std::vector<Run> runs(const Split& split, std::int64_t rank, std::int64_t size);

// The same cut of the vector that goes with dimension `split.dimension`: a column's bias.
Split bias_split(const Split& split);

}  // namespace equigrad::parallel
