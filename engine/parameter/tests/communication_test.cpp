// Weights that are sent in a lower precision: rounded to it, at every stage alike, and held in the
// parameters' type; the others, frozen ones too, are what they were.
#include "conformance/testing/bits_matcher.hpp"
#include "conformance/testing/rank_test.hpp"
#include "conformance/testing/sample.hpp"
#include "engine/parameter/store.hpp"

namespace equigrad::parameter {
namespace {

using conformance::sample;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

const std::vector<int64_t> kNumels{7, 12, 5, 70'000, 6};  // p2 is frozen, p3 is sent alone
bool is_lower(std::size_t i) { return i != 1; }

layout::ParameterTable table() {
  std::vector<layout::Registration> registrations;
  for (std::size_t i = 0; i < kNumels.size(); ++i) {
    registrations.push_back(
        {"p" + std::to_string(i), &kNumels[i], {kNumels[i]}, i != 2, 0, is_lower(i)});
  }
  return layout::ParameterTable(registrations);
}

struct Model {
  std::shared_ptr<comm::Communicator> group;
  layout::ParameterTable parameters = table();
  layout::BucketPlan plan;
  agreement::Participant participant;
  ZeroConfig zero;
  memory::Ledger ledger;
  std::vector<at::Tensor> tensors;
  at::Tensor masters;
  std::unique_ptr<Parameters> keeper;

  Model(RankContext& context, int stage, at::ScalarType communication_dtype)
      : group(context.group()),
        plan(parameters, stage == 0 ? 1 : context.world_size(), 13),
        participant(*group, parameters.size()) {
    zero.stage3_param_persistence_threshold = 0;
    for (std::size_t i = 0; i < kNumels.size(); ++i) {
      tensors.push_back(sample(kNumels[i], i).requires_grad_(i != 2));
    }
    masters = at::zeros({plan.shard_numel()});
    const at::NoGradGuard no_grad;
    keeper = make_keeper({parameters,
                          plan,
                          zero,
                          *group,
                          participant,
                          ledger,
                          masters,
                          tensors,
                          at::kFloat,
                          {std::nullopt, communication_dtype}},
                         stage == 3);
  }
  void expect(double times, at::ScalarType communication_dtype, double again = 1.0) {
    for (std::size_t i = 0; i < kNumels.size(); ++i) {
      SCOPED_TRACE(i);
      auto want = sample(kNumels[i], i);
      if (i != 2) want = want * at::full({}, times, at::kFloat) * again;
      if (i != 2 && is_lower(i)) want = want.to(communication_dtype).to(at::kFloat);
      EXPECT_THAT(keeper->whole(i), HasTheBitsOf(want));
      EXPECT_EQ(tensors[i].scalar_type(), at::kFloat);
    }
  }
};

TEST(ParameterCommunicationDtype, TheModelSeesWeightsRoundedToIt) {
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [](RankContext& context) {
                         for (const int stage : {0, 1, 3}) {
                           for (const auto communication_dtype : {at::kBFloat16, at::kHalf}) {
                             SCOPED_TRACE(stage);
                             Model it(context, stage, communication_dtype);
                             const at::NoGradGuard no_grad;
                             it.expect(1.0, communication_dtype);
                             it.masters.mul_(1.01);
                             it.keeper->publish();
                             it.expect(1.01, communication_dtype);
                             it.masters.mul_(2.0);
                             for (std::size_t i = 0; i < kNumels.size(); ++i) {
                               it.keeper->publish(i, {});
                             }
                             it.expect(1.01, communication_dtype, 2.0);
                             EXPECT_EQ(it.ledger.bytes(memory::Category::Gathered), 0);
                           }
                         }
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad::parameter
