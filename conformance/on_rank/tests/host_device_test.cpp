// Cases whose models and engines are on another device than the CPU hold.
#include "conformance/testing/host_device.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <torch/types.h>

#include <fstream>
#include <iterator>

#include "conformance/cases/matrix.hpp"
#include "conformance/on_rank/program.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/scratch_folder.hpp"
#include "engine/comm/communicator.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using ranks::RankContext;

json request_of(const CaseSpec& spec, const std::string& what) {
  static const auto data = to_json(find_data("", false));
  return {{"do", what}, {"id", spec.id()}, {"seed", 1}, {"data", data}, {"adversary", 0}};
}

void make_twin_at(const std::string& path, const CaseSpec& spec, RankContext& context) {
  auto request = request_of(spec, "twin");
  request["path"] = path;
  serve(request, context);
}

TEST(HostDevice, IsNoCpu) {
  EXPECT_EQ(ranks::on_ranks(1,
                            [](RankContext& context) {
                              const at::Device there(context.device().name);
                              const auto a = at::ones({2}, there), b = at::ones({2});
                              EXPECT_FALSE(a.is_cpu());
                              EXPECT_ANY_THROW(at::add(a, b));
                              EXPECT_TRUE(at::equal((a + a).cpu(), b + b));
                            },
                            {.device = take_host_device}),
            "");
}

// A case of each kind of precision and model at each stage.
std::vector<CaseSpec> some_cases() {
  std::vector<CaseSpec> specs;
  const auto add = [&](int stage, Precision precision, Style style, const std::string& model,
                       int world = 2) {
    specs.push_back({.stage = stage,
                     .precision = precision,
                     .style = style,
                     .world = world,
                     .accumulation = 3,
                     .clip = Clip::Above,
                     .optimizer = Rule::AdamW,
                     .model = model});
  };
  for (const int stage : {0, 1, 2, 3}) {
    add(stage, Precision::Fp32, Style::EngineBackward, "irregular");
    add(stage, Precision::Bf16, Style::TensorBackward, "gpt");
    add(stage, Precision::Fp16, Style::LossBackward, "irregular");
    if (stage > 0) add(stage, Precision::Bf16MastersStates, Style::ScaleBackward, "vision");
    if (stage > 0) add(stage, Precision::Offload, Style::ScaleBackward, "gpt");
  }
  add(1, Precision::Fp32, Style::LossBackward, "gated2");
  add(2, Precision::Bf16, Style::EngineBackward, "ulysses2");
  add(1, Precision::Fp32, Style::TensorBackward, "gated2x2", 4);
  return specs;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(HostDevice, CasesHoldThere) {
  const ScratchFolder folder;
  ASSERT_EQ(mkdir(folder.path().c_str(), 0700), 0);
  for (const auto& spec : some_cases()) {
    const auto cpu = folder.path() + "/cpu", there = folder.path() + "/there";
    EXPECT_EQ(ranks::on_ranks(1, [&](RankContext& context) { make_twin_at(cpu, spec, context); }),
              "");
    const auto run = [&](RankContext& context) {
      if (context.rank() == 0) make_twin_at(there, spec, context);
      comm::exchange(*context.group(), at::zeros({1}, at::kLong));
      auto request = request_of(spec, "case");
      request["twin"] = there;
      const auto answer = serve(request, context);
      EXPECT_EQ(answer.at("exact").at("first"), "") << spec.id();
      EXPECT_EQ(answer.at("bounded").at("first"), "") << spec.id();
      EXPECT_GT(answer.at("exact").at("compared").get<int64_t>(), 1'000) << spec.id();
    };
    EXPECT_EQ(ranks::on_ranks(spec.world, run,
                              {.timeout = std::chrono::minutes(2), .device = take_host_device}),
              "")
        << spec.id();
    // torch composes other operators of a model elsewhere; of this one it does not.
    if (spec.model == "irregular") EXPECT_TRUE(bytes_of(cpu) == bytes_of(there)) << spec.id();
  }
}

}  // namespace
}  // namespace equigrad::conformance
