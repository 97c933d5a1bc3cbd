// Levels: how W ranks on hosts of equal size add up: within a host first, then between hosts.
//
//   12 ranks, 4 a host        digit of a rank
//   level 0   4 ranks          r % 4               of one host
//   level 1   3 ranks          (r / 4) % 3         one of each host, those of one place on it
//
// At each level the ranks that differ in that digit alone exchange what they have, and each keeps
// the sums of the slices that it leads to: after the last one rank r has slice r. W - 1 messages a
// rank become 3 + 2; between hosts go sums of a host and not its ranks' contributions, a quarter of
// the bytes. Hosts that are a power of two are one level for each factor 2.
//
// Invariants: every level but the last has a power of two of ranks that follow each other, so the
// sums of its ranks, added in the tree of kernels/tree_sum.hpp and kept in fp32, are whole subtrees
// of the tree over all W: the bits are those of one level, whatever the hosts. Where a host's ranks
// are no power of two, or ranks do not fill hosts one after the other, there is one level of all.
// Units: ranks.
// Errors: none.
// Depends on: the C++ standard library only.
#pragma once

#include <vector>

namespace equigrad::comm {

struct Level {
  int ranks;   // that exchange
  int stride;  // between two of them
  int digit_of(int rank) const { return rank / stride % ranks; }
  // Who has this digit, and `rank`'s others.
  int with_digit(int rank, int digit) const { return rank + (digit - digit_of(rank)) * stride; }
  bool operator==(const Level&) const = default;
};

// `local_ranks`: of a host, as Communicator has them.
std::vector<Level> levels_of(int world_size, int local_ranks);

}  // namespace equigrad::comm
