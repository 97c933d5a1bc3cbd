// Cut: how a tensor that a tensor group shares is cut along one dimension into equal parts, segment
// by segment, and where an element of the whole lies in its part.
//
//   segments 4 4, two parts:   whole  g0 g1 g2 g3 | u0 u1 u2 u3
//                              part 0 g0 g1 u0 u1       part 1  g2 g3 u2 u3
//
// Invariants: segments add up to the size along the dimension, and `parts` divides each of them.
// Stretches that follow each other in the whole, or in a part, name every element of it once.
// Shapes: `shape` is the whole's; a part has the same but for shape[dimension] / parts.
// Units: segments count indices along the dimension, stretches flat elements.
// Errors: none; problem_of() says what is wrong.
// Depends on: nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace equigrad::checkpoint {

struct Cut {
  std::int64_t dimension = 0;
  std::vector<std::int64_t> segments;
  std::int64_t parts = 1;
  bool operator==(const Cut&) const = default;
};

// `numel` flat elements from `whole` of the whole are those from `local` of a part.
struct Stretch {
  std::int64_t part = 0;
  std::int64_t whole = 0;
  std::int64_t local = 0;
  std::int64_t numel = 0;
  bool operator==(const Stretch&) const = default;
};

// "expected X, got Y" where the cut does not fit the shape; empty: it does.
std::string problem_of(const Cut& cut, const std::vector<std::int64_t>& shape);

// From an element of the whole, or of a part, to where what follows lies elsewhere. Only of a cut
// that fits, and of an element that is there.
Stretch stretch_of_whole(const Cut& cut, const std::vector<std::int64_t>& shape,
                         std::int64_t whole);
Stretch stretch_of_part(const Cut& cut, const std::vector<std::int64_t>& shape, std::int64_t part,
                        std::int64_t local);

}  // namespace equigrad::checkpoint
