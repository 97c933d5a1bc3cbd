#include "conformance/on_rank/compare.hpp"

#include <sys/resource.h>
#include <torch/types.h>

#include <chrono>

#include "conformance/cases/device.hpp"
#include "conformance/verdict/lane_tally.hpp"
#include "engine/comm/communicator.hpp"
#include "engine/engine.hpp"
#include "engine/kernels/data_types.hpp"
#include "engine/memory/ledger.hpp"
#include "reference/models/model.hpp"

namespace equigrad::conformance {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

int64_t process_peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * int64_t{1024};
}

class Learner {
 public:
  Learner(const json& request, ranks::RankContext& context, const reference::Data& data)
      : text_(request.at("kind") == "text"),
        seed_(request.at("seed")),
        gpt_{request.at("layers"), request.at("dim"), request.at("heads"), request.at("context")},
        data_(data),
        context_(context) {
    const auto group = context.group();
    before_bytes_ = process_peak_bytes();
    model_ =
        on_device(text_ ? reference::make_gpt(gpt_, seed_) : reference::make_model("conv", seed_));
    for (const auto& [name, tensor] : reference::unique_parameters(*model_))
      parameters_ += tensor.numel();
    engine_ = initialize(*model_, request.at("config").get<std::string>(), group);
  }

  json started() const {
    return {{"parameters", parameters_},
            {"tokens", engine_->config().train_batch_size * (text_ ? gpt_.context : 1)}};
  }

  json steps(int64_t count) {
    json losses = json::array(), seconds = json::array();
    for (int64_t i = 0; i < count; ++i) {
      const auto start = Clock::now();
      losses.push_back(exact_text(step()));
      seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    }
    return {{"losses", losses}, {"seconds", seconds}};
  }

  json finished() const {
    const auto& ledger = engine_->ledger();
    json held = json::object();
    for (int index = 0; index < memory::kCategories; ++index)
      held[memory::kCategoryNames[static_cast<std::size_t>(index)]] =
          ledger.bytes(static_cast<memory::Category>(index));
    const int64_t peak_bytes = process_peak_bytes();
    return {{"held", held},
            {"held_bytes", ledger.total_bytes()},
            {"held_peak_bytes", ledger.total_peak_bytes()},
            {"process_peak_bytes", peak_bytes},
            {"process_growth_bytes", peak_bytes - before_bytes_},
            {"skipped_steps", engine_->counters().skipped_steps}};
  }

 private:
  double step() {
    const auto micro_batches = engine_->config().gradient_accumulation_steps;
    double sum = 0;
    for (int64_t index = 0; index < micro_batches; ++index) {
      context_.note("step " + std::to_string(step_ + 1) + " micro-batch " +
                    std::to_string(index + 1));
      const auto loss = forward(index);
      engine_->backward(loss);
      if (engine_->config().managed_gradient_accumulation || index + 1 == micro_batches)
        engine_->step();
      sum += loss.item<double>();
    }
    ++step_;
    return sum / static_cast<double>(micro_batches);
  }

  at::Tensor forward(int64_t micro_batch) {
    const reference::Draw draw{
        .seed = seed_, .step = step_, .rank = context_.rank(), .micro_batch = micro_batch};
    const auto& config = engine_->config();
    const auto batch =
        text_ ? data_.text_batch(config.train_micro_batch_size_per_gpu, gpt_.context, draw)
              : data_.make_batch("conv", draw);
    const auto guard = engine_->autocast();
    return model_->loss(on_device(reference::to_dtype(batch, torch_dtype(config.precision.param))));
  }

  bool text_;
  uint64_t seed_;
  reference::GptOptions gpt_;
  const reference::Data& data_;
  ranks::RankContext& context_;
  int64_t before_bytes_ = 0, parameters_ = 0, step_ = 0;
  std::shared_ptr<reference::Model> model_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace

json serve_compare(const json& request, ranks::RankContext& context, const reference::Data& data) {
  static std::unique_ptr<Learner> learner;
  const std::string verb = request.at("verb");
  if (verb == "start") {
    learner.reset();
    learner = std::make_unique<Learner>(request, context, data);
    return learner->started();
  }
  if (!learner) throw Error("compare", "expected a model, got none. Send the verb start first.");
  if (verb == "steps") return learner->steps(request.at("count"));
  if (verb == "finish") return learner->finished();
  throw Error("compare", "expected start, steps or finish, got \"" + verb +
                             "\". The controller and its ranks differ.");
}

}  // namespace equigrad::conformance
