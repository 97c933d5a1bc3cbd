// The bound on an update whose masters and states are stored in 16 bits.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <utility>

#include "conformance/oracle/plain_update.hpp"

namespace equigrad::conformance::oracle {
namespace {

// What an update of these storage types must give: the rule in fp32, each result rounded once.
Weights stored_update(const UpdateSpec& spec, const Weights& before, const at::Tensor& gradient) {
  Weights wide{before.master.to(at::kFloat), {}};
  for (const auto& [name, state] : before.state) wide.state[name] = state.to(at::kFloat);
  Weights after = fp32_update(spec, wide, gradient.to(at::kFloat));
  after.master = after.master.to(before.master.scalar_type());
  for (auto& [name, state] : after.state) state = state.to(before.state.at(name).scalar_type());
  return after;
}

template <class Visit>
void for_each_stored_update(const Visit& visit) {
  at::manual_seed(4);
  for (const auto& [master, state] :
       {std::pair{at::kBFloat16, at::kBFloat16}, std::pair{at::kBFloat16, at::kFloat},
        std::pair{at::kHalf, at::kFloat}, std::pair{at::kHalf, at::kHalf}}) {
    for (UpdateSpec spec : specs()) {
      Weights weights = start(spec);
      weights.master = weights.master.to(master);
      for (auto& [name, values] : weights.state) values = values.to(state);
      for (spec.step = 1; spec.step <= 5; ++spec.step) {
        const auto gradient = (at::randn({kNumel}) * at::exp2(at::randn({kNumel}))).to(master);
        const Weights after = stored_update(spec, weights, gradient);
        visit(spec, weights, gradient, after);
        weights = after;
      }
    }
  }
}

TEST(StoredUpdate, ARightUpdateIn16BitsNeverBreaksIt) {
  for_each_stored_update([](const UpdateSpec& spec, const Weights& before,
                            const at::Tensor& gradient, const Weights& after) {
    const auto report = check_update(spec, before, gradient, after);
    EXPECT_TRUE(report.held()) << name_of(spec) << ": " << describe(report);
    EXPECT_EQ(report.compared, kNumel * static_cast<int64_t>(1 + after.state.size()));
    EXPECT_GT(report.margin, 0.5) << name_of(spec) << ": the bound is far too wide";
  });
}

// One ulp is twice what a rounding may lose; near a half it is seen, so in some element always.
TEST(StoredUpdate, AMasterThatIsOneUlpOffIn16BitsIsSeen) {
  for_each_stored_update([](const UpdateSpec& spec, const Weights& before,
                            const at::Tensor& gradient, const Weights& after) {
    Weights wrong = after;
    wrong.master = (after.master.view(at::kShort) + 1).view(after.master.scalar_type());
    EXPECT_GT(check_update(spec, before, gradient, wrong).violations, kNumel / 2) << name_of(spec);
  });
}

// A state in fp32 has no more room beside a gradient and a master in 16 bits.
TEST(StoredUpdate, AStateIsRoundedAsItIsStoredAndNotAsTheGradientIs) {
  for_each_stored_update([](const UpdateSpec& spec, const Weights& before,
                            const at::Tensor& gradient, const Weights& after) {
    for (const auto& [name, state] : after.state) {
      if (state.scalar_type() != at::kFloat) continue;
      Weights wrong = after;
      wrong.state[name] = state * (1 + std::exp2(-12));
      EXPECT_GT(check_update(spec, before, gradient, wrong).violations, kNumel / 2)
          << name_of(spec) << " " << name;
    }
  });
}

TEST(StoredUpdate, AStorageTypeThatChangesIsAnError) {
  UpdateSpec spec;
  const Weights before = start(spec);
  const auto gradient = at::randn({kNumel});
  Weights after = fp32_update(spec, before, gradient);
  after.master = after.master.to(at::kBFloat16);
  EXPECT_THROW(check_update(spec, before, gradient, after), std::runtime_error);
  after.master = after.master.to(at::kFloat);
  after.state["exp_avg"] = after.state["exp_avg"].to(at::kHalf);
  EXPECT_THROW(check_update(spec, before, gradient, after), std::runtime_error);
}

}  // namespace
}  // namespace equigrad::conformance::oracle
