// What exact sums cost beside the pinned ones: the sums of one window alone, and whole steps.
//
//   window/<n>/ranks:W/passes:P   P gradients of n fp32 elements on every rank become their sum
//     pinned    added in fp32, then the tree over ranks
//     exact     running sums on a grid of bins; one pass: the gradients themselves are sent
//     shared    the other method, fixed point with a shared exponent: gradients are kept until the
//               end, ranks agree on the largest exponent of every element, then whole numbers of 64
//               bits are added
//   exact_step/<model>/...        the engine in the two orders, per stage
#include <ATen/ATen.h>

#include <cmath>
#include <equigrad_build_info.hpp>

#include "conformance/cases/recipe.hpp"
#include "engine/comm/reduction.hpp"
#include "engine/engine.hpp"
#include "engine/kernels/exact_tensor.hpp"
#include "engine/memory/ledger.hpp"
#include "perf/perf_ranks.hpp"

namespace equigrad::perf {
namespace {

using conformance::ranks::RankContext;
using nlohmann::json;

class SumOfWindow final : public Variant {
 public:
  SumOfWindow(const std::string& way, const json& settings, RankContext& context)
      : way_(way), communicator_(context.group()) {
    const auto numel = settings.at("numel").get<int64_t>();
    for (int pass = 0; pass < settings.at("passes").get<int>(); ++pass)
      gradients_.push_back(at::randn({numel}) * std::exp2(context.rank() - 3 * pass));
  }
  void run() override {
    if (way_ == "shared") return shared();
    const bool is_exact = way_ == "exact";
    auto window = gradients_[0].clone();  // as a bucket takes it
    if (is_exact && gradients_.size() > 1) window = kernels::exact_of(gradients_[0]);
    for (std::size_t pass = 1; pass < gradients_.size(); ++pass) {
      if (is_exact)
        kernels::exact_add_(window, gradients_[pass]);
      else
        window.add_(gradients_[pass]);
    }
    bytes_ = static_cast<int64_t>(window.nbytes());
    const auto order = is_exact ? ReductionOrder::Exact : ReductionOrder::Pinned;
    sum_ = comm::Reduction::all_reduce_sum(*communicator_, order, window, at::kFloat).finish();
  }
  int64_t peak_bytes() const override { return bytes_; }

 private:
  void shared() {
    const int64_t world = communicator_->world_size(), numel = gradients_[0].numel();
    auto most = gradients_[0].abs();
    for (const auto& gradient : gradients_) at::maximum_out(most, most, gradient.abs());
    // The exponent is a byte of an element.
    const auto mine = most.view(at::kInt).bitwise_right_shift(23).to(at::kByte);
    auto exponents = at::empty({world * numel}, at::kByte);
    communicator_->all_gather(exponents, mine)->wait();
    const auto largest = exponents.view({world, numel}).amax(0).to(at::kInt).sub_(127);
    auto whole = at::zeros({numel}, at::kLong);
    for (const auto& gradient : gradients_)
      whole.add_(at::ldexp(gradient.to(at::kDouble), 40 - largest).round_().to(at::kLong));
    auto received = at::empty_like(whole);
    communicator_->all_to_all(received, whole)->wait();
    const auto sums = received.view({world, numel / world}).sum(0);
    const auto own = largest.narrow(0, communicator_->rank() * (numel / world), numel / world) - 40;
    sum_ = at::empty({numel});
    communicator_->all_gather(sum_, at::ldexp(sums.to(at::kDouble), own).to(at::kFloat))->wait();
    bytes_ = numel * (4 * static_cast<int64_t>(gradients_.size()) + 8);
  }

  std::string way_;
  std::shared_ptr<comm::Communicator> communicator_;
  std::vector<at::Tensor> gradients_;
  at::Tensor sum_;
  int64_t bytes_ = 0;
};

std::unique_ptr<Variant> make_sum(const std::string& variant, const json& settings,
                                  RankContext& context) {
  return std::make_unique<SumOfWindow>(variant, settings, context);
}

const reference::Data& text() {
  static const reference::Data data(reference::read_text(
      {std::string(build_info::source_directory()) + "/reference/data/plays_slice.txt"}));
  return data;
}

class Stepping final : public Variant {
 public:
  Stepping(const std::string& variant, const json& settings, RankContext& context)
      : passes_(settings.at("passes")),
        context_length_(settings.at("context")),
        rank_(context.rank()),
        model_(reference::make_gpt(
            {settings.at("layers"), settings.at("dim"), settings.at("heads"), context_length_},
            1)) {
    EngineConfig config;
    config.train_micro_batch_size_per_gpu = 4;
    config.gradient_accumulation_steps = passes_;
    config.train_batch_size = 4 * passes_ * context.world_size();
    config.zero.stage = settings.at("stage");
    config.zero.reduce_bucket_size = config.zero.allgather_bucket_size = 1'000'000;
    config.zero.stage3_prefetch_bucket_size = 1'000'000;
    if (variant == "exact") config.reduction = ReductionOrder::Exact;
    ParameterGroup all;
    for (const auto& [name, tensor] : reference::unique_parameters(*model_))
      all.parameters.push_back({name, tensor});
    engine_ = initialize({all}, config, context.group());
  }
  void run() override {
    for (int64_t pass = 0; pass < passes_; ++pass) {
      const auto batch = text().text_batch(4, context_length_, {1, step_, rank_, pass});
      engine_->backward(model_->loss(batch));
      engine_->step();
    }
    ++step_;
  }
  int64_t peak_bytes() const override { return engine_->ledger().total_peak_bytes(); }

 private:
  int64_t passes_, context_length_, rank_, step_ = 0;
  std::shared_ptr<reference::Model> model_;
  std::unique_ptr<Engine> engine_;
};

std::unique_ptr<Variant> make_step(const std::string& variant, const json& settings,
                                   RankContext& context) {
  return std::make_unique<Stepping>(variant, settings, context);
}

void register_sums(int64_t millions, int world, int passes) {
  Group group;
  group.name = "window/" + std::to_string(millions) + "M/ranks:" + std::to_string(world) +
               "/passes:" + std::to_string(passes);
  group.world = world;
  group.variants = {"pinned", "exact", "shared"};
  group.bases = {"pinned"};
  group.rounds = 21;
  group.memory = true;
  group.settings = {{"numel", millions << 20}, {"passes", passes}};
  register_group(group, make_sum);
}

void register_steps(const std::string& model, const json& sizes, int rounds) {
  for (const int stage : {0, 1, 2, 3})
    for (const int passes : {1, 4}) {
      Group group;
      group.name = "exact_step/" + model + "/stage:" + std::to_string(stage) +
                   "/ranks:2/passes:" + std::to_string(passes);
      group.world = 2;
      group.variants = {"pinned", "exact"};
      group.bases = {"pinned"};
      group.rounds = rounds;
      group.memory = true;
      group.settings = sizes;
      group.settings["stage"] = stage;
      group.settings["passes"] = passes;
      register_group(group, make_step);
    }
}

[[maybe_unused]] const bool registered = [] {
  for (const int64_t millions : {1, 8})
    for (const int world : {2, 4})
      for (const int passes : {1, 4}) register_sums(millions, world, passes);
  register_steps("gpt_0.4M", {{"layers", 3}, {"dim", 96}, {"heads", 4}, {"context", 64}}, 31);
  register_steps("gpt_5M", {{"layers", 6}, {"dim", 256}, {"heads", 8}, {"context", 128}}, 11);
  return true;
}();

}  // namespace
}  // namespace equigrad::perf
