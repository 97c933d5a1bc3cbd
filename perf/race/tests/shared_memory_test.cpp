// Bytes of a rank that shares a model or a sequence: what forward leaves for backward is the
// formula's, to the byte, and the highest moment of a step is the forecast's within 1 %.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <equigrad_build_info.hpp>
#include <string>
#include <vector>

#include "perf/race/activations.hpp"
#include "perf/race/memory.hpp"
#include "perf/race/scratch.hpp"
#include "perf/race/suites.hpp"

namespace equigrad::perf {
namespace {

constexpr int64_t kBatch = 4;

nlohmann::json model() { return gpt(4, 256, 8, 128, 4096); }

std::vector<MemoryRow> rows_of(const nlohmann::json& of, const comm::MeshSizes& ranks) {
  const Scratch scratch;
  return measure_memory(std::string(build_info::binary_directory()) + "/perf_worker",
                        scratch.path(), of, kBatch, ranks);
}

class OfSharedRanks : public ::testing::TestWithParam<comm::MeshSizes> {};

TEST_P(OfSharedRanks, ActivationsAreTheFormulasAndThePeakIsTheForecasts) {
  const auto rows = rows_of(model(), GetParam());
  const int64_t left_bytes = activation_bytes(model(), kBatch, GetParam()).total();
  for (const auto& row : rows) {
    if (row.contestant != "Equigrad stage 3") {  // whose whole parameters are there, too
      EXPECT_EQ(row.left_bytes, left_bytes) << row.contestant;
    }
    if (row.forecast_bytes == 0) continue;
    EXPECT_LE(100 * std::abs(row.forecast_bytes - row.peak_bytes()), row.peak_bytes())
        << row.contestant << " forecast " << row.forecast_bytes << ", peak " << row.peak_bytes();
  }
  EXPECT_EQ(rows.size(), GetParam().tensor > 1 ? 4U : 5U);
}

INSTANTIATE_TEST_SUITE_P(Meshes, OfSharedRanks,
                         ::testing::Values(comm::MeshSizes{.tensor = 2},
                                           comm::MeshSizes{.sequence = 2},
                                           comm::MeshSizes{.data = 2, .tensor = 2}));

TEST(Activations, WhatIsDividedIsDividedAndTheRestIsWhole) {
  const auto all = activation_bytes(model(), kBatch, {}),
             tensor = activation_bytes(model(), kBatch, {.tensor = 2}),
             sequence = activation_bytes(model(), kBatch, {.sequence = 2});
  EXPECT_EQ(tensor.divided * 2, all.divided);
  EXPECT_EQ(tensor.whole, all.whole);
  EXPECT_EQ(sequence.divided * 2, all.divided);
  EXPECT_EQ(sequence.whole * 2, all.whole + 8) << "of a sequence each rank has some tokens of all";
}

}  // namespace
}  // namespace equigrad::perf
