#include "perf/worker/work.hpp"

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>

#include <optional>
#include <stdexcept>

#include "conformance/oracle/tensor_file.hpp"
#include "engine/autograd/operator_observer.hpp"
#include "engine/engine.hpp"
#include "engine/memory/ledger.hpp"
#include "perf/worker/model.hpp"
#include "perf/worker/shared_gpt.hpp"

namespace equigrad::perf {
namespace {

using nlohmann::json;
using Gradients = std::map<std::string, at::Tensor>;

void begin(const Work::Enter& enter, const char* phase) {
  if (enter) enter(phase, {});
}

// Says when parameters are read, and when their gradients are there.
class StepObserver final : public autograd::OperatorListener {
 public:
  StepObserver(const std::vector<at::Tensor>& parameters, const Work::Enter& enter)
      : parameters_(parameters), enter_(enter), observation_(*this, parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      torch::autograd::impl::set_post_acc_grad_hooks(parameters[i],
                                                     std::make_unique<Arrival>(enter, i));
  }
  ~StepObserver() override {
    for (const auto& parameter : parameters_)
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, nullptr);
  }
  void before(const std::vector<std::size_t>& read) noexcept override { enter_("use", read); }
  void after(const std::vector<std::size_t>&) noexcept override {}

 private:
  struct Arrival final : torch::autograd::PostAccumulateGradHook {
    Arrival(const Work::Enter& to, std::size_t of) : enter(to), parameter(of) {}
    void operator()(const at::Tensor&) override { enter("gradient", {parameter}); }
    const Work::Enter& enter;
    std::size_t parameter;
  };

  const std::vector<at::Tensor>& parameters_;
  const Work::Enter& enter_;
  autograd::Observation observation_;
};

Model read_model(const json& request, const comm::Mesh& ranks) {
  const json& settings = request.at("model");
  if (!ranks.tensor() && !ranks.sequence()) {
    Model model(settings);
    model.read_weights(request.at("weights"));
    return model;
  }
  const auto gpt = make_shared_gpt({settings.at("layers"), settings.at("dim"), settings.at("heads"),
                                    settings.at("context"), settings.at("vocabulary")},
                                   ranks);
  const std::string weights = request.at("weights");
  read_part(*gpt, conformance::oracle::read_tensors(weights).tensors, ranks);
  return Model(gpt);
}

class Batches {
 public:
  Batches(const json& request, const comm::Mesh& ranks)
      : all_(conformance::oracle::read_tensors(request.at("batches"))
                 .tensors.at("rank" + std::to_string(data_rank(ranks)))
                 .clone()) {}
  at::Tensor next() { return all_[next_++ % all_.size(0)]; }

 private:
  static int data_rank(const comm::Mesh& ranks) {
    return comm::place_of(ranks.world()->rank(), ranks.sizes()).data;
  }

  at::Tensor all_;
  int64_t next_ = 0;
};

class OnEngine final : public Work {
 public:
  OnEngine(const json& request, const comm::Mesh& ranks)
      : model_(read_model(request, ranks)), batches_(request, ranks) {
    engine_ = initialize(model_.module(), request.at("config").get<std::string>(), ranks);
    dtype_ = request.at("bf16").get<bool>() ? at::kBFloat16 : at::kFloat;
  }

  void step(const Enter& enter) override {
    const int64_t micro_batches = engine_->config().gradient_accumulation_steps;
    for (int64_t i = 0; i < micro_batches; ++i) {
      backward(enter);
      begin(enter, "step");
      engine_->step();
    }
  }
  Gradients step_with_gradients() override {
    const int64_t micro_batches = engine_->config().gradient_accumulation_steps;
    for (int64_t i = 0; i + 1 < micro_batches; ++i) {
      backward();
      engine_->step();
    }
    backward();
    Gradients found;
    for (const auto& [name, parameter] : model_.parameters())
      found[name] = engine_->access().full_gradient(name).to(at::kFloat);
    engine_->step();
    return found;
  }
  json held() const override {
    json held = json::object();
    for (int index = 0; index < memory::kCategories; ++index)
      held[memory::kCategoryNames[static_cast<std::size_t>(index)]] =
          engine_->ledger().bytes(static_cast<memory::Category>(index));
    return held;
  }
  json ledger() const override {
    const auto& ledger = engine_->ledger();
    const auto& gathering = engine_->counters().gathering;
    return {{"held", held()},
            {"gathering",
             {{"gathered_numel", gathering.gathered_numel},
              {"planned_numel", gathering.planned_numel},
              {"least_numel", gathering.least_numel}}},
            {"held_bytes", ledger.total_bytes()},
            {"held_peak_bytes", ledger.total_peak_bytes()}};
  }

