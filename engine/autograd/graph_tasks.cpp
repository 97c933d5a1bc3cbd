#include "engine/autograd/graph_tasks.hpp"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace equigrad::autograd {
namespace {

// What is to be called at the end of one pass. It lives in a callback of a graph task and dies with
// it.
struct Batch {
  std::multimap<int64_t, std::function<void()>> calls;
  void run() {
    for (auto& [order, call] : calls) call();
  }
};
using BatchPtr = std::shared_ptr<Batch>;

// Of inner graph tasks that have ended while the node that ran them has not.
thread_local std::vector<BatchPtr> orphans;

struct Shared {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Batch>> batches;  // by graph task
};

Shared& shared() {
  static Shared instance;
  return instance;
}

void queue(BatchPtr batch) {
  torch::autograd::Engine::get_default_engine().queue_callback([batch = std::move(batch)] {
    // In the callback of an inner task the node that ran it is the current one.
    if (torch::autograd::get_current_node() != nullptr) {
      orphans.push_back(batch);
    } else {
      batch->run();
    }
  });
}

void node_done(const at::RecordFunction& /*node*/, at::ObserverContext* /*context*/) {
  if (orphans.empty() || current_graph_task() < 0) return;
  const std::lock_guard lock(shared().mutex);
  auto& mine = shared().batches[current_graph_task()];
  for (auto& batch : std::exchange(orphans, {})) {
    if (const auto outer = mine.lock()) {
      outer->calls.merge(batch->calls);  // one order for the whole pass
    } else {
      mine = batch;
      queue(std::move(batch));
    }
  }
}

SharedCallback& callback() {
  static SharedCallback instance(
      at::RecordFunctionCallback(nullptr, node_done).scopes({at::RecordScope::BACKWARD_FUNCTION}));
  return instance;
}

}  // namespace

GraphTaskObserver::GraphTaskObserver() : use_(callback()) {}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

void at_end_of_pass(int64_t order, std::function<void()> at_end) {
  const int task = current_graph_task();
  const std::lock_guard lock(shared().mutex);
  auto& batches = shared().batches;
  std::erase_if(batches, [](const auto& entry) { return entry.second.expired(); });
  auto batch = batches[task].lock();
  if (!batch) {
    batch = std::make_shared<Batch>();
    batches[task] = batch;
    queue(batch);
  }
  batch->calls.emplace(order, std::move(at_end));
}

}  // namespace equigrad::autograd
