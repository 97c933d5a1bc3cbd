// The pinned reduction (all-to-all of shards, a fixed tree in fp32) beside the backend's own.
//
// Both get the same buffer of `numel` elements a rank and give this rank's slice (reduce_scatter)
// or the whole sum (all_reduce) in the buffer's dtype.
#include <ATen/ATen.h>

#include "engine/comm/reduction.hpp"
#include "perf/perf_ranks.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::RankContext;
using nlohmann::json;

class Reducing final : public Variant {
 public:
  Reducing(const json& settings, ReductionOrder order, RankContext& context)
      : communicator_(context.group()),
        order_(order),
        scatter_(settings.at("scatter")),
        buffer_(at::full({settings.at("numel").get<int64_t>()}, 1e-6,
                         settings.at("bf16").get<bool>() ? at::kBFloat16 : at::kFloat)) {}

  void run() override {
    auto reduction = scatter_ ? comm::Reduction::reduce_scatter_sum(*communicator_, order_, buffer_,
                                                                    buffer_.scalar_type())
                              : comm::Reduction::all_reduce_sum(*communicator_, order_, buffer_,
                                                                buffer_.scalar_type());
    sum_ = reduction.finish();
  }

 private:
  std::shared_ptr<comm::Communicator> communicator_;
  ReductionOrder order_;
  bool scatter_;
  at::Tensor buffer_;  // the native all-reduce adds in place: values grow, and stay finite
  at::Tensor sum_;
};

std::unique_ptr<Variant> make(const std::string& variant, const json& settings,
                              RankContext& context) {
  const auto order = variant == "pinned" ? ReductionOrder::Pinned : ReductionOrder::Native;
  return std::make_unique<Reducing>(settings, order, context);
}

[[maybe_unused]] const bool registered = [] {
  for (const bool scatter : {true, false})
    for (const bool bf16 : {false, true})
      for (const int64_t millions : {1, 8})
        for (const int world : {2, 4}) {
          Group group;
          group.name = std::string(scatter ? "reduce_scatter" : "all_reduce") +
                       (bf16 ? "/bf16/" : "/fp32/") + std::to_string(millions) +
                       "M/ranks:" + std::to_string(world);
          group.world = world;
          group.variants = {"native", "pinned"};
          group.bases = {"native"};
          group.rounds = 21;
          group.settings = {{"scatter", scatter}, {"bf16", bf16}, {"numel", millions << 20}};
          register_group(group, make);
        }
  return true;
}();

}  // namespace
}  // namespace equigrad::perf
