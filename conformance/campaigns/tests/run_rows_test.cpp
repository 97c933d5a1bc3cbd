#include "conformance/campaigns/run_rows.hpp"

#include <gtest/gtest.h>

namespace equigrad::conformance {
namespace {

CaseSpec spec_of(Precision precision, const std::string& model) {
  CaseSpec spec;
  spec.precision = precision;
  spec.model = model;
  return spec;
}

nlohmann::json losses(int numel, int zero, int subnormal, int overflow, double lossless) {
  return {{"numel", numel},       {"zero", zero},   {"subnormal", subnormal},
          {"overflow", overflow}, {"scale", 256.0}, {"lossless", lossless}};
}

TEST(RunRows, TwinsOfOnePrecisionAndModelAddUp) {
  RunRows rows;
  rows.add_underflow(spec_of(Precision::Fp16, "gpt"), losses(10, 1, 2, 3, 512));
  rows.add_underflow(spec_of(Precision::Fp16, "gpt"), losses(20, 0, 1, 0, 128));
  rows.add_underflow(spec_of(Precision::AmpO2, "gpt"), losses(5, 0, 0, 0, 64));
  rows.add_underflow(spec_of(Precision::Fp32, "gpt"), nullptr);
  auto other = losses(7, 0, 0, 0, 64);
  other["scale"] = 1024.0;
  rows.add_underflow(spec_of(Precision::AmpO2, "gpt"), other);
  reports::Run run;
  rows.give(run);
  ASSERT_EQ(run.underflow.size(), 3u) << "another scale is another row";
  const auto& row = run.underflow[2];
  EXPECT_EQ(row.precision, "fp16");
  EXPECT_EQ(row.scale, 256);
  EXPECT_EQ(row.numel, 30);
  EXPECT_EQ(row.zero, 1);
  EXPECT_EQ(row.subnormal, 3);
  EXPECT_EQ(row.overflow, 3);
  EXPECT_EQ(row.lossless, 512) << "what loses none of either";
}

TEST(RunRows, OneTwinWithoutALosslessScaleMeansThereIsNone) {
  for (const bool is_first : {true, false}) {
    RunRows rows;
    rows.add_underflow(spec_of(Precision::Fp16, "gpt"), losses(1, 0, 0, 0, is_first ? 0 : 8));
    rows.add_underflow(spec_of(Precision::Fp16, "gpt"), losses(1, 0, 0, 0, is_first ? 8 : 0));
    reports::Run run;
    rows.give(run);
    EXPECT_EQ(run.underflow.at(0).lossless, 0);
  }
}

TEST(RunRows, MemoryIsThatOfTheLargestCaseOfTheLargestModel) {
  RunRows rows;
  const auto add = [&](int stage, const std::string& model, int64_t master, int64_t buckets) {
    Judged judged;
    judged.memory = {{"master", {master, master}},
                     {"buckets", {buckets, 99}},
                     {"total", {master + buckets, 100}}};
    auto spec = spec_of(Precision::Fp16, model);
    spec.stage = stage;
    rows.add_memory(spec, judged);
  };
  add(0, "gpt", 10, 90);
  add(0, "conv", 30, 80);
  add(0, "conv", 60, 5);
  add(3, "gpt", 50, 50);
  add(3, "conv", 1, 2);
  reports::Run run;
  rows.give(run);
  ASSERT_EQ(run.memory.size(), 6u);
  for (std::size_t i = 0; i < 6; i += 3) {
    EXPECT_EQ(run.memory[i].model, "conv");
    EXPECT_EQ(run.memory[i].precision, "fp16");
    EXPECT_EQ(run.memory[i].bytes + run.memory[i + 1].bytes, run.memory[i + 2].bytes);
  }
  EXPECT_EQ(run.memory[0].bytes, 80) << "buckets of the case that holds 110, at stage 0";
  EXPECT_EQ(run.memory[3].bytes, 2) << "and at stage 3 of the same model, though gpt holds more";
}

}  // namespace
}  // namespace equigrad::conformance
