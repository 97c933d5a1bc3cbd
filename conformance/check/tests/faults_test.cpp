// Bugs that were real in other engines, planted under models that are none of the zoo's: the check
// sees them.
#include <gtest/gtest.h>

#include "conformance/check/planted_ground.hpp"
#include "conformance/check/tests/other_models.hpp"

namespace equigrad::conformance {
namespace {

template <class Model>
MakeSubject subject_with(at::Tensor (*loss)(Model&, const Which&)) {
  return [loss]() -> std::unique_ptr<Subject> {
    return subject_of(std::make_shared<Model>(),
                      [loss](torch::nn::Module& any, const Which& which) {
                        return Forward{loss(static_cast<Model&>(any), which)};
                      });
  };
}

TEST(CheckFaults, BugsThatWereRealAreSeenUnderAnLstm) {
  PlantedGround ground(subject_with<Recurrent>(recurrent_loss), every_stage({Precision::Fp32}));
  const auto clean = ground.plant("");
  EXPECT_FALSE(clean.caught || clean.ended) << clean.message;
  for (const char* fault :
       {"accumulation.overwrites", "accumulation.middle_dropped", "accumulation.divided_twice",
        "accumulation.not_zeroed", "bucket.stale_entries", "reduction.last_micro_batch_local",
        "optimizer.gradient_never_copied", "averaged_twice", "micro_batch_dropped",
        "gather_stale"}) {
    const auto seen = ground.plant(fault);
    EXPECT_TRUE(seen.acted) << fault;
    EXPECT_TRUE(seen.caught) << fault << "\n" << seen.message;
  }
}

}  // namespace
}  // namespace equigrad::conformance
