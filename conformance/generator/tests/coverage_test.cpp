#include "conformance/generator/coverage.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "conformance/generator/draw.hpp"

namespace equigrad::conformance {
namespace {

constexpr const char* kLeftOut = "left out";

Axis axis_of(const Coverage& coverage, const std::string& name) {
  const auto axes = coverage.axes();
  return *std::find_if(axes.begin(), axes.end(),
                       [&](const Axis& axis) { return axis.name == name; });
}

TEST(Coverage, AValueIsCountedOnceForACaseThatHasItAndNeverIsTheRest) {
  GeneratedCase one;
  one.workload.groups.resize(1);
  one.workload.tensors = {{.name = "a", .sizes = {3}, .role = "term"},
                          {.name = "b", .sizes = {4, 5}, .role = "term"},
                          {.name = "c", .sizes = {}, .role = "frozen"}};
  one.workload.config = {{"optimizer", {{"type", "SGD"}}}, {"prescale_gradients", true}};
  Coverage coverage;
  coverage.add(one);
  one.workload.config.erase("prescale_gradients");
  coverage.add(one);
  using Cases = std::map<std::string, int64_t>;
  EXPECT_EQ(axis_of(coverage, "tensor role").cases, (Cases{{"term", 2}, {"frozen", 2}}));
  EXPECT_EQ(axis_of(coverage, "tensor elements").cases, (Cases{{"2^1", 2}, {"2^4", 2}, {"1", 2}}));
  EXPECT_EQ(axis_of(coverage, "prescale_gradients").cases, (Cases{{kLeftOut, 1}, {"true", 1}}));
  EXPECT_EQ(axis_of(coverage, "prescale_gradients").never, std::vector<std::string>{"false"});
  EXPECT_EQ(axis_of(coverage, "hook").never,
            (std::vector<std::string>{"halves", "keeps", "keeps_alias", "observes", "replaces"}));
}

// Values of two axes; what is left out is no value.
TEST(Coverage, APairCountsOnce) {
  for (int64_t workload = 0; workload < 20; ++workload) {
    const auto one = draw_case(6, workload, 0);
    Coverage coverage;
    coverage.add(one);
    int64_t values = 0, squares = 0;
    for (const auto& axis : coverage.axes()) {
      const auto count = static_cast<int64_t>(axis.cases.size() - axis.cases.count(kLeftOut));
      values += count;
      squares += count * count;
    }
    EXPECT_EQ(coverage.pairs(), (values * values - squares) / 2) << one.id;
    coverage.add(one);
    EXPECT_EQ(coverage.pairs(), (values * values - squares) / 2) << one.id << " once more";
  }
}

}  // namespace
}  // namespace equigrad::conformance