 private:
  void backward(const Enter& enter = nullptr) {
    begin(enter, "forward");
    const auto loss = model_.loss(batches_.next(), dtype_);
    begin(enter, "backward");
    engine_->backward(loss);
  }

  Model model_;
  Batches batches_;
  at::ScalarType dtype_ = at::kFloat;
  std::unique_ptr<Engine> engine_;
};

class Libtorch final : public Work {
 public:
  Libtorch(const json& request, const comm::Mesh& ranks)
      : model_(read_model(request, ranks)),
        batches_(request, ranks),
        accumulation_(request.at("accumulation")) {
    if (request.at("bf16").get<bool>()) model_.module().to(at::kBFloat16);
    dtype_ = request.at("bf16").get<bool>() ? at::kBFloat16 : at::kFloat;
    parameters_ = model_.module().parameters();
    for (const auto& parameter : parameters_) {
      averages_.push_back(at::zeros_like(parameter));
      squares_.push_back(at::zeros_like(parameter));
      steps_.push_back(at::zeros({}));
    }
  }

  void step(const Enter& enter) override {
    {
      std::optional<StepObserver> observer;
      if (enter) observer.emplace(parameters_, enter);
      backward(enter);
    }
    begin(enter, "step");
    update();
  }
  Gradients step_with_gradients() override {
    backward();
    Gradients found;
    for (const auto& [name, parameter] : model_.parameters())
      found[name] = parameter.grad().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
    update();
    return found;
  }

  // In the engine's words.
  json held() const override {
    int64_t parameters = 0, gradients = 0, states = 0;
    for (const auto& parameter : parameters_) {
      parameters += static_cast<int64_t>(parameter.nbytes());
      if (parameter.grad().defined()) gradients += static_cast<int64_t>(parameter.grad().nbytes());
    }
    for (const auto* all : {&averages_, &squares_, &steps_})
      for (const auto& state : *all) states += static_cast<int64_t>(state.nbytes());
    return {{"parameters", parameters}, {"gradients", gradients}, {"optimizer_state", states}};
  }

 private:
  void backward(const Enter& enter = nullptr) {
    for (int64_t i = 0; i < accumulation_; ++i) {
      begin(enter, "forward");
      const auto loss = model_.loss(batches_.next(), dtype_);
      begin(enter, "backward");
      (accumulation_ == 1 ? loss : loss / static_cast<double>(accumulation_)).backward();
    }
  }
  void update() {
    const torch::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (auto& step : steps_) step.add_(1);
    for (auto& parameter : parameters_) gradients.push_back(parameter.grad());
    at::_fused_adamw_(parameters_, gradients, averages_, squares_, {}, steps_, /*lr=*/1e-3,
                      /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0.01, /*eps=*/1e-8,
                      /*amsgrad=*/false, /*maximize=*/false);
    for (auto& parameter : parameters_) parameter.mutable_grad() = at::Tensor();
  }

  Model model_;
  Batches batches_;
  int64_t accumulation_;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<at::Tensor> parameters_, averages_, squares_, steps_;
};

}  // namespace

std::unique_ptr<Work> make_work(const json& request, const comm::Mesh& ranks) {
  if (request.at("work") == "engine") return std::make_unique<OnEngine>(request, ranks);
  if (request.at("work") == "libtorch") return std::make_unique<Libtorch>(request, ranks);
  throw std::runtime_error("[perf] expected the work engine or libtorch, got " +
                           request.at("work").dump() + ".");
}

}  // namespace equigrad::perf
