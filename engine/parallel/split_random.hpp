// Split random: random numbers where ranks have parts of one thing, as dropout draws them.
//
//   whole on every rank   embeddings, what comes after a row-parallel layer: the same numbers on
//                         all ranks of a tensor group, which have one seed
//   parts                 between a column-parallel layer and a row-parallel one, and all of a
//                         sequence that is split: other numbers on every rank
//
//   {
//     const parallel::SplitRandom random(mesh.tensor());   // until the end of the block
//     part = at::dropout(up(whole), 0.1, true);
//   }
//   whole = at::dropout(down(part), 0.1, true);
//
// A region of parts is made of torch's default generator. Entering it draws one number k, keeps the
// generator's state behind k, and seeds the generator with split_seed(k, rank); leaving it puts
// the kept state back. What a region draws is a function of the generator's state where it was
// entered and of the rank: whoever restores that state (a checkpoint of the engine's, or
// torch.utils.checkpoint before it computes again) gets the same numbers, and nothing else is kept.
//
// Invariants: within a region of the same kind entering changes nothing: it is one region. A region
// in which nothing was drawn leaves no trace: not even k was drawn. Whether the generator is in a
// region is told by its seed alone, also after somebody has put such a state back. Of one k all
// ranks have other seeds, and other low halves of them, which are all that the CPU's generator
// takes. A tensor region may be within a sequence region; who leaves the outer one leaves both.
// With a null group, and on a device that draws no numbers, nothing happens.
// Units: k and seeds are 64 bits; a CUDA generator is not asked for k, which would wait for the
// device: k is mixed of its seed and offset, and counts as one step of the offset.
// Errors: equigrad::Error on leaving a region that was not the last one entered: a part of a region
// is computed again. What check_same says. Not for two threads at a time, as the generator itself.
// Depends on: regions, comm, checkpoint/digest.
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

#include "engine/parallel/regions.hpp"

namespace equigrad::parallel {

enum class RandomParts { Tensor, Sequence };

// The seed of a region: bits 63 to 40 name its kind, 39 to 32 are those of mix(k), and the low
// half is a bijection of (low half of mix(k) + rank); mix is the finalizer of splitmix64 (Steele,
// Lea, Flood, 2014), the bijection that of MurmurHash3.
uint64_t split_seed(uint64_t drawn, int64_t rank, RandomParts of);

// Whether it was this call that entered.
bool enter_split_random(const Group& group, c10::Device device, RandomParts of);
// Of every device; whether there was a region to leave.
bool leave_split_random(RandomParts of);
// The same where an exception may be under way: a region that was not the last one entered stays.
bool abandon_split_random(RandomParts of) noexcept;
// Whether anything was drawn since the last region was left.
bool has_drawn_since_split_random(RandomParts of);

class SplitRandom {
 public:
  explicit SplitRandom(const Group& group, RandomParts of = RandomParts::Tensor,
                       c10::Device device = c10::kCPU)
      : of_(of), has_entered_(enter_split_random(group, device, of)) {}
  ~SplitRandom() {
    if (has_entered_) abandon_split_random(of_);
  }
  SplitRandom(const SplitRandom&) = delete;
  SplitRandom& operator=(const SplitRandom&) = delete;

 private:
  RandomParts of_;
  bool has_entered_;
};

// What a forward pass draws for what every rank of a tensor group has whole, from here on.
class RandomWatch {
 public:
  // The generators of the CPU and of `device`.
  explicit RandomWatch(c10::Device device);
  // Whether anything was drawn but by tensor regions.
  bool has_drawn() const;
  // Whether any rank has drawn; if so and not all had the same generators in the beginning, an
  // error on all ranks that names those that differ from the first. Collective.
  bool check_same(const Group& group) const;

 private:
  struct Start {
    at::Generator generator;  // a copy
    int64_t regions = 0;      // that had drawn
  };
  std::vector<Start> starts_;
};

}  // namespace equigrad::parallel
