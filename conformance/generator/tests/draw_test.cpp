#include "conformance/generator/draw.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "conformance/generator/coverage.hpp"
#include "engine/config/config.hpp"
#include "engine/error.hpp"

namespace equigrad::conformance {
namespace {

using testing::HasSubstr;

constexpr int64_t kWorkloads = 2500;

template <class Visit>
void each_case(uint64_t seed, int64_t workloads, Visit visit) {
  for (int64_t workload = 0; workload < workloads; ++workload)
    for (int execution = 0; execution < kExecutions; ++execution)
      visit(draw_case(seed, workload, execution));
}

TEST(Draw, WhatIsDrawnIsAConfigurationThatTheEngineTakes) {
  each_case(1, kWorkloads / 4, [](const GeneratedCase& one) {
    const auto text = engine_config(one, 0.5).dump();
    EXPECT_NO_THROW(parse_config(text, one.workload.world)) << one.id << " " << text;
  });
}

TEST(Draw, ACaseIsItsIdAndItsFileIsIt) {
  const auto one = draw_case(7, 11, 3);
  EXPECT_EQ(one.id, "Generated.7.11.3");
  EXPECT_EQ(to_json(case_of_id(one.id)), to_json(one));
  EXPECT_EQ(to_json(generated_case(to_json(one))), to_json(one));
  EXPECT_NE(to_json(draw_case(8, 11, 3)), to_json(one));
  EXPECT_NE(to_json(draw_case(7, 12, 3)), to_json(one));
}

TEST(Draw, AMeshesRanksDivideItsCore) {
  EXPECT_FALSE(draw_case(5, 0, 0).workload.core);
  for (int64_t n = 0; n < 400; ++n) {
    const auto one = draw_case(5, mesh_workload(n), static_cast<int>(n % kExecutions));
    ASSERT_TRUE(one.workload.core) << one.id;
    EXPECT_GT(one.workload.sequence_ranks() * one.workload.tensor_ranks(), 1) << one.id;
    EXPECT_NO_THROW(generated_case(to_json(one))) << one.id;
  }
}

TEST(Draw, ACoreThatItsRanksDoNotDivideIsRefused) {
  const auto whole = to_json(draw_case(5, mesh_workload(0), 0));
  for (const char* size : {"tensor", "vocabulary", "hidden", "key_heads", "heads", "context"}) {
    auto file = whole;
    auto& core = file["workload"]["core"];
    core["tensor"] = core["sequence"] = core["key_heads"] = core["heads"] = 2;
    core["vocabulary"] = core["hidden"] = core["context"] = file["workload"]["world"] = 4;
    core["heads"] = 4;
    file["execution"]["stage"] = 1;
    EXPECT_NO_THROW(generated_case(file));
    core[size] = 3;
    EXPECT_THROW(generated_case(file), Error) << size;
  }
}

TEST(Draw, ExecutionsOfAWorkloadHaveItsNumbers) {
  for (int64_t workload = 0; workload < 200; ++workload) {
    std::set<std::string> workloads, executions;
    for (int execution = 0; execution < kExecutions; ++execution) {
      const auto one = draw_case(3, workload, execution);
      workloads.insert(to_json(one.workload).dump());
      executions.insert(to_json(one)["execution"].dump());
    }
    EXPECT_EQ(workloads.size(), 1) << workload;
    EXPECT_EQ(executions.size(), kExecutions) << workload;
  }
}

TEST(Draw, IdsOfAnotherFormAreRefused) {
  for (const char* id : {"Generated.1.2", "Generated.1.2.8", "Generated.1.2.3.4",
                         "Generated.1.-2.3", "Generated.x.2.3"}) {
    try {
      case_of_id(id);
      ADD_FAILURE() << id;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(id));
    }
  }
}

TEST(Draw, AFileOfAnotherFormIsRefusedByName) {
  try {
    generated_case({{"workload", {{"seed", 1}}}});
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("workload"));
  }
}

// A value that no case can have is named here, with the reason; all others occur.
TEST(Draw, EveryKnownValueOccursButThoseThatNoCaseCanHave) {
  const std::map<std::string, std::string> impossible = {
      {"optimizer.type=left out", "an engine needs one"},
      {"reduction=native", "sums in an order that no twin knows"},
      {"fp16.auto_cast=true", "refused"},
      {"torch_autocast.dtype=fp32", "refused"},
      {"data_parallel_size=given", "a simpler case has other ranks"},
      {"tensor_parallel.dtype=fp32", "a simpler case has another type"},
      {"tensor_parallel.dtype=bf16", "a simpler case has another type"},
      {"tensor_parallel.dtype=fp16", "a simpler case has another type"}};
  Coverage coverage;
  each_case(2, kWorkloads, [&](const GeneratedCase& one) { coverage.add(one); });
  std::set<std::string> never;
  for (const auto& axis : coverage.axes())
    for (const auto& value : axis.never) never.insert(axis.name + "=" + value);
  for (const auto& value : never)
    EXPECT_TRUE(impossible.contains(value)) << value << " occurs in no case";
  for (const auto& [value, why] : impossible)
    EXPECT_TRUE(never.contains(value)) << value << " occurs, though: " << why;
}

}  // namespace
}  // namespace equigrad::conformance
