// Fingerprint: relation 33. Random words of 64 bits are sent as gradients through the engine, and
// arrive as their sum mod 2^64.
//
// A word is cut into four slices of 16 bits, whole numbers that fp32 adds exactly in any order; a
// window carries one slice of every word. What arrives is put together again. A word that is lost,
// doubled or moved is a random word too much or too little: the chance that the sum is right all
// the same is 2^-64, or 2^-63 for two of them.
//
// Invariants: every word is owned by one rank; sums only, no average. Shapes: those of
// ProbeNetwork.
// Units: words.
#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <map>

#include "property_tests/numbers.hpp"
#include "property_tests/relations/table.hpp"

namespace equigrad::property_tests::relations {
namespace {

constexpr int kSlices = 4;
constexpr uint64_t kSliceMask = 0xFFFF;
const std::array<std::string, 3> kFingerprinted{"first", "second", "beside"};

uint64_t word_of(const json& one, std::size_t tensor, int64_t i, int rank, int micro) {
  const auto stream = static_cast<uint64_t>(7000 + 100 * rank + 10 * micro) + tensor;
  return word(one.at("seed"), stream, i);
}

at::Tensor slice_of(const json& one, std::size_t tensor, const at::Tensor& like,
                    const Source& from) {
  auto values = at::empty({like.numel()}, at::kFloat);
  for (int64_t i = 0; i < values.numel(); ++i)
    values[i] = static_cast<float>(
        word_of(one, tensor, i, from.rank, from.micro) >> (16 * from.step) & kSliceMask);
  return values.view(like.sizes());
}

// All shards of a tensor, one after the other, on every rank alike.
std::string is_owned_once(Session& session, const LocalShard& shard, int64_t numel, int stage) {
  const auto mine = at::tensor({shard.begin, shard.end}, at::kLong);
  const auto all = comm::exchange(*session.group, mine);
  int64_t end = 0;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    const auto begins = all[rank][0].item<int64_t>(), ends = all[rank][1].item<int64_t>();
    if (stage == 0 && (begins != 0 || ends != numel))
      return "rank " + std::to_string(rank) + " has not all of it";
    if (stage > 0 && begins != end && begins != ends)
      return "rank " + std::to_string(rank) + " begins elsewhere than the one before it ends";
    end = std::max(end, ends);
  }
  return end == numel ? "" : "the last element has no owner";
}

std::string fingerprints(const json& drawn, Runs& runs) {
  auto one = changed(changed(changed(drawn, "dtype", kFp32), "clip", 0.0), "sum_only", true);
  one["model"] = kMlp;
  one["wide_sums"] = true;
  if (accumulation_of(one) == 3) one["accumulation"] = 2;  // the sum is divided by it
  Way way;
  way.steps = kSlices;
  way.pass = [&one](Session& s, const Source& from) {
    std::vector<at::Tensor> outputs, slices;
    for (std::size_t i = 0; i < kFingerprinted.size(); ++i) {
      outputs.push_back(s.network[kFingerprinted[i]] * 1);
      slices.push_back(slice_of(one, i, outputs.back(), from));
    }
    torch::autograd::backward(outputs, slices);
  };
  Session session(one, runs.context, way);
  std::map<std::string, std::vector<uint64_t>> sums;
  std::map<std::string, LocalShard> owned;
  for (int step = 0; step < kSlices; ++step) {
    session.engine->on_step([&](const std::vector<LocalShard>& shards) {
      for (const auto& shard : shards) {
        if (!shard.gradient.defined()) continue;
        owned[shard.name] = shard;
        auto& words = sums[shard.name];
        words.resize(static_cast<std::size_t>(shard.end - shard.begin));
        const auto got = shard.gradient.flatten() * accumulation_of(one);
        for (std::size_t i = 0; i < words.size(); ++i)
          words[i] += static_cast<uint64_t>(got[static_cast<int64_t>(i)].item<double>())
                      << (16 * step);
      }
    });
    for (int micro = 0; micro < accumulation_of(one); ++micro)
      session.micro_batch({step, runs.context.rank(), micro});
  }
  std::string wrong;
  for (std::size_t tensor = 0; tensor < kFingerprinted.size(); ++tensor) {
    const auto& name = kFingerprinted[tensor];
    const auto& shard = owned[name];
    const auto cover = is_owned_once(session, shard, session.network[name].numel(), stage_of(one));
    if (!cover.empty() && wrong.empty()) wrong = name + ": " + cover;
    for (int64_t i = shard.begin; i < shard.end && wrong.empty(); ++i) {
      uint64_t want = 0;
      for (int rank = 0; rank < world_of(one); ++rank)
        for (int micro = 0; micro < accumulation_of(one); ++micro)
          want += word_of(one, tensor, i, rank, micro);
      if (sums[name].at(static_cast<std::size_t>(i - shard.begin)) != want)
        wrong = "word " + std::to_string(i) + " of " + name + " is not the sum of the ranks' words";
    }
  }
  return wrong;
}

}  // namespace

std::vector<Relation> fingerprint_relations() {
  return {{33,
           "words of 64 bits arrive as their sum, each at one owner",
           Class::Exact,
           always,
           fingerprints,
           {"word_lost"}}};
}

}  // namespace equigrad::property_tests::relations
