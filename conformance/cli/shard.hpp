// Shard: a part of the selected cases, for one machine of several.
//
//   equigrad run --shard 2/5    the second of five parts; equigrad report merge
//   puts them together
//
// Invariants: the parts of a selection are disjoint and together all of it;
// they depend on the ids of the selection alone, not on their order or on a
// machine. Cases that share a twin stay together as long as no part of the work
// is larger than an eighth of a shard; the work of two shards differs by no
// more than the largest of those parts. Units: cost: ranks, times four for the
// GPT, which takes so much longer than the other models. Errors: ConfigError
// for a selection of fewer cases than shards. Depends on:
// engine/config/config.hpp (source only). No torch.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

namespace equigrad::conformance::cli {

struct Shard {
  int index = 1, count = 1;  // the index-th, from 1
};
// Empty, or what is wrong with a shard's text.
std::string shard_problem(const std::string& text);
Shard shard_of(const std::string& text);

struct ShardCase {
  std::string id;
  std::string together;  // of cases that share a twin
  int64_t cost = 1;
};
std::set<std::string> ids_of_shard(std::vector<ShardCase> cases, const Shard& shard);

}  // namespace equigrad::conformance::cli
