// What is sent, and in which type: a communication dtype rounds every contribution, or a rank's
// window, once before the sum; a factor before the sum is multiplied in the same step.
#include "conformance/testing/windowed.hpp"
#include "engine/gradient/window.hpp"

namespace equigrad::gradient {
namespace {

using conformance::contribution;
using conformance::kNumels;
using conformance::sum_of_tree;
using conformance::oracle::HasTheBitsOf;
using conformance::ranks::on_ranks;
using conformance::ranks::RankContext;

struct Communication {
  std::array<std::optional<at::ScalarType>, 2> types;
  double before_sum;
};

// Odd parameters are of lower precision.
bool is_lower(std::size_t p) { return p % 2 == 1; }

layout::ParameterTable table() {
  static const std::vector<int> identities(kNumels.size());
  std::vector<layout::Registration> registrations;
  for (std::size_t i = 0; i < kNumels.size(); ++i) {
    registrations.push_back(
        {"p" + std::to_string(i), &identities[i], {kNumels[i]}, true, 0, is_lower(i)});
  }
  return layout::ParameterTable(registrations);
}

at::Tensor sent(const at::Tensor& values, const Communication& communication, std::size_t p) {
  const auto own = values.scalar_type();
  const auto type = communication.types[is_lower(p) ? 1 : 0].value_or(own);
  const auto factor = at::full({}, static_cast<float>(communication.before_sum));
  return (values.to(at::kFloat) * factor).to(type).to(at::kFloat);
}

// Two passes, of gradients in `dtype`, as the header of reference/precision.hpp says.
at::Tensor want(std::size_t p, int world, bool each, at::ScalarType dtype,
                const Communication& communication) {
  const auto from = [&](uint64_t pass, int rank) { return contribution(p, pass, rank, dtype); };
  std::vector<at::Tensor> first, second;
  for (int rank = 0; rank < world; ++rank) {
    if (each) {
      first.push_back(sent(from(1, rank), communication, p));
      second.push_back(sent(from(2, rank), communication, p));
    } else {
      const auto window = from(1, rank).to(at::kFloat) + from(2, rank).to(at::kFloat);
      first.push_back(sent(window.to(dtype), communication, p));
    }
  }
  auto sum = sum_of_tree(first).to(dtype);
  if (each) sum = (sum.to(at::kFloat) + sum_of_tree(second)).to(dtype);
  return sum.to(at::kFloat) * at::full({}, static_cast<float>(conformance::kFactor));
}

void play(RankContext& context, bool each, bool sharded, at::ScalarType dtype,
          const Communication& communication) {
  const auto group = context.group();
  const auto parameters = table();
  const layout::BucketPlan plan(parameters, sharded ? context.world_size() : 1, 10);
  agreement::Participant participant(*group, parameters.size());
  memory::Ledger ledger;
  Window window(plan, parameters.size(), participant,
                {dtype, dtype, each, ReductionOrder::Pinned, at::kFloat, communication.types,
                 communication.before_sum},
                ledger);
  for (const uint64_t pass : {1U, 2U}) {
    window.begin(1.0, /*expects_step=*/false);
    for (std::size_t p = 0; p < kNumels.size(); ++p) {
      window.ready(p, contribution(p, pass, context.rank(), dtype));
    }
    window.end();
  }
  std::map<std::size_t, at::Tensor> slices;
  for (const auto p : conformance::kFilled) {
    slices[p] = window.averaged_slice(p, conformance::kFactor);
  }
  const auto average = window.take_averaged(conformance::kFactor);
  EXPECT_EQ(ledger.bytes(memory::Category::Buckets), 0);
  for (const auto p : conformance::kFilled) {
    const auto at = *plan.slot_of(p);
    const layout::Partition partition(kNumels[p], plan.shards());
    const auto mine = partition.range(sharded ? context.rank() : 0);
    if (mine.numel() == 0) continue;  // a shorter parameter than there are ranks
    const auto expected = want(p, context.world_size(), each, dtype, communication)
                              .narrow(0, mine.begin, mine.numel());
    const int64_t begin = plan.buckets()[at.bucket].offset + plan.slot(at).offset;
    EXPECT_THAT(average.narrow(0, begin, mine.numel()), HasTheBitsOf(expected)) << p;
    EXPECT_THAT(slices[p].narrow(0, 0, mine.numel()), HasTheBitsOf(expected)) << p;
  }
}

TEST(WindowCommunicationDtype, EveryContributionIsRoundedOnceToIt) {
  const std::vector<Communication> communications{
      {{at::kBFloat16, at::kBFloat16}, 1.0},
      {{at::kHalf, at::kHalf}, 1.0},
      {{std::nullopt, at::kBFloat16}, 1.0},
      {{at::kFloat, at::kFloat}, static_cast<double>(1.0F / 3)},
      {{std::nullopt, at::kHalf}, static_cast<double>(1.0F / 7)},
      {{}, static_cast<double>(1.0F / 3)},
  };
  for (const int world : {1, 2, 3}) {
    EXPECT_EQ(on_ranks(world,
                       [&communications](RankContext& context) {
                         for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf})
                           for (const bool sharded : {false, true})
                             for (const bool each : {false, true})
                               for (const auto& communication : communications)
                                 play(context, each, sharded, dtype, communication);
                       }),
              "");
  }
}

}  // namespace
}  // namespace equigrad::gradient
