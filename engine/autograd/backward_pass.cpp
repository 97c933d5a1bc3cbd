#include "engine/autograd/backward_pass.hpp"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

#include "engine/autograd/graph_tasks.hpp"
#include "engine/error.hpp"

namespace equigrad::autograd {

// Lives as long as a graph task's callbacks. If it is destroyed before the end, the pass threw.
struct BackwardPass::Task {
  std::weak_ptr<State> state;
  int64_t pass;
  bool ended = false;
  Task(std::weak_ptr<State> of, int64_t number) : state(std::move(of)), pass(number) {}
  ~Task();
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;
};

struct BackwardPass::State : std::enable_shared_from_this<State> {
  std::vector<WatchedParameter> parameters;
  PassCallbacks callbacks;
  int64_t order = 0;
  GraphTaskObserver observer;
  bool open = false;
  int64_t pass = 0;              // number of the pass, for late callbacks of an abandoned one
  std::vector<int> graph_tasks;  // of the pass under way
  std::vector<int> reached;      // those of them with a gradient
  int64_t completed = 0;

  // Whether it was not among them.
  static bool add(std::vector<int>& tasks, int task) {
    const bool is_new = std::find(tasks.begin(), tasks.end(), task) == tasks.end();
    if (is_new) tasks.push_back(task);
    return is_new;
  }

  void join() {
    if (!open) begin();
    if (!add(graph_tasks, current_graph_task())) return;
    at_end_of_pass(order, [token = std::make_shared<Task>(weak_from_this(), pass)] {
      if (const auto self = token->state.lock()) self->end(token->pass);
      token->ended = true;
    });
    if (graph_tasks.size() == 1) callbacks.begin();
  }

  void ready(const WatchedParameter& parameter, const at::Tensor& leaf) {
    const at::NoGradGuard no_grad;
    join();
    if (add(reached, current_graph_task()) && callbacks.graph_task) callbacks.graph_task();
    at::Tensor gradient = std::exchange(leaf.mutable_grad(), at::Tensor());
    if (gradient.layout() != c10::kStrided) {
      throw Error("backward", "expected a dense gradient for parameter \"" + parameter.name +
                                  "\", got a sparse one. Build the embedding with sparse(false), "
                                  "in Python with sparse=False.");
    }
    if (gradient.requires_grad()) gradient = gradient.detach();
    callbacks.ready(parameter.index, std::move(gradient));
  }

  void begin() {
    open = true;
    ++pass;
    graph_tasks.clear();
    reached.clear();
  }

  void abandon(int64_t number) noexcept {
    if (!open || number != pass) return;
    open = false;
    for (const auto& parameter : parameters) parameter.tensor.mutable_grad() = at::Tensor();
    if (callbacks.abandoned) callbacks.abandoned();
  }

  // Every graph task of the pass calls it; the first call is the outermost's.
  void end(int64_t number) {
    if (!open || number != pass) return;
    const at::NoGradGuard no_grad;
    callbacks.end();
    open = false;
    ++completed;
  }
};

BackwardPass::Task::~Task() {
  if (ended) return;
  if (const auto self = state.lock()) self->abandon(pass);
}

// Runs what was hooked to the parameter before, then ours.
class BackwardPass::Hook final : public torch::autograd::PostAccumulateGradHook {
 public:
  Hook(std::weak_ptr<State> state, std::size_t position,
       std::unique_ptr<torch::autograd::PostAccumulateGradHook> previous)
      : state_(std::move(state)), position_(position), previous_(std::move(previous)) {}

  void operator()(const at::Tensor& leaf) override {
    if (previous_) (*previous_)(leaf);
    // What a hook of the user has seen, or put there, is not handed over as nobody else's.
    const at::Tensor seen = previous_ ? leaf.grad() : at::Tensor();
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

BackwardPass::BackwardPass(std::vector<WatchedParameter> parameters, PassCallbacks callbacks,
                           int64_t order)
    : state_(std::make_shared<State>()) {
  state_->order = order;
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

void BackwardPass::join() {
  const at::NoGradGuard no_grad;
  state_->join();
}

int64_t BackwardPass::completed() const { return state_->completed; }

void BackwardPass::run(const std::function<void()>& backward) {
  const bool nested = state_->open;
  const int64_t before = state_->pass;
  try {
    backward();
  } catch (...) {
    if (!nested && state_->pass == before) state_->begin();  // it reached no parameter
    if (!nested) state_->abandon(state_->pass);
    throw;
  }
  if (nested || state_->pass != before) return;
  state_->begin();
  try {
    state_->callbacks.begin();
    state_->end(state_->pass);
  } catch (...) {
    state_->abandon(state_->pass);
    throw;
  }
}

}  // namespace equigrad::autograd
