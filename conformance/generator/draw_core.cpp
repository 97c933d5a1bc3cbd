// The ranks of a mesh, and the network that they share.
#include <algorithm>
#include <string>
#include <vector>

#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

struct Ranks {
  int tensor, sequence, data;
};

// Of every two or more that make up 4 ranks or fewer; up to 8 now and then.
Ranks any_ranks(Dice& dice) {
  const bool is_many = dice.one_in(40);
  const int most = is_many ? kGeneratedRanks : 4;
  std::vector<Ranks> all;
  for (const int tensor : {1, 2, 4})
    for (const int sequence : {1, 2, 4})
      for (int data = 1; data <= 4; ++data) {
        const int world = tensor * sequence * data;
        if (tensor * sequence > 1 && world <= most && (world > 4 || !is_many))
          all.push_back({tensor, sequence, data});
      }
  return dice.pick(all);
}

// Heads of which each tensor rank has as many, and of its own every rank of the sequence.
void draw_heads(Dice& dice, WorkloadCore& core) {
  const int64_t ranks = core.sequence;
  std::vector<int64_t> possible;
  for (const int64_t keys : {1, 2, 3, 4, 8})
    if (keys % ranks == 0 || ranks % keys == 0) possible.push_back(keys);
  const int64_t keys = dice.pick(possible);  // of a tensor rank
  const int64_t least = keys >= ranks ? 1 : ranks / keys;
  core.key_heads = core.tensor * keys;
  core.heads = core.key_heads * least * dice.pick<int64_t>({1, 1, 2, 3});
  core.width = dice.between(1, 6);
}

}  // namespace

void draw_core(Dice& dice, Workload& workload) {
  const auto ranks = any_ranks(dice);
  workload.world = ranks.tensor * ranks.sequence * ranks.data;
  auto& core = workload.core.emplace();
  core.tensor = ranks.tensor;
  core.sequence = ranks.sequence;
  draw_heads(dice, core);
  core.batch = dice.between(1, 3);
  core.vocabulary = core.tensor * dice.between(2, 12);
  core.context = std::max<int64_t>(2, core.sequence * dice.between(1, 6));
  core.features = dice.between(2, 16);
  core.hidden = core.tensor * dice.between(1, 8);
  core.layers = dice.pick<int64_t>({1, 1, 2, 3});
  core.is_tied = dice.coin();
  core.has_qkv_bias = dice.coin();
  core.has_padding = dice.one_in(3);
  core.has_spare = dice.one_in(3);
  core.loss = dice.pick<std::string>({"split", "split", "whole"});
  core.labels = dice.pick<std::string>({"all", "some", "late"});
  if (dice.one_in(3))
    core.frozen = dice.pick<std::string>({"position", "norm", "qkv", "token", "block0"});
}

}  // namespace equigrad::conformance
