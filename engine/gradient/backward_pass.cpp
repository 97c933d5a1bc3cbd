#include "engine/gradient/backward_pass.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "engine/error.hpp"

namespace equigrad::gradient {

struct BackwardPass::State : std::enable_shared_from_this<State> {
  // Lives as long as a pass's graph task. If that is destroyed before its end, the pass threw.
  struct Task {
    std::weak_ptr<State> state;
    bool ended = false;
    explicit Task(std::weak_ptr<State> of) : state(std::move(of)) {}
    Task(const Task&) = delete;
    Task& operator=(const Task&) = delete;
    ~Task() {
      if (ended) return;
      if (const auto self = state.lock()) self->abandon();
    }
  };

  std::vector<WatchedParameter> parameters;
  PassCallbacks callbacks;
  bool open = false;
  int graph_task = -1;
  int64_t completed = 0;

  void ready(const WatchedParameter& parameter, const at::Tensor& leaf) {
    const at::NoGradGuard no_grad;
    const int task = torch::autograd::get_current_graph_task_id();
    if (!open || task != graph_task) {
      begin(task);
      torch::autograd::Engine::get_default_engine().queue_callback(
          [alive = std::make_shared<Task>(weak_from_this())] {
            if (const auto self = alive->state.lock()) self->end();
            alive->ended = true;
          });
    }
    const at::Tensor gradient = leaf.grad();
    leaf.mutable_grad() = at::Tensor();
    if (gradient.layout() != c10::kStrided) {
      throw Error("backward", "expected a dense gradient for parameter \"" + parameter.name +
                                  "\", got a sparse one. Build the embedding with sparse(false).");
    }
    callbacks.ready(parameter.index, gradient.detach());
  }

  void begin(int task) {
    open = true;
    graph_task = task;
    callbacks.begin();
  }

  void abandon() noexcept {
    open = false;
    graph_task = -1;
    if (callbacks.abandoned) callbacks.abandoned();
  }

  void end() {
    const at::NoGradGuard no_grad;
    open = false;
    graph_task = -1;
    callbacks.end();
    ++completed;
  }
};

// Runs what was hooked to the parameter before, then ours.
class BackwardPass::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<State> state, std::size_t position,
       std::unique_ptr<torch::autograd::PostAccumulateGradHook> previous)
      : state_(std::move(state)), position_(position), previous_(std::move(previous)) {}

  void operator()(const at::Tensor& leaf) override {
    if (previous_) (*previous_)(leaf);
    if (const auto state = state_.lock()) state->ready(state->parameters[position_], leaf);
  }

  bool alive() const { return !state_.expired(); }
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> release_previous() {
    return std::move(previous_);
  }

 private:
  std::weak_ptr<State> state_;
  std::size_t position_;
  std::unique_ptr<torch::autograd::PostAccumulateGradHook> previous_;
};

BackwardPass::BackwardPass(std::vector<WatchedParameter> parameters, PassCallbacks callbacks)
    : state_(std::make_shared<State>()) {
  state_->parameters = std::move(parameters);
  state_->callbacks = std::move(callbacks);
  for (std::size_t i = 0; i < state_->parameters.size(); ++i) {
    state_->parameters[i].tensor.mutable_grad() = at::Tensor();
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(state_->parameters[i].tensor);
    auto hook = std::make_unique<Hook>(state_, i, std::move(slot));
    torch::autograd::impl::set_post_acc_grad_hooks(state_->parameters[i].tensor, std::move(hook));
  }
}

bool is_watched(const at::Tensor& leaf) {
  const auto& slot = torch::autograd::impl::post_acc_grad_hooks(leaf);
  const auto* hook = dynamic_cast<const BackwardPass::Hook*>(slot.get());
  return hook != nullptr && hook->alive();
}

BackwardPass::~BackwardPass() {
  for (const auto& parameter : state_->parameters) {
    auto& slot = torch::autograd::impl::post_acc_grad_hooks(parameter.tensor);
    if (auto* hook = dynamic_cast<Hook*>(slot.get())) {
      torch::autograd::impl::set_post_acc_grad_hooks(parameter.tensor, hook->release_previous());
    }
  }
}

int64_t BackwardPass::completed() const { return state_->completed; }

void BackwardPass::run(const std::function<void()>& backward) {
  const int64_t before = state_->completed;
  backward();
  if (state_->completed == before) {
    state_->begin(-1);
    state_->end();
  }
}

}  // namespace equigrad::gradient
