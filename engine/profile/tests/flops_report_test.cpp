// A profile as a table, as JSON and in a file.
#include "engine/profile/flops_report.hpp"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/testing/sample.hpp"

namespace equigrad::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kMs = 1'000'000;

// A model of two layers of one type and an embedding; 1 ms forward, 4 ms backward, 5 ms update.
FlopsReport small_report() {
  FlopsReport report;
  report.modules = {{"", "Model", 0, 1'500'000, {10, 0, kMs / 10}, {}, {}, {}},
                    {"token", "Embedding", 1, 500'000, {0, 0, kMs / 10}, {}, {}, {}},
                    {"layers", "Stack", 1, 1'000'000, {}, {}, {}, {}},
                    {"layers.0", "Linear", 2, 400'000, {800, 400, kMs / 5}, {}, {}, {}},
                    {"layers.1", "Linear", 2, 600'000, {1200, 600, kMs / 5}, {}, {}, {}}};
  for (auto& module : report.modules) module.forward = module.own_forward;
  report.modules[0].forward = {2'010'000, 1'000'000, 8 * kMs / 10};
  report.modules[0].backward = {4'020'000, 2'000'000, 3 * kMs};
  report.modules[2].forward = {2'000, 1'000, 4 * kMs / 10};
  report.unknown = {{"aten::erfinv", 3}};
  report.forward_ns = kMs;
  report.backward_ns = 4 * kMs;
  return report;
}

const ProfiledRun kRun{.step = 7, .world_size = 2, .micro_batch_size = 4, .step_ns = 5 * kMs};

std::string row(const std::string& name, const std::string& value) {
  std::string text = name + ":";
  text.resize(70, ' ');
  return text + "  " + value;
}

TEST(FlopsReport, TheSummarySaysWhatDeepSpeedsSays) {
  const auto text = table(small_report(), kRun, {});
  EXPECT_THAT(text, HasSubstr("Profile Summary at step 7:"));
  EXPECT_THAT(text, HasSubstr(row("world size", "2")));
  EXPECT_THAT(text, HasSubstr(row("data parallel size", "2")));
  EXPECT_THAT(text, HasSubstr(row("batch size per GPU", "4")));
  EXPECT_THAT(text, HasSubstr(row("params per GPU", "1.5 M")));
  EXPECT_THAT(text, HasSubstr(row("fwd MACs per GPU", "1 MMACs")));
  EXPECT_THAT(text, HasSubstr(row("fwd flops per GPU", "2.01 M")));
  EXPECT_THAT(text, HasSubstr(row("bwd MACs per GPU, counted", "2 MMACs")));
  EXPECT_THAT(text, HasSubstr(row("bwd flops per GPU, counted", "4.02 M")));
  EXPECT_THAT(text, HasSubstr(row("fwd latency", "1 ms")));
  EXPECT_THAT(text,
              HasSubstr(row("fwd FLOPS per GPU = fwd flops per GPU / fwd latency", "2.01 GFLOPS")));
  EXPECT_THAT(text, HasSubstr(row("bwd FLOPS per GPU = 2 * fwd flops per GPU / bwd latency",
                                  "1 GFLOPS")));  // 1.005, cut to two digits
  EXPECT_THAT(text, HasSubstr(row("bwd latency", "4 ms")));
  EXPECT_THAT(text, HasSubstr(row("fwd+bwd FLOPS per GPU = 3 * fwd flops per GPU / (fwd+bwd "
                                  "latency)",
                                  "1.21 GFLOPS")));
  EXPECT_THAT(text, HasSubstr(row("step latency", "5 ms")));
  EXPECT_THAT(text, HasSubstr(row("iter latency", "10 ms")));
  EXPECT_THAT(text,
              HasSubstr(row("FLOPS per GPU = 3 * fwd flops per GPU / iter latency", "603 MFLOPS")));
  EXPECT_THAT(text, HasSubstr(row("samples/second", "800")));
  EXPECT_THAT(text, HasSubstr("    aten::erfinv - 3 calls\n"));
}

TEST(FlopsReport, ForwardsThatCheckpointingRepeatsCountInTheBackwardRate) {
  FlopsProfilerConfig config;
  config.recompute_fwd_factor = 1;
  const auto text = table(small_report(), kRun, config);
  EXPECT_THAT(text, HasSubstr(row("bwd FLOPS per GPU = 3 * fwd flops per GPU / bwd latency",
                                  "1.51 GFLOPS")));
  EXPECT_THAT(text, HasSubstr("FLOPS per GPU = 4 * fwd flops per GPU / iter latency"));
}

TEST(FlopsReport, TheAggregateAddsUpModulesOfOneType) {
  FlopsProfilerConfig config;
  auto text = table(small_report(), kRun, config);
  EXPECT_THAT(text, HasSubstr("depth 2:\n"
                              "    params      - {'Linear': '1 M'}\n"
                              "    MACs        - {'Linear': '1 KMACs'}\n"
                              "    fwd latency - {'Linear': '400 us'}\n"));
  EXPECT_THAT(text, HasSubstr("depth 1:\n    params      - {'Stack': '1 M'}\n"));
  config.top_modules = 2;
  text = table(small_report(), kRun, config);
  EXPECT_THAT(text, HasSubstr("params      - {'Stack': '1 M', 'Embedding': '500 K'}\n"));
  config.module_depth = 1;
  EXPECT_THAT(table(small_report(), kRun, config), Not(HasSubstr("depth 2:")));
}

TEST(FlopsReport, TheDetailsShowEveryModuleWhereAskedFor) {
  FlopsProfilerConfig config;
  EXPECT_THAT(
      table(small_report(), kRun, config),
      HasSubstr("    (0): Linear: 400 K = 26.67% Params, 400 MACs = 0.04% MACs, 200 us = 25% "
                "latency, 4 MFLOPS\n"));
  EXPECT_THAT(table(small_report(), kRun, config), HasSubstr("\nModel: 1.5 M = 100% Params"));
  config.detailed = false;
  EXPECT_THAT(table(small_report(), kRun, config), Not(HasSubstr("(0): Linear")));
}

TEST(FlopsReport, TheJsonHoldsEveryNumber) {
  const auto root = nlohmann::json::parse(json(small_report(), kRun));
  EXPECT_EQ(root.at("step"), 7);
  EXPECT_EQ(root.at("world_size"), 2);
  EXPECT_EQ(root.at("micro_batch_size"), 4);
  EXPECT_EQ(root.at("forward_ns"), kMs);
  EXPECT_EQ(root.at("backward_ns"), 4 * kMs);
  EXPECT_EQ(root.at("step_ns"), 5 * kMs);
  EXPECT_EQ(root.at("unknown_operators"), nlohmann::json::parse(R"([
      {"name": "aten::erfinv", "count": 3}])"));
  ASSERT_EQ(root.at("modules").size(), 5u);
  EXPECT_EQ(root.at("modules").at(3), nlohmann::json::parse(R"({
      "name": "layers.0", "type": "Linear", "depth": 2, "params": 400000,
      "own_forward": {"flops": 800, "macs": 400, "time_ns": 200000},
      "own_backward": {"flops": 0, "macs": 0, "time_ns": 0},
      "forward": {"flops": 800, "macs": 400, "time_ns": 200000},
      "backward": {"flops": 0, "macs": 0, "time_ns": 0}})"));
  EXPECT_EQ(root.at("modules").at(0).at("backward").at("macs"), 2'000'000);
}

std::string content(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

TEST(FlopsReport, GoesToAFileInAFolderThatItMakes) {
  const auto folder = std::filesystem::path(::testing::TempDir()) / "equigrad_flops_report";
  // Not remove_all: LibTorch exports an older copy of it, which crashes.
  const auto clean = [&] {
    for (const auto* path : {"deep/profile.txt", "deep/profile.json", "deep", ""}) {
      std::filesystem::remove(folder / path);
    }
  };
  clean();
  FlopsProfilerConfig config;
  config.output_file = folder / "deep" / "profile.txt";
  write(small_report(), kRun, config);
  EXPECT_EQ(content(config.output_file), table(small_report(), kRun, config));
  config.output_file = folder / "deep" / "profile.json";
  write(small_report(), kRun, config);
  EXPECT_EQ(content(config.output_file), json(small_report(), kRun));
  config.output_file = folder / "deep" / "profile.txt" / "below";
  EXPECT_THAT(conformance::error_of([&] { write(small_report(), kRun, config); }),
              HasSubstr("[flops_profiler.output_file] expected a file that can be written"));
  clean();
}

TEST(FlopsReport, GoesToStandardOutputWithoutAFile) {
  ::testing::internal::CaptureStdout();
  write(small_report(), kRun, {});
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), table(small_report(), kRun, {}));
}

}  // namespace
}  // namespace equigrad::profile
