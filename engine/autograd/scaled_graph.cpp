#include "engine/autograd/scaled_graph.hpp"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <c10/core/ScalarType.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <sstream>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/autograd/shared_callback.hpp"

namespace equigrad::autograd {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;
using torch::autograd::variable_list;
using NodePtr = decltype(torch::autograd::Edge::function);

class ScaleNode final : public Node {
 public:
  ScaleNode(torch::autograd::edge_list&& next, std::shared_ptr<loss::LossScaler> scaler,
            at::ScalarType input)
      : Node(std::move(next)),
        scaler_(std::move(scaler)),
        scale_(scaler_->scale()),
        input_(input) {}

  const loss::LossScaler* scaler() const { return scaler_.get(); }
  double scale() const { return scale_; }
  std::string name() const override { return "LossScaleBackward"; }

 private:
  // A gradient has the type of what scale() gave.
  variable_list apply(variable_list&& gradients) override {
    if (!gradients[0].defined()) return {at::Tensor()};
    return {at::mul(gradients[0], scale_).to(input_)};
  }

  std::shared_ptr<loss::LossScaler> scaler_;
  double scale_;
  at::ScalarType input_;
};

// From torch 2.13 on a node counts its owners itself.
template <class Pointer = NodePtr, class... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return Pointer(new ScaleNode(std::forward<Arguments>(arguments)...),
                   [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<ScaleNode>(std::forward<Arguments>(arguments)...);
}

// How the gradients that arrive somewhere were scaled: a set, since several paths may lead there.
using Marks = uint8_t;
constexpr Marks kUnscaled = 1;  // not
constexpr Marks kOnce = 2;      // once, by the scaler asked for, with its current scale
constexpr Marks kStale = 4;     // once, by it, with an earlier scale
constexpr Marks kForeign = 8;   // once, by another scaler
constexpr Marks kSeveral = 16;  // more than once

struct Paths {
  std::unordered_map<const Node*, Marks> marks;  // of what arrives at a node
  std::vector<const AccumulateGrad*> leaves;     // in the order in which they were found
};

// A graph task. It lives in a callback of autograd's and dies with it.
struct Pass {
  NodePtr root;                  // until the last node has run
  std::shared_ptr<Pass> outer;   // if it runs inside of a node of another one
  const Node* within = nullptr;  // that node
  std::mutex mutex;
  std::map<const loss::LossScaler*, Paths> paths;  // of the scalers asked for
};

// What engines of a process share.
struct ScaledPasses {
  std::mutex mutex;
  std::map<int, std::weak_ptr<Pass>> passes;  // by graph task
};

ScaledPasses& scaled_passes() {
  static ScaledPasses instance;
  return instance;
}

struct Frame {
  int task;
  const Node* node;
};
thread_local std::vector<Frame> running;  // nodes that run on this thread, the innermost last
thread_local int last_seen = -1;          // a graph task whose pass is known

std::shared_ptr<Pass> find_pass(int task) {
  const std::lock_guard lock(scaled_passes().mutex);
  const auto found = scaled_passes().passes.find(task);
  return found == scaled_passes().passes.end() ? nullptr : found->second.lock();
}

// The first node of a graph task is its root, or a node that leads to all of its roots.
void see(int task, const NodePtr& node) {
  if (find_pass(task) == nullptr) {
    // Another node leads to this one: the pass began before it could be seen.
    if (torch::autograd::get_current_graph_task_nodes_in_graph()->contains(node.get())) return;
    auto pass = std::make_shared<Pass>();
    pass->root = node;
    if (!running.empty()) {
      pass->outer = find_pass(running.back().task);
      pass->within = running.back().node;
    }
    // A thread of autograd's may hold a graph task after its caller went on, and would hold this.
    torch::autograd::Engine::get_default_engine().queue_callback([pass] { pass->root = nullptr; });
    const std::lock_guard lock(scaled_passes().mutex);
    std::erase_if(scaled_passes().passes, [](const auto& entry) { return entry.second.expired(); });
    scaled_passes().passes[task] = pass;
  }
  last_seen = task;
}

std::unique_ptr<at::ObserverContext> node_begins(const at::RecordFunction& /*node*/) {
  const int task = torch::autograd::get_current_graph_task_id();
  const auto node = torch::autograd::get_current_node();
  if (task >= 0 && task != last_seen) see(task, node);
  running.push_back({task, node.get()});
  return nullptr;
}

void node_ends(const at::RecordFunction& /*node*/, at::ObserverContext* /*context*/) {
  running.pop_back();
}

SharedCallback& scaling_callback() {
  static SharedCallback instance(at::RecordFunctionCallback(node_begins, node_ends)
                                     .scopes({at::RecordScope::BACKWARD_FUNCTION}));
  return instance;
}

struct ObservedScaler {
  loss::LossScaler scaler;
  SharedCallback::Use use{scaling_callback()};
  explicit ObservedScaler(const LossScaleConfig& config) : scaler(config) {}
};

Marks after(const Node& node, Marks arriving, const loss::LossScaler* asked) {
  const auto* const scaling = dynamic_cast<const ScaleNode*>(&node);
  if (scaling == nullptr) return arriving;
  Marks marks = 0;
  if ((arriving & ~kUnscaled) != 0) marks |= kSeveral;
  if ((arriving & kUnscaled) == 0) return marks;
  if (scaling->scaler() != asked) return marks | kForeign;
  return marks | (scaling->scale() == asked->scale() ? kOnce : kStale);
}

// Marks only grow, so this ends; a node is looked at again only if another kind of path was found.
void walk(const Node* root, Marks arriving, const loss::LossScaler* asked, Paths& paths) {
  std::vector<std::pair<const Node*, Marks>> open{{root, arriving}};
  while (!open.empty()) {
    const auto [node, marks] = open.back();
    open.pop_back();
    const auto [entry, is_new] = paths.marks.try_emplace(node, Marks{0});
    if ((marks & ~entry->second) == 0) continue;
    entry->second |= marks;
    if (node->next_edges().empty()) {
      const auto* const leaf = dynamic_cast<const AccumulateGrad*>(node);
      if (is_new && leaf != nullptr) paths.leaves.push_back(leaf);
      continue;
    }
    const Marks leaving = after(*node, entry->second, asked);
    for (const auto& edge : node->next_edges()) {
      if (edge.is_valid()) open.emplace_back(edge.function.get(), leaving);
    }
  }
}

const Paths& paths_of(Pass& pass, const loss::LossScaler* asked) {
  const std::lock_guard lock(pass.mutex);
  const auto [found, is_new] = pass.paths.try_emplace(asked);
  if (!is_new) return found->second;
  Marks arriving = kUnscaled;
  if (pass.outer != nullptr) {
    const auto& outside = paths_of(*pass.outer, asked).marks;
    const auto within = outside.find(pass.within);
    if (within != outside.end()) arriving = within->second;
  }
  walk(pass.root.get(), arriving, asked, found->second);
  return found->second;
}

// What is wrong with these paths, and what to do.
std::string complaint(Marks marks, const loss::LossScaler* asked) {
  if (asked == nullptr) {
    return "no loss scale, since the precision of its engine needs none, got the loss scale of "
           "another engine. Give the engines losses of their own, or the same precision and one "
           "scale (share_loss_scale).";
  }
  std::ostringstream text;
  text << "the loss scale (" << asked->scale() << ") exactly once, got ";
  if ((marks & kSeveral) != 0) {
    text << "it scaled more than once. engine.backward scales by itself: hand it the loss, not "
            "engine.scale(loss); and scale a loss only, nothing that a scaled tensor is made of.";
  } else if ((marks & kForeign) != 0) {
    text << "it scaled by another engine's. Engines under one loss need one scale: call "
            "engine.share_loss_scale(other) before the first pass.";
  } else if ((marks & kStale) != 0) {
    text << "it scaled with the scale of an earlier step. Call engine.scale(loss) after the step, "
            "for every pass anew.";
  } else {
    text << "it unscaled. Loss scaling is required: call engine.backward(loss) or "
            "engine.scale(loss).backward(); and with a gradient of your own "
            "engine.scale(output).backward(gradient).";
  }
  return text.str();
}

}  // namespace

std::shared_ptr<loss::LossScaler> make_scaler(const LossScaleConfig& config) {
  auto plain = std::make_shared<loss::LossScaler>(config);
  if (!plain->is_needed()) return plain;
  auto observed = std::make_shared<ObservedScaler>(config);
  return {observed, &observed->scaler};
}

at::Tensor scale(const at::Tensor& tensor, const std::shared_ptr<loss::LossScaler>& scaler) {
  if (scaler == nullptr || !scaler->is_needed()) return tensor;
  const auto type = c10::promoteTypes(tensor.scalar_type(), at::kFloat);
  at::Tensor scaled;
  {
    const at::NoGradGuard no_grad;
    scaled = at::mul(tensor.to(type), scaler->scale());
  }
  if (tensor.requires_grad() && at::GradMode::is_enabled()) {
    torch::autograd::set_history(scaled, make_node(torch::autograd::collect_next_edges(tensor),
                                                   scaler, tensor.scalar_type()));
  }
  return scaled;
}

void check_pass(const loss::LossScaler* scaler, const NameOf& name_of) {
  const auto* const asked = scaler != nullptr && scaler->is_needed() ? scaler : nullptr;
  if (asked == nullptr && !scaling_callback().is_used()) return;
  const auto pass = find_pass(torch::autograd::get_current_graph_task_id());
  if (pass == nullptr) {
    if (asked == nullptr) return;
    throw Error("backward",
                "expected a pass that could be watched from its first node, got one that began "
                "before its engine was made, or without RecordFunction. Make engines outside of a "
                "pass; do not disable RecordFunction around one.");
  }
  const Marks right = asked == nullptr ? kUnscaled : kOnce;
  const auto& paths = paths_of(*pass, asked);
  const auto* const limited = torch::autograd::get_current_graph_task_exec_info();
  for (const auto* leaf : paths.leaves) {
    const Marks marks = paths.marks.at(leaf);
    if (marks == right) continue;
    if (limited != nullptr && !limited->empty()) {
      const auto found = limited->find(const_cast<AccumulateGrad*>(leaf));
      if (found == limited->end() || !found->second.should_execute()) continue;
    }
    if (const auto* name = name_of(leaf->variable)) {
      throw Error("backward", "expected gradients of parameter \"" + *name + "\" with " +
                                  complaint(marks, asked));
    }
  }
}

}  // namespace equigrad::autograd
