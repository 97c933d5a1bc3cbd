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

TEST(RunRows, MemoryIsThatOfTheLargestCase) {
  RunRows rows;
  Judged small, large;
  small.memory["master"] = {10, 90};
  large.memory["master"] = {30, 40};
  rows.add_memory(spec_of(Precision::Fp16, "gpt"), small);
  rows.add_memory(spec_of(Precision::Fp16, "conv"), large);
  reports::Run run;
  rows.give(run);
  ASSERT_EQ(run.memory.size(), 1u);
  EXPECT_EQ(run.memory[0].precision, "fp16");
  EXPECT_EQ(run.memory[0].bytes, 30);
  EXPECT_EQ(run.memory[0].peak_bytes, 90);
}

}  // namespace
}  // namespace equigrad::conformance
