// Row plan: who sends which rows of a batch to whom, between two groups of ranks.
//
//   of 6 rows, 3 data ranks to 2:   rank 0 [0, 2) -> rank 3
//                                   rank 1 [2, 3) -> rank 3
//                                   rank 1 [3, 4) -> rank 4
//                                   rank 2 [4, 6) -> rank 4
//
// A data place of a side is a row of its ranks: neighbours which hold the same rows, as the tensor-
// parallel ranks of comm/mesh.hpp do. What they hold is sent by one of them, the first, and all of
// them receive.
//
// Invariants: a plan is a function of its arguments. Every row goes from one speaker to every rank
//   of one data place, once; the rows of a rank are neighbours, and those of two places differ in
//   number by one at most.
// Units: rows of the whole batch; ranks of the world that spans both sides.
// Errors: equigrad::Error for sides without ranks, sides that share a rank, and fewer rows than
//   data ranks.
// Depends on: engine/error.hpp. No torch.
#pragma once

#include <cstdint>
#include <vector>

namespace equigrad::parallel {

// Ranks [first, first + data * replicas) of the world; rank first + place * replicas + r has the
// rows of `place`.
struct Side {
  int first = 0;
  int data = 1;
  int replicas = 1;

  int end() const { return first + data * replicas; }
  bool has(int rank) const { return first <= rank && rank < end(); }
  int place_of(int rank) const { return (rank - first) / replicas; }
  int speaker_of(int place) const { return first + place * replicas; }
  bool operator==(const Side&) const = default;
};

struct Rows {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t count() const { return end - begin; }
  bool operator==(const Rows&) const = default;
};

struct Transfer {
  int from = 0;
  int to = 0;
  Rows rows;
  bool operator==(const Transfer&) const = default;
};

// The part of `rows` that belongs to one of `places`.
Rows rows_of(int64_t rows, int place, int places);

// By receiver, and then by row.
std::vector<Transfer> plan_rows(int64_t rows, const Side& from, const Side& to);

}  // namespace equigrad::parallel
