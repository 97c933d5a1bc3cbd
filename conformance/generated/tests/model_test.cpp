// What the events of a workload do to a pass of each rank.
#include "conformance/generated/model.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <torch/types.h>

#include <cmath>
#include <string>
#include <vector>

namespace equigrad::conformance {
namespace {

using ::testing::ElementsAre;

Workload on_four_ranks_of(int sequence, const PassEvent& event) {
  Workload work;
  work.world = 4;
  work.groups.resize(1);
  work.tensors = {{.name = "first", .sizes = {3}}, {.name = "second", .sizes = {2}}};
  if (sequence > 1)
    work.core = {.sequence = sequence,
                 .batch = 1,
                 .vocabulary = 6,
                 .context = 4,
                 .features = 4,
                 .hidden = 4,
                 .heads = 4,
                 .key_heads = 4,
                 .width = 2};
  work.passes = {event};
  return work;
}

// Of each rank's pass: what the gradient of the event's tensor is.
std::vector<std::string> gradients_of(const Workload& work) {
  std::vector<std::string> all;
  for (int rank = 0; rank < work.zero_ranks(); ++rank) {
    const GeneratedModel model(work, false);
    model.loss_of({0, rank, 0}, at::kFloat).backward();
    const auto& gradient = model.tensors().at(1).grad();
    const bool is_finite = at::isfinite(gradient).all().item<bool>();
    all.emplace_back(is_finite ? "finite" : "infinite");
  }
  return all;
}

PassEvent overflow(int rank, int tensor) {
  return {.what = "overflow", .rank = rank, .tensor = tensor, .element = 1};
}

TEST(GeneratedModel, AnOverflowIsOfOneRankOrOfAll) {
  EXPECT_THAT(gradients_of(on_four_ranks_of(1, overflow(2, 1))),
              ElementsAre("finite", "finite", "infinite", "finite"));
  EXPECT_THAT(gradients_of(on_four_ranks_of(1, overflow(-1, 1))),
              ElementsAre("infinite", "infinite", "infinite", "infinite"));
}

// In the parameter on one of them; in the loss, which they have in common, on all.
TEST(GeneratedModel, OfRanksThatShareASequence) {
  EXPECT_THAT(gradients_of(on_four_ranks_of(2, overflow(2, 1))),
              ElementsAre("finite", "finite", "infinite", "finite"));
  EXPECT_THAT(gradients_of(on_four_ranks_of(2, overflow(2, -1))),
              ElementsAre("finite", "finite", "infinite", "infinite"));
  EXPECT_THAT(gradients_of(on_four_ranks_of(2, overflow(-1, 1))),
              ElementsAre("infinite", "infinite", "infinite", "infinite"));
}

// How often a pass reads the tensor: a gather at stage 3, which others must take part in.
TEST(GeneratedModel, RanksThatShareASequenceReadTheSameParameters) {
  const auto reads = [](int rank) {
    auto work = on_four_ranks_of(2, overflow(2, 1));
    const GeneratedModel model(work, false);
    int terms = 0;
    model.loss_of({0, rank, 0}, at::kFloat, [&](const at::Tensor&) { ++terms; });
    return terms;
  };
  EXPECT_EQ(reads(2), reads(3));
  EXPECT_EQ(reads(0), reads(1));
  EXPECT_EQ(reads(2), reads(0) + 1);
}

}  // namespace
}  // namespace equigrad::conformance
