// Cases of meshes on ranks, small ones: without a fault they hold, on one set of ranks one after
// the other; each fault of what ranks share is seen by some of them.
#include "conformance/generated/case.hpp"

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "conformance/generator/draw.hpp"
#include "conformance/testing/rank_test.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::RankContext;

struct Axes {
  int data, sequence, tensor;
};

GeneratedCase case_of(const Axes& axes, int stage) {
  GeneratedCase one;
  auto& what = one.workload;
  what.world = axes.data * axes.sequence * axes.tensor;
  what.accumulation = 2;
  what.steps = 2;
  what.groups.resize(1);
  what.core = {.tensor = axes.tensor,
               .sequence = axes.sequence,
               .batch = 2,
               .vocabulary = 12,
               .context = 8,
               .features = 6,
               .hidden = 8,
               .heads = 8,
               .key_heads = axes.tensor,
               .width = 2,
               .layers = 1,
               .is_tied = true,
               .labels = "some"};
  what.tensors = {{.name = "whole", .sizes = {5}},
                  {.name = "at_times", .sizes = {3}, .role = "sometimes"}};
  what.config = {{"train_micro_batch_size_per_gpu", 1},
                 {"gradient_accumulation_steps", what.accumulation},
                 {"gradient_clipping", "half"},
                 {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 0.01}}}}}};
  if (axes.tensor > 1) what.config["tensor_parallel"]["autotp_size"] = axes.tensor;
  if (axes.sequence > 1) what.config["sequence_parallel_size"] = axes.sequence;
  one.execution.stage = stage;
  one.execution.seed = 3;
  return one;
}

// What is wrong first on this rank; empty: nothing.
std::string finding_of(RankContext& context, const GeneratedCase& one,
                       const std::string& fault = "") {
  const std::string twin = context.directory() + "/twin.safetensors";
  json request = {{"case", to_json(one)}, {"path", twin}, {"twin", twin}, {"fault", fault}};
  if (context.rank() == 0) serve_generated_twin(request, context);
  auto made = at::zeros({1});
  context.group()->all_reduce_sum(made)->wait();
  const auto answer = serve_generated(request, context);
  context.group()->all_reduce_sum(made)->wait();
  EXPECT_GT(answer.at("compared").at("gradient").get<int64_t>(), 100);
  const auto& bounded = answer.at("bounded");
  const std::string first = answer.at("exact").value("first", "");
  return first.empty() ? bounded.value("first", "") : first;
}

void on_four_ranks(const std::function<void(RankContext&)>& run) {
  EXPECT_EQ(ranks::on_ranks(4, run, {.timeout = std::chrono::minutes(3)}), "");
}

// One set of ranks: groups of one name have other ranks in another mesh.
TEST(GeneratedMesh, WithoutAFaultEveryMeshHolds) {
  on_four_ranks([](RankContext& context) {
    for (const Axes& axes : {Axes{1, 2, 2}, {2, 2, 1}, {2, 1, 2}, {1, 4, 1}, {1, 1, 4}})
      for (const int stage : {0, 2, 3}) {
        if (axes.tensor > 1 && stage == 3) continue;
        EXPECT_EQ(finding_of(context, case_of(axes, stage)), "")
            << axes.data << " x " << axes.sequence << " x " << axes.tensor << " stage " << stage;
      }
  });
}

struct Plant {
  const char* fault;
  Axes axes;
};

TEST(GeneratedMesh, FaultsOfWhatRanksShareAreSeen) {
  const std::vector<Plant> plants = {{"clip.replicated_counted_on_every_rank", {2, 1, 2}},
                                     {"parallel.input_gradient_not_summed", {1, 2, 2}},
                                     {"parallel.bias_on_every_rank", {1, 1, 4}},
                                     {"parallel.cut_across_the_packing", {1, 2, 2}},
                                     {"parallel.shared_head_counted_twice", {1, 4, 1}},
                                     {"parallel.divided_by_sequence_ranks", {2, 2, 1}}};
  on_four_ranks([&](RankContext& context) {
    for (const auto& plant : plants)
      EXPECT_NE(finding_of(context, case_of(plant.axes, 1), plant.fault), "") << plant.fault;
  });
}

}  // namespace
}  // namespace equigrad::conformance
